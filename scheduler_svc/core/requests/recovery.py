"""What an earlier life of the scheduler has left: requests to take up again, and a count of its crashes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from common.messages import Task
from scheduler_svc.core.requests.journal_records import CrashRecord, Ending, Progress, RequestRecord
from scheduler_svc.core.requests.journal_replay import read_batches
from scheduler_svc.core.requests.request_table import Request
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import Generated

MAX_CRASHES = 3  # of the core in a row, with the same open requests: then one of them is why, and they are ended
SURVIVED_AFTER_S = 60.0
RESUME_WITHIN_S = 600.0  # of the last write; clients of a service that was gone for longer have given up
TOKENIZER_GONE = "the scheduler serves a model with another tokenizer than this request began with; send it again"


@dataclass(frozen=True)
class Loaded:
    """What the file of a journal gives.

    Attributes:
        batches: number and payload of each that can be read, in order.
        age_s: seconds since the last of them was written; 0 for a new file.
        wall_offset_s: what to add to the caller's time to get the time on the journal's timeline.
        damage: what is wrong with the file; empty if nothing is.
    """

    batches: list[tuple[int, bytes]]
    age_s: float
    wall_offset_s: float
    damage: str = ""

    @property
    def next_number(self) -> int:
        """Number of the first batch of a new life."""
        return self.batches[-1][0] + 1 if self.batches else 1


@dataclass(frozen=True)
class Legacy:
    """What a new life takes up.

    Attributes:
        requests: those that are not too old, and `num_too_old` the number of those that are.
        crashes: lives in a row that ended by a fault of the core.
        damage: what is wrong with the journal; empty if nothing is.
        num_damaged, cut: records that could not be read, and ids of requests that lost tokens or an end by that.
    """

    requests: list[RequestRecord]
    num_too_old: int
    crashes: int
    damage: str
    num_damaged: int
    cut: list[str]

    @classmethod
    def of(cls, loaded: Loaded) -> "Legacy":
        """What is in the journal."""
        contents = read_batches([payload for _, payload in loaded.batches])
        damage = loaded.damage
        if contents.num_damaged or contents.cut:
            damage = damage or "records are damaged"
        is_too_old = loaded.age_s > RESUME_WITHIN_S
        kept, too_old = ([], contents.requests) if is_too_old else (contents.requests, [])
        return cls(kept, len(too_old), contents.crashes, damage, contents.num_damaged, contents.cut)


class CrashCount:
    """Counts lives of the scheduler in a row that ended by a fault of the core."""

    def __init__(self) -> None:
        self._crashes = 0
        self._survived_at: float | None = None

    def begin(
        self, crashes: int, records: list[RequestRecord], now: float
    ) -> tuple[list[RequestRecord], list[str] | None]:
        """A life begins after so many crashes.

        Returns:
            The requests to take up, and, after `MAX_CRASHES`, the ids of those among them that are ended for it.
        """
        self._crashes = crashes
        self._survived_at = now + SURVIVED_AFTER_S if crashes else None
        if crashes < MAX_CRASHES:
            return records, None
        given_up = [record.submit.request_id for record in records if not record.has_ended]
        return [_given_up(record) for record in records], given_up

    def survived(self, now: float) -> CrashRecord | None:
        """What to write to the journal once this life has lasted long enough to begin the count anew; else None."""
        if self._survived_at is None or now < self._survived_at:
            return None
        self._crashes, self._survived_at = 0, None
        return self.record

    @property
    def record(self) -> CrashRecord:
        """What the journal has to say of the count."""
        return CrashRecord(self._crashes)

    @property
    def one_more(self) -> CrashRecord:
        """What it has to say if this life ends by a crash."""
        return CrashRecord(self._crashes + 1)


def restored(record: RequestRecord, scheduler: Scheduler, wall_offset_s: float) -> Request:
    """Give a request of an earlier life to the scheduler.

    Args:
        wall_offset_s: what to add to the caller's time to get the time on the journal's timeline.
    """
    submit, progress = record.submit.message(), record.progress
    accepted_at = record.accepted_at - wall_offset_s
    deadline = None if submit.timeout_s is None else accepted_at + submit.timeout_s
    outputs = [
        Generated(told.token_ids, told.logprob_ids, told.logprobs, told.prompt_logprob_ids, told.prompt_logprobs)
        for told in progress
    ]
    sequences = scheduler.restore(submit, record.arrival, outputs, deadline, place=record.place, fits=record.fits)
    for sequence, told in zip(sequences, progress, strict=True):
        sequence.model, sequence.num_cached_prompt = told.model, told.num_cached
        if told.ending is not None:
            scheduler.cancel([sequence])
    endings = [told.ending for told in progress]
    return Request(submit, sequences, accepted_at, None, record.fits, endings=endings, tokenizer=record.tokenizer)


def of_this_tokenizer(
    records: list[RequestRecord], tokenizers: Mapping[Task, str]
) -> tuple[list[RequestRecord], list[str]]:
    """End the requests whose token ids mean something else now: going on would change the text that a client has.

    Args:
        tokenizers: by task, hash of the one that is served; empty, or none, if it is not known.

    Returns:
        The requests, and the ids of those that are ended for it. These lose their tokens, and the log-probabilities of
        their prompts, also those that had ended: no text can be made of them any more.
    """
    kept, ended = [], []
    for record in records:
        tokenizer = tokenizers.get(record.submit.params.task, "")
        is_foreign = record.tokenizer and tokenizer and record.tokenizer != tokenizer
        if is_foreign and any(told.ending is None or told.num_bytes for told in record.progress):
            ended.append(record.submit.request_id)
            gone = Progress(ending=Ending("error", TOKENIZER_GONE, "tokenizer_changed"))
            kept.append(msgspec.structs.replace(record, progress=(gone,) * len(record.progress)))
        else:
            kept.append(record)
    return kept, ended


def _given_up(record: RequestRecord) -> RequestRecord:
    """The request, with an end for what is open."""
    message = f"the scheduler failed {MAX_CRASHES} times in a row with this request, or one that was open with it"
    ending = Ending("error", message, "internal_error")
    ended = [msgspec.structs.replace(told, ending=told.ending or ending) for told in record.progress]
    return msgspec.structs.replace(record, progress=tuple(ended))
