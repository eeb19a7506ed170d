"""What has to be in the journal before a frontend is told. Pure: `journal.py` writes, and the time is the caller's.

A write-ahead log with group commit: while one batch is being written, records of the next gather, and the
announcements that depend on them are held back until they are written. So a client never sees a token that a restarted
scheduler would not know of, and would perhaps draw differently. A journal that cannot be written must not stop the
service: when a write fails, or takes longer than `STUCK_AFTER_S`, all announcements are released, later ones are
released at once, and every `RETRY_AFTER_S` the journal is begun anew with the state of all requests. A file that is
lost (deleted, or cut, while we wrote to it) is replaced like that as well, and for the first time at once.

    OFF (there is no journal)

    RECORDING ──a write fails──▶ FAILED ──begin_anew──▶ REPLACING ──written, no new records──▶ RECORDING
        │                          ▲                        └─written, new records─▶ CATCHING_UP ──written──▶ RECORDING
        └──a write is stuck──▶ STUCK (until its result comes)

A write that fails or is stuck in REPLACING or CATCHING_UP leads to FAILED or STUCK as it does in RECORDING. A file that
is lost leads to FAILED, or to STUCK while a batch is being written, because the result of that one is still to come.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from scheduler_svc.core.requests.journal_records import AnyRecord, RequestRecord, encode, version_of
from scheduler_svc.core.requests.log_length import LogLength

GATHER_S = 0.004  # from one batch to the next, at least: each costs the step path about 0.1 ms
STUCK_AFTER_S = 2.0
SLOW_DISK_BYTES_PER_S = 4 * 2**20  # a batch may take so much longer than that
TOUCH_S = 30.0  # a journal with requests is written to this often, so that its age tells when its scheduler ended
RETRY_AFTER_S = 5.0
MAX_LOG_BYTES = 256 * 2**20  # beyond it the oldest request is written again, so that what is before it can be deleted

AnyAnnouncement = TypeVar("AnyAnnouncement")


class JournalState(Enum):
    """Whether what is accepted survives the scheduler; the values are what status and metrics show."""

    OFF = "off"
    OK = "ok"
    FAILED = "failed"


class JournalPhase(Enum):
    """Where the group commit stands (see the diagram above)."""

    OFF = auto()
    RECORDING = auto()  # announcements wait for their records
    STUCK = auto()  # the batch that was given up may still be written; no record is kept
    FAILED = auto()  # no record is kept; the journal is begun anew when `RETRY_AFTER_S` has passed
    REPLACING = auto()  # the batch that begins the journal anew is being written; announcements do not wait
    CATCHING_UP = auto()  # that batch is written, and what was recorded since is not; announcements wait again

    @property
    def state(self) -> JournalState:
        """What status and metrics show of it."""
        if self is JournalPhase.OFF:
            return JournalState.OFF
        return JournalState.OK if self is JournalPhase.RECORDING else JournalState.FAILED

    @property
    def holds_back(self) -> bool:
        """Whether a new announcement waits until its records are written."""
        return self in (JournalPhase.RECORDING, JournalPhase.CATCHING_UP)


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """Records to be written in one transaction.

    Attributes:
        number: one more than the last one's.
        payload: the records.
        keep_from: batches with lower numbers are not needed any more.
        reset: no batch that was written before is needed.
        version: of the records' format, the first that has all that they say.
    """

    number: int
    payload: bytes
    keep_from: int
    reset: bool
    version: int = 1


@dataclass(frozen=True, slots=True)
class BatchSaved:
    """A batch is in the journal."""

    number: int


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """A batch could not be written. Another may be tried.

    If the disk broke at the very end of the transaction, the batch can still be in the file: what a batch says must
    stay true if it is loaded, and saving its number again replaces it.
    """

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class JournalLost:
    """The file is gone, or not what was written. What becomes of a batch that is under way is told as well."""

    reason: str


JournalResult = BatchSaved | BatchFailed | JournalLost


@dataclass(slots=True)
class _Write(Generic[AnyAnnouncement]):
    """A batch that is being written.

    Attributes:
        announcements: that wait for it.
        since: when it was handed over.
        limit_s: how long it may take.
        oldest_at: when its first record came.
    """

    number: int
    announcements: list[AnyAnnouncement]
    since: float
    limit_s: float
    oldest_at: float


class GroupCommit(Generic[AnyAnnouncement]):
    """Holds back what may not be told yet.

    Args:
        state: OFF without a journal, else OK.
        first_number: number of the first batch; above all that the journal holds.
        max_log_bytes: see MAX_LOG_BYTES.

    Attributes:
        num_batches, num_failures: batches written; writes that failed or got stuck, and files that were lost.
    """

    def __init__(self, state: JournalState, first_number: int = 1, max_log_bytes: int = MAX_LOG_BYTES) -> None:
        self.num_batches = 0
        self.num_failures = 0
        self._phase = JournalPhase.OFF if state is JournalState.OFF else JournalPhase.RECORDING
        self._write: _Write[AnyAnnouncement] | None = None  # in STUCK: the batch that was given up
        self._log = LogLength(max_log_bytes)
        self._number = first_number
        self._records: list[AnyRecord] = []  # of the next batch
        self._waiting: list[AnyAnnouncement] = []  # for the next batch
        self._begun_at = float("-inf")  # when the last batch was handed over
        self._oldest_at = 0.0  # when the first of the records came
        self._failed_at = self._retry_at = float("-inf")

    @property
    def state(self) -> JournalState:
        """State of the journal."""
        return self._phase.state

    @property
    def is_recording(self) -> bool:
        """Whether records are of any use at the moment."""
        return self._phase.holds_back or self._phase is JournalPhase.REPLACING

    @property
    def is_settled(self) -> bool:
        """Whether no record waits to be written, or there is no use in waiting."""
        return not self._phase.holds_back or self._is_empty

    @property
    def _is_empty(self) -> bool:
        return self._write is None and not self._records and not self._waiting

    def add(self, records: list[AnyRecord], announcements: list[AnyAnnouncement], now: float) -> list[AnyAnnouncement]:
        """Note records. Returns what may be told at once: `announcements`, or none if they have to wait."""
        if self.is_recording:
            if not self._records:
                self._oldest_at = now
            self._records += records
        if self.is_settled:
            return announcements
        self._waiting += announcements
        return []

    def due_in_s(self, now: float) -> float | None:
        """Seconds until `next_batch` has something; None if something has to happen first."""
        if not self._phase.holds_back or self._write is not None:
            return None
        if self._records or self._waiting:
            return max(0.0, self._begun_at + GATHER_S - now)
        return 0.0 if self._log.has_requests and now - self._begun_at >= TOUCH_S else None

    def next_batch(self, now: float) -> JournalBatch | None:
        """What is to be written now, if anything is and no batch is being written."""
        return self._begin(now, reset=False) if self.due_in_s(now) == 0.0 else None

    def may_begin_anew(self, now: float) -> bool:
        """Whether it is time to try again after a failure: then call `begin_anew`."""
        return self._phase is JournalPhase.FAILED and now >= self._retry_at

    def begin_anew(self, requests: list[AnyRecord], now: float) -> JournalBatch:
        """Replace the whole journal by the state of all requests."""
        assert self._phase is not JournalPhase.OFF, "there is no journal"
        assert self._write is None, "a batch is being written"
        if not self._records:
            self._oldest_at = now
        self._records[:0] = requests
        self._log.clear()
        if self._phase is JournalPhase.FAILED:
            self._phase = JournalPhase.REPLACING
        return self._begin(now, reset=True)

    def last_batch(self, record: AnyRecord) -> JournalBatch:
        """A batch to be written after the one that is being written, by a process that is about to end."""
        return JournalBatch(self._number, encode([record]), keep_from=0, reset=False)

    def take(self, result: JournalResult, now: float) -> list[AnyAnnouncement]:
        """The journal says what has become of a batch, or of itself. Returns what may be told now."""
        match result:
            case BatchSaved(number):
                return self.saved(number)
            case BatchFailed(number):
                return self.failed(number, now)
            case JournalLost():
                return self.lost(now)

    def saved(self, number: int) -> list[AnyAnnouncement]:
        """A batch is on disk. Returns what may be told now."""
        if (write := self._answered(number)) is None:
            return []
        self.num_batches += 1
        is_behind = self._phase is JournalPhase.REPLACING and self._records
        self._phase = JournalPhase.CATCHING_UP if is_behind else JournalPhase.RECORDING
        self._write = None
        return write.announcements

    def failed(self, number: int, now: float) -> list[AnyAnnouncement]:
        """A batch could not be written. Returns what may be told now: everything."""
        if (write := self._answered(number)) is None:
            return []
        self._write = None
        return self._give_up(write, JournalPhase.FAILED, now, now + RETRY_AFTER_S)

    def lost(self, now: float) -> list[AnyAnnouncement]:
        """What was written is gone. Returns what may be told now: everything."""
        if self._phase in (JournalPhase.OFF, JournalPhase.FAILED, JournalPhase.STUCK):
            return []
        retry_at = now if now - self._failed_at >= RETRY_AFTER_S else now + RETRY_AFTER_S
        phase = JournalPhase.FAILED if self._write is None else JournalPhase.STUCK
        return self._give_up(self._write, phase, now, retry_at)

    def tick(self, now: float) -> list[AnyAnnouncement]:
        """Give up a batch that is stuck. Returns what may be told then: everything."""
        write = self._write
        if write is None or self._phase is JournalPhase.STUCK or now - write.since <= write.limit_s:
            return []
        return self._give_up(write, JournalPhase.STUCK, now, now + RETRY_AFTER_S)

    def paused(self, seconds: float, now: float) -> None:
        """The caller has not run for so long, and perhaps nor has the disk."""
        if self._write is not None:
            self._write.since = min(self._write.since + seconds, now)

    def lag_s(self, now: float) -> float:
        """Age of the oldest record that is not on disk."""
        if self._write is not None and self._phase is not JournalPhase.STUCK:
            return now - self._write.oldest_at
        return now - self._oldest_at if self._records else 0.0

    def let_go(self, request_id: str) -> None:
        """A request need not survive any more."""
        self._records = [record for record in self._records if not _introduces(record, request_id)]
        self._log.forget(request_id)

    def overgrown(self) -> str | None:
        """The request whose RequestRecord is oldest, if the journal is too long: write it again."""
        oldest = self._log.overgrown if self._phase is JournalPhase.RECORDING else None
        is_coming = oldest is not None and any(_introduces(record, oldest) for record in self._records)
        return None if is_coming else oldest

    # --- inside ---

    def _begin(self, now: float, *, reset: bool) -> JournalBatch:
        """Hand over what has gathered."""
        number = self._number
        self._number += 1
        payload, version = encode(self._records), max(map(version_of, self._records), default=1)
        keep_from = self._log.add(number, self._records, len(payload))
        oldest_at = self._oldest_at if self._records else now
        limit_s = STUCK_AFTER_S + len(payload) / SLOW_DISK_BYTES_PER_S
        self._write = _Write(number, self._waiting, now, limit_s, oldest_at)
        self._begun_at = now
        self._records, self._waiting = [], []
        return JournalBatch(number, payload, keep_from, reset, version)

    def _answered(self, number: int) -> _Write[AnyAnnouncement] | None:
        """The batch that is being written, if this is its number; the result of one that was stuck ends that phase."""
        if self._write is None or self._write.number != number:
            return None
        if self._phase is JournalPhase.STUCK:
            self._write, self._phase = None, JournalPhase.FAILED
            return None
        return self._write

    def _give_up(
        self, write: _Write[AnyAnnouncement] | None, phase: JournalPhase, now: float, retry_at: float
    ) -> list[AnyAnnouncement]:
        """The journal does not work: release all announcements that wait. Returns them."""
        announcements = [*(write.announcements if write is not None else ()), *self._waiting]
        self._records, self._waiting = [], []
        self._phase = phase
        self.num_failures += 1
        self._failed_at, self._retry_at = now, retry_at
        return announcements


def _introduces(record: AnyRecord, request_id: str) -> bool:
    return isinstance(record, RequestRecord) and record.submit.request_id == request_id
