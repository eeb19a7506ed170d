"""A simulated disk for the journal, and records to write to it."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from common import messages as m
from scheduler_svc.core.requests.group_commit import JournalBatch
from scheduler_svc.core.requests.journal_records import (
    Ending,
    EndRecord,
    Progress,
    RequestRecord,
    StepRecord,
    SubmitRecord,
)
from scheduler_svc.core.requests.journal_replay import read_batches


def request_record(arrival: int, tokens: Iterable[int] = (), ending: Ending | None = None) -> RequestRecord:
    """A request, called r and its arrival, of one sequence that has these tokens."""
    request_id, prompt = f"r{arrival}", array("i", [1, 2, 3]).tobytes()
    submit = m.Submit(request_id=request_id, prompt=prompt, params=m.SamplingParams(max_tokens=1000))
    progress = Progress(array("i", tokens).tobytes(), "", 0, ending)
    return RequestRecord(arrival, 0.0, SubmitRecord.of(submit), (progress,))


def step_record(arrivals: list[int], token: int, positions: list[int]) -> StepRecord:
    """A step that gave each of these sequences the same token, when they had so many."""
    tokens = array("i", [token] * len(arrivals))
    return StepRecord("", array("q", arrivals).tobytes(), tokens.tobytes(), array("i", positions).tobytes())


def end_record(arrival: int, num_tokens: int) -> EndRecord:
    """A sequence was stopped when it had so many tokens."""
    return EndRecord(arrival, 0, Ending("stop"), num_tokens)


@dataclass
class Disk:
    """What `journal.py` writes to: each batch is a transaction."""

    rows: dict[int, bytes] = field(default_factory=dict)

    def write(self, batch: JournalBatch) -> None:
        kept = {n: row for n, row in self.rows.items() if n >= batch.keep_from}
        self.rows = kept | {batch.number: batch.payload}

    def read(self) -> dict[int, tuple[list[int], bool]]:
        """Tokens of each request, and whether it had ended."""
        found = read_batches([payload for _, payload in sorted(self.rows.items())]).requests
        return {
            request.arrival: (array("i", told.token_ids).tolist(), told.ending is not None)
            for request in found
            for told in request.progress
        }

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.rows.values()))
