"""A simulated disk for the journal, and records to write to it."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from common import messages as m
from scheduler_svc.core.requests.group_commit import JournalBatch
from scheduler_svc.core.requests.journal_records import Ending, Progress, RequestRecord, StepRecord, replay


def request_record(arrival: int, tokens: Iterable[int] = (), ending: Ending | None = None) -> RequestRecord:
    """A request, called r and its arrival, of one sequence that has these tokens."""
    request_id, prompt = f"r{arrival}", array("i", [1, 2, 3]).tobytes()
    submit = m.Submit(request_id=request_id, prompt=prompt, params=m.SamplingParams(max_tokens=1000))
    return RequestRecord(arrival, 0.0, submit, (Progress(array("i", tokens).tobytes(), "", 0, ending),))


def step_record(arrivals: list[int], token: int) -> StepRecord:
    """A step that gave each of these sequences the same token."""
    return StepRecord("", array("q", arrivals).tobytes(), array("i", [token] * len(arrivals)).tobytes())


@dataclass
class Disk:
    """What `journal.py` writes to: each batch is a transaction."""

    rows: dict[int, bytes] = field(default_factory=dict)

    def write(self, batch: JournalBatch) -> None:
        kept = {} if batch.reset else {n: row for n, row in self.rows.items() if n >= batch.keep_from}
        self.rows = kept | {batch.number: batch.payload}

    def read(self) -> dict[int, tuple[list[int], bool]]:
        """Tokens of each request, and whether it had ended."""
        found = replay([payload for _, payload in sorted(self.rows.items())])
        return {
            request.arrival: (array("i", told.token_ids).tolist(), told.ending is not None)
            for request in found
            for told in request.progress
        }

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.rows.values()))
