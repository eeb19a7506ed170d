"""What has to be in the journal before anybody is told. Pure: `journal.py` writes, and the time is the caller's.

A write-ahead log with group commit: while one batch is being written, records of the next gather, and what they say
is told (*released*) when they are written. So a client never sees a token that a restarted scheduler would not know
of, and would perhaps draw differently. A journal that cannot be written must not stop the service: when a write
fails, or takes longer than `STUCK_AFTER_S`, everything is released and released at once from then on, and every
`RETRY_AFTER_S` the ledger asks for the state of all requests, to begin the journal anew with.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from scheduler_svc.core.requests.journal_records import Accepted, AnyRecord, encode

GATHER_S = 0.004  # from one batch to the next, at least: each costs the step path about 0.1 ms
STUCK_AFTER_S = 2.0
SLOW_DISK_BYTES_PER_S = 4 * 2**20  # a batch may take so much longer than that
TOUCH_S = 30.0  # a journal with requests is written to this often, so that its age tells when its scheduler ended
RETRY_AFTER_S = 5.0
MAX_LOG_BYTES = 256 * 2**20  # beyond it the oldest request is written again, so that what is before it can be let go

Release = TypeVar("Release")


class JournalState(Enum):
    """Whether what is accepted survives the scheduler; the values are what status and metrics show."""

    OFF = "off"
    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Batch:
    """Records to be written in one transaction.

    Attributes:
        number: one more than the last one's.
        payload: the records.
        keep_from: batches with lower numbers are not needed any more.
        reset: nothing that was written before is needed.
    """

    number: int
    payload: bytes
    keep_from: int
    reset: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """A batch is in the journal."""

    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch could not be written. Another may be tried.

    If the disk broke at the very end of the transaction the batch can be in the file all the same: what a batch says
    must stay true if it is loaded, and saving its number again replaces it.
    """

    number: int
    reason: str


class _Row(NamedTuple):
    """Where a request's last Accepted stands, and about how long it is."""

    number: int
    num_bytes: int


@dataclass(slots=True)
class _UnderWay(Generic[Release]):
    number: int
    releases: list[Release]
    since: float
    limit_s: float
    oldest_at: float


