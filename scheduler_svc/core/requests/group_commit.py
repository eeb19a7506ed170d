"""What has to be in the journal before a frontend is told. Pure: `journal.py` writes, and the time is the caller's.

A write-ahead log with group commit: while one batch is being written, records of the next gather, and the
announcements that depend on them are held back until they are written. So a client never sees a token that a restarted
scheduler would not know of, and would perhaps draw differently. A journal that cannot be written must not stop the
service: when a write fails, or takes longer than `STUCK_AFTER_S`, all announcements are released, later ones are
released at once, and every `RETRY_AFTER_S` the journal is begun anew with the state of all requests. A file that is
lost (deleted, or cut, while we wrote to it) is replaced like that as well, and for the first time at once.

What a batch takes is bounded, or to encode it would stop the service for a while. So a journal is begun anew in pieces,
one in each batch, beside the records that come meanwhile. What was written before goes with the last piece.

    OFF (there is no journal)

    RECORDING ──a write fails──▶ FAILED ──begin_anew──▶ REPLACING ──all written, no new records──▶ RECORDING
        │                          ▲                        └─pieces written, new records─▶ CATCHING_UP ─▶ RECORDING
        └──a write is stuck──▶ STUCK (until its result comes)

A write that fails or is stuck in REPLACING or CATCHING_UP leads to FAILED or STUCK as it does in RECORDING. A file that
is lost leads to FAILED, or to STUCK while a batch is being written, because the result of that one is still to come.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from scheduler_svc.core.requests.journal_records import AnyRecord, RequestRecord, encode, encode_one, version_of
from scheduler_svc.core.requests.log_length import LogLength
from scheduler_svc.core.requests.record_frames import frame

GATHER_S = 0.004  # from one batch to the next, at least: each costs the step path about 0.1 ms
STUCK_AFTER_S = 2.0
SLOW_DISK_BYTES_PER_S = 4 * 2**20  # a batch may take so much longer than that
TOUCH_S = 30.0  # a journal with requests is written to this often, so that its age tells when its scheduler ended
RETRY_AFTER_S = 5.0
MAX_BATCH_RECORDS = 256  # that gathered: some milliseconds of CPU
MAX_PIECE_REQUESTS = 128  # of a journal begun anew, in a batch: likewise
MAX_BATCH_BYTES = 2**20  # of either; it ends with the record that reaches it
MAX_LOG_BYTES = 256 * 2**20  # beyond it the oldest request is written again, so that what is before it can be deleted

AnyAnnouncement = TypeVar("AnyAnnouncement")


class JournalState(Enum):
    """Whether what is accepted survives the scheduler; the values are what status and metrics show."""

    OFF = "off"
    OK = "ok"
    FAILED = "failed"


class JournalPhase(Enum):
    """Where the group commit stands (see the diagram above).

    Attributes:
        state: what status and metrics show of it.
        is_recording: whether records are kept.
        holds_back: whether a new announcement waits until its records are written.
    """

    OFF = "off", JournalState.OFF
    RECORDING = "recording", JournalState.OK, True, True
    STUCK = "stuck", JournalState.FAILED  # the batch that was given up may still be written
    FAILED = "failed", JournalState.FAILED  # the journal is begun anew when `RETRY_AFTER_S` has passed
    REPLACING = "replacing", JournalState.FAILED, True  # the journal is begun anew, piece by piece
    CATCHING_UP = "catching up", JournalState.FAILED, True, True  # the pieces are written, and newer records are not

    def __init__(self, label: str, state: JournalState, is_recording: bool = False, holds_back: bool = False) -> None:
        self.state, self.is_recording, self.holds_back = state, is_recording, holds_back


class JournalBatch(NamedTuple):
    """Records to be written in one transaction.

    Attributes:
        number: one more than the last one's.
        payload: the records.
        keep_from: batches with lower numbers are not needed any more.
        begins, completes: it is the first, or the last, of those with which the journal is begun anew. A file that was
            lost is replaced by another with the first.
        version: the first one of the records' format that has all that they say, and that all say since the journal
            was begun.
    """

    number: int
    payload: bytes
    keep_from: int
    begins: bool = False
    completes: bool = False
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
class _Entry(Generic[AnyAnnouncement]):
    """Records that came together.

    Attributes:
        announcements: that wait for them.
        at: when they came.
        is_told: what they say was told at once.
    """

    records: list[AnyRecord]
    announcements: list[AnyAnnouncement]
    at: float
    is_told: bool


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
        max_records, max_requests: see MAX_BATCH_RECORDS and MAX_PIECE_REQUESTS.
        num_batches, num_failures: batches written; writes that failed or got stuck, and files that were lost.
    """

    def __init__(self, state: JournalState, first_number: int = 1, max_log_bytes: int = MAX_LOG_BYTES) -> None:
        self.max_records, self.max_requests = MAX_BATCH_RECORDS, MAX_PIECE_REQUESTS
        self.num_batches = 0
        self.num_failures = 0
        self._phase = JournalPhase.OFF if state is JournalState.OFF else JournalPhase.RECORDING
        self._write: _Write[AnyAnnouncement] | None = None  # in STUCK: the batch that was given up
        self._log = LogLength(max_log_bytes)
        self._number = first_number
        self._version = 1  # that the journal needs
        self._entries: deque[_Entry[AnyAnnouncement]] = deque()  # for the next batches
        self._dropped: deque[_Entry[AnyAnnouncement]] = deque()  # nobody wants these: to free them takes a while
        self._coming: set[str] = set()  # requests with a RequestRecord among these
        self._pieces: Iterator[AnyRecord] | None = None  # what a journal that is begun anew still lacks
        self._begun_at = float("-inf")  # when the last batch was handed over
        self._failed_at = self._retry_at = float("-inf")
        self._behind_since: float | None = None  # when the oldest record came that the failed journal lacks

    @property
    def state(self) -> JournalState:
        """State of the journal."""
        return self._phase.state

    @property
    def is_recording(self) -> bool:
        """Whether records are of any use at the moment."""
        return self._phase.is_recording

    @property
    def is_settled(self) -> bool:
        """Whether no record waits to be written, or there is no use in waiting."""
        return not self._phase.holds_back or self._is_empty

    @property
    def _is_empty(self) -> bool:
        return self._write is None and not self._entries

    def add(self, records: list[AnyRecord], announcements: list[AnyAnnouncement], now: float) -> list[AnyAnnouncement]:
        """Note records. Returns what may be told at once: `announcements`, or none if they have to wait."""
        waits = self._phase.holds_back and not (self._is_empty and not records)
        if waits or (records and self.is_recording):
            self._entries.append(_Entry(records, announcements if waits else [], now, is_told=not waits))
            self._coming.update(r.submit.request_id for r in records if isinstance(r, RequestRecord))
        return [] if waits else announcements

    def due_in_s(self, now: float) -> float | None:
        """Seconds until `next_batch` has something; None if something has to happen first."""
        if not self.is_recording or self._write is not None:
            return None
        if self._entries or self._pieces is not None:
            return max(0.0, self._begun_at + GATHER_S - now)
        return 0.0 if self._log.has_requests and now - self._begun_at >= TOUCH_S else None

    def next_batch(self, now: float) -> JournalBatch | None:
        """What is to be written now, if anything is and no batch is being written."""
        return self._begin(now) if self.due_in_s(now) == 0.0 else None

    def may_begin_anew(self, now: float) -> bool:
        """Whether it is time to try again after a failure: then call `begin_anew`."""
        return self._phase is JournalPhase.FAILED and now >= self._retry_at

    def begin_anew(self, records: Iterable[AnyRecord], now: float) -> JournalBatch:
        """Replace the whole journal by these records; this batch, and those that follow it, take them piece by piece.

        Args:
            records: the state of all requests. A record is asked for when its batch is handed over, and has to tell all
                that was told until then.
        """
        assert self._phase is not JournalPhase.OFF, "there is no journal"
        assert self._write is None, "a batch is being written"
        self._pieces, self._version = iter(records), 1
        self._log.clear()
        if self._phase is JournalPhase.FAILED:
            self._phase = JournalPhase.REPLACING
        return self._begin(now, begins=True)

    def last_batch(self, record: AnyRecord) -> JournalBatch:
        """A batch to be written after the one that is being written, by a process that is about to end."""
        return JournalBatch(self._number, encode([record]), keep_from=0)

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
        self._write = None
        if self._pieces is None:
            is_behind = self._entries and self._entries[0].is_told
            self._phase = JournalPhase.CATCHING_UP if is_behind else JournalPhase.RECORDING
            self._behind_since = self._behind_since if is_behind else None
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

    def chores(self) -> Iterator[None]:
        """Free what is not wanted any more, a little at each step."""
        while self._dropped:
            self._dropped.popleft()
            yield

    def paused(self, seconds: float, now: float) -> None:
        """The caller has not run for so long, and perhaps nor has the disk."""
        if self._write is not None:
            self._write.since = min(self._write.since + seconds, now)

    def lag_s(self, now: float) -> float:
        """Age of the oldest record that is not on disk; while the journal fails, of the first one that it lost."""
        if self._behind_since is not None:
            return now - self._behind_since
        if self._write is not None and self._phase is not JournalPhase.STUCK:
            return now - self._write.oldest_at
        return now - self._entries[0].at if self._entries else 0.0

    def let_go(self, request_id: str) -> None:
        """A request need not survive any more."""
        if request_id in self._coming:
            self._coming.remove(request_id)
            for entry in self._entries:
                entry.records = [record for record in entry.records if not _introduces(record, request_id)]
        self._log.forget(request_id)

    def overgrown(self) -> str | None:
        """The request whose RequestRecord is oldest, if the journal is too long: write it again."""
        is_whole = self._phase is JournalPhase.RECORDING and self._pieces is None
        oldest = self._log.overgrown if is_whole else None
        return None if oldest in self._coming else oldest

    # --- inside ---

    def _begin(self, now: float, *, begins: bool = False) -> JournalBatch:
        """Hand over the next piece, and what has gathered."""
        number = self._number
        self._number += 1
        has_piece = self._pieces is not None
        records, encoded = _until_full(self._next_pieces(), self.max_requests)
        oldest_at = self._entries[0].at if self._entries else now
        announcements: list[AnyAnnouncement] = []
        gathered, encoded_too = _until_full(self._next_entries(announcements), self.max_records)
        self._coming.difference_update(r.submit.request_id for r in gathered if isinstance(r, RequestRecord))
        records += gathered
        payload = frame(encoded + encoded_too)
        self._version = max(self._version, *map(version_of, records), 1)
        needed_from = self._log.add(number, records, len(payload))
        limit_s = STUCK_AFTER_S + len(payload) / SLOW_DISK_BYTES_PER_S
        self._write = _Write(number, announcements, now, limit_s, oldest_at)
        self._begun_at = now
        is_whole = self._pieces is None
        keep_from = needed_from if is_whole else 0
        return JournalBatch(number, payload, keep_from, begins, has_piece and is_whole, self._version)

    def _next_pieces(self) -> Iterator[list[AnyRecord]]:
        for record in self._pieces or ():
            yield [record]
        self._pieces = None  # the batch has taken the last one

    def _next_entries(self, announcements: list[AnyAnnouncement]) -> Iterator[list[AnyRecord]]:
        while self._entries:
            entry = self._entries.popleft()
            announcements += entry.announcements
            yield entry.records

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
        if self._behind_since is None:
            gathered_at = self._entries[0].at if self._entries else now
            self._behind_since = gathered_at if write is None else write.oldest_at
        announcements = [*write.announcements] if write is not None else []
        for entry in self._entries:
            announcements += entry.announcements
        self._dropped += self._entries
        self._entries = deque()
        self._coming.clear()
        self._pieces = None
        self._phase = phase
        self.num_failures += 1
        self._failed_at, self._retry_at = now, retry_at
        return announcements


def _until_full(source: Iterator[list[AnyRecord]], max_records: int) -> tuple[list[AnyRecord], list[bytes]]:
    """Records from a source until a batch has enough of that kind, and their encoded forms."""
    records: list[AnyRecord] = []
    encoded: list[bytes] = []
    num_bytes = 0
    for came in source:
        records += came
        encoded += (forms := [encode_one(record) for record in came])
        num_bytes += sum(map(len, forms))
        if len(records) >= max_records or num_bytes >= MAX_BATCH_BYTES:
            break
    return records, encoded


def _introduces(record: AnyRecord, request_id: str) -> bool:
    return isinstance(record, RequestRecord) and record.submit.request_id == request_id
