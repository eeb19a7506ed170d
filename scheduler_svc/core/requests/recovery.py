"""What an earlier life of the scheduler has left: requests to take up again, and a count of its crashes. Pure."""

import msgspec

from scheduler_svc.core.requests.journal_records import CrashRecord, Ending, RequestRecord
from scheduler_svc.core.requests.request_table import Request
from scheduler_svc.core.scheduling.scheduler import Scheduler

MAX_CRASHES = 3  # of the core in a row, with the same open requests: then one of them is why, and they are ended
SURVIVED_AFTER_S = 60.0
RESUME_WITHIN_S = 600.0  # of the last write; clients of a service that was gone for longer have given up


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
        wall_offset_s: what to add to the caller's time to get seconds since 1970.
    """
    submit, progress = record.submit, record.progress
    accepted_at = record.accepted_at - wall_offset_s
    deadline = None if submit.timeout_s is None else accepted_at + submit.timeout_s
    outputs = [told.token_ids for told in progress]
    sequences = scheduler.restore(submit, record.arrival, outputs, deadline, place=record.place, fits=record.fits)
    for sequence, told in zip(sequences, progress, strict=True):
        sequence.model, sequence.num_cached_prompt = told.model, told.num_cached
        if told.ending is not None:
            scheduler.cancel([sequence])
    return Request(submit, sequences, accepted_at, None, record.fits, endings=[told.ending for told in progress])


def _given_up(record: RequestRecord) -> RequestRecord:
    """The request, with an end for what is open."""
    message = f"the scheduler failed {MAX_CRASHES} times in a row with this request, or one that was open with it"
    ending = Ending("error", message, "internal_error")
    ended = [msgspec.structs.replace(told, ending=told.ending or ending) for told in record.progress]
    return msgspec.structs.replace(record, progress=tuple(ended))