class Ledger(Generic[Release]):
    """Holds back what may not be told yet.

    Args:
        state: OFF without a journal, else OK.
        first_number: of the first batch; above all that the journal holds.
        max_log_bytes: see MAX_LOG_BYTES.

    Attributes:
        state: of the journal.
        num_batches, num_failures: batches written, and writes that failed or got stuck.
    """

    def __init__(self, state: JournalState, first_number: int = 1, max_log_bytes: int = MAX_LOG_BYTES) -> None:
        self.state = state
        self.num_batches = 0
        self.num_failures = 0
        self._max_log_bytes = max_log_bytes
        self._number = first_number
        self._records: list[AnyRecord] = []
        self._releases: list[Release] = []
        self._begun_at = float("-inf")  # the last batch
        self._oldest_at = 0.0  # when the first of them came
        self._under_way: _UnderWay[Release] | None = None
        self._stuck: int | None = None  # a batch that was given up and may still be written
        self._is_reset = False  # the batch under way begins the journal anew
        self._catches_up = False  # it has begun anew; what was told meanwhile is in the next batch
        self._retry_at = 0.0
        self._rows: OrderedDict[str, _Row] = OrderedDict()  # by request, in the order of their batches
        self._live_bytes = 0  # of those
        self._sizes: deque[tuple[int, int]] = deque()  # batches that are kept, and their bytes
        self._log_bytes = 0

    @property
    def is_recording(self) -> bool:
        """Whether records are of any use at the moment."""
        return self._holds_back or self._is_reset

    @property
    def _holds_back(self) -> bool:
        """Whether what is new waits until it is written."""
        return self.state is JournalState.OK or self._catches_up

    def add(self, records: list[AnyRecord], releases: list[Release], now: float) -> list[Release]:
        """Note records. Returns what may be told at once: `releases`, or nothing if they have to wait."""
        if self.is_recording:
            if not self._records:
                self._oldest_at = now
            self._records += records
        nothing_waits = self._under_way is None and not self._records and not self._releases
        if not self._holds_back or nothing_waits:
            return releases
        self._releases += releases
        return []

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits to be written, or there is no use in waiting."""
        nothing_waits = self._under_way is None and not self._records and not self._releases
        return not self._holds_back or nothing_waits

    def due_in_s(self, now: float) -> float | None:
        """Seconds until `next_batch` has something; None if that takes something to happen first."""
        if not self._holds_back or self._under_way is not None:
            return None
        if self._records or self._releases:
            return max(0.0, self._begun_at + GATHER_S - now)
        return 0.0 if self._rows and now - self._begun_at >= TOUCH_S else None

    def next_batch(self, now: float) -> Batch | None:
        """What is to be written now, if anything is and nothing is being written."""
        return self._begin(now, reset=False) if self.due_in_s(now) == 0.0 else None

    def wants_reset(self, now: float) -> bool:
        """Whether it is time to try again after a failure: then call `reset`."""
        is_free = self._under_way is None and self._stuck is None and not self._catches_up
        return self.state is JournalState.FAILED and is_free and now >= self._retry_at

    def last(self, record: AnyRecord) -> Batch:
        """A batch to be written after whatever is being written, by a process that is about to end."""
        return Batch(self._number, encode([record]), keep_from=0, reset=False)

    def reset(self, requests: list[AnyRecord], now: float) -> Batch:
        """Begin the journal anew with the state of all requests."""
        assert self._under_way is None, "a batch is being written"
        if not self._records:
            self._oldest_at = now
        self._records[:0] = requests
        self._rows.clear()
        self._live_bytes = 0
        self._sizes.clear()
        self._log_bytes = 0
        return self._begin(now, reset=True)

    def saved(self, number: int) -> list[Release]:
        """A batch is on disk. Returns what may be told now."""
        if number == self._stuck:
            self._stuck = None
        if self._under_way is None or self._under_way.number != number:
            return []
        self.num_batches += 1
        if self._is_reset and self._records:
            self._is_reset, self._catches_up = False, True
        else:
            self.state, self._is_reset, self._catches_up = JournalState.OK, False, False
        releases, self._under_way = self._under_way.releases, None
        return releases

    def failed(self, number: int, now: float) -> list[Release]:
        """A batch could not be written. Returns what may be told now: everything."""
        if number == self._stuck:
            self._stuck = None
        if self._under_way is None or self._under_way.number != number:
            return []
        return self._give_up(now)

    def tick(self, now: float) -> list[Release]:
        """Give up a batch that is stuck. Returns what may be told then: everything."""
        if self._under_way is None or now - self._under_way.since <= self._under_way.limit_s:
            return []
        self._stuck = self._under_way.number
        return self._give_up(now)

    def paused(self, seconds: float, now: float) -> None:
        """The caller has not run for so long, and perhaps nor has the disk."""
        if self._under_way is not None:
            self._under_way.since = min(self._under_way.since + seconds, now)

    def lag_s(self, now: float) -> float:
        """Age of the oldest record that is not on disk."""
        if self._under_way is not None:
            return now - self._under_way.oldest_at
        return now - self._oldest_at if self._records else 0.0

    def let_go(self, request_id: str) -> None:
        """A request need not survive any more."""
        self._records = [record for record in self._records if not _introduces(record, request_id)]
        self._forget_row(request_id)

    def overgrown(self) -> str | None:
        """The request whose Accepted is oldest, if the journal is too long: write it again."""
        is_long = self._log_bytes > max(self._max_log_bytes, 4 * self._live_bytes)
        if self.state is not JournalState.OK or not is_long or not self._rows:
            return None
        oldest = next(iter(self._rows))
        return None if any(_introduces(record, oldest) for record in self._records) else oldest

    def _begin(self, now: float, *, reset: bool) -> Batch:
        number = self._number
        self._number += 1
        for record in self._records:
            if isinstance(record, Accepted):
                self._forget_row(record.submit.request_id)
                self._rows[record.submit.request_id] = _Row(number, record.num_bytes)
                self._live_bytes += record.num_bytes
        keep_from = next((row.number for row in self._rows.values()), number)
        payload = encode(self._records)
        self._sizes.append((number, len(payload)))
        self._log_bytes += len(payload)
        while self._sizes[0][0] < keep_from:
            self._log_bytes -= self._sizes.popleft()[1]
        oldest_at = self._oldest_at if self._records else now
        limit_s = STUCK_AFTER_S + len(payload) / SLOW_DISK_BYTES_PER_S
        self._under_way = _UnderWay(number, self._releases, now, limit_s, oldest_at)
        self._is_reset, self._begun_at = reset, now
        self._records, self._releases = [], []
        return Batch(number, payload, keep_from, reset)

    def _forget_row(self, request_id: str) -> None:
        if (row := self._rows.pop(request_id, None)) is not None:
            self._live_bytes -= row.num_bytes

    def _give_up(self, now: float) -> list[Release]:
        assert self._under_way is not None, "nothing is being written"
        releases = self._under_way.releases + self._releases
        self._under_way, self._is_reset, self._catches_up = None, False, False
        self._records, self._releases = [], []
        self.state = JournalState.FAILED
        self.num_failures += 1
        self._retry_at = now + RETRY_AFTER_S
        return releases


def _introduces(record: AnyRecord, request_id: str) -> bool:
    return isinstance(record, Accepted) and record.submit.request_id == request_id
