"""Which batches of the journal are still needed, and how long they are. Pure."""

from collections import OrderedDict, deque
from typing import NamedTuple

from scheduler_svc.core.requests.journal_records import AnyRecord, LifeRecord, RequestRecord, SharesRecord

LIFE, SHARES = "", " "  # in place of a request's id: the LifeRecord, and the SharesRecord of all accounts
LIFE_KEEPS = 64  # batches that are kept for nothing else, until they are written again


class _Row(NamedTuple):
    """Where the last RequestRecord of a request stands, or one of the other two, and about how long it is."""

    number: int
    num_bytes: int


class LogLength:
    """Follows the batches that are handed over, and the requests in them.

    Args:
        max_bytes: beyond it the oldest request is to be written again, so that what is before it can be deleted.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rows: OrderedDict[str, _Row] = OrderedDict()  # by request, in the order of their batches
        self._live_bytes = 0  # of those
        self._sizes: deque[tuple[int, int]] = deque()  # batches that are kept, and their bytes
        self._num_bytes = 0
        self._number = 0  # of the last batch

    @property
    def has_requests(self) -> bool:
        """Whether a request in the log is still needed."""
        return len(self._rows) > (LIFE in self._rows) + (SHARES in self._rows)

    @property
    def overgrown(self) -> str | None:
        """The request whose RequestRecord is oldest, or LIFE or SHARES, if the log is too long."""
        oldest, row = next(iter(self._rows.items()), (None, None))
        if oldest in (LIFE, SHARES) and row is not None:
            needed_from = next((r.number for name, r in self._rows.items() if name not in (LIFE, SHARES)), self._number)
            if needed_from - row.number > LIFE_KEEPS:
                return oldest
        is_long = self._num_bytes > max(self._max_bytes, 4 * self._live_bytes)
        return oldest if is_long else None

    def add(self, number: int, records: list[AnyRecord], num_bytes: int) -> int:
        """A batch with these records is handed over. Returns the number of the first batch that is needed."""
        for record in records:
            match record:
                case RequestRecord():
                    name = record.submit.request_id
                case LifeRecord():
                    name = LIFE
                case SharesRecord(is_whole=True):
                    name = SHARES
                case _:
                    continue
            self.forget(name)
            self._rows[name] = _Row(number, record.num_bytes)
            self._live_bytes += record.num_bytes
        self._number = number
        keep_from = next((row.number for row in self._rows.values()), number)
        self._sizes.append((number, num_bytes))
        self._num_bytes += num_bytes
        while self._sizes[0][0] < keep_from:
            self._num_bytes -= self._sizes.popleft()[1]
        return keep_from

    def forget(self, request_id: str) -> None:
        """A request is not needed any more."""
        if (row := self._rows.pop(request_id, None)) is not None:
            self._live_bytes -= row.num_bytes

    def clear(self) -> None:
        """The log is begun anew."""
        self._rows.clear()
        self._sizes.clear()
        self._live_bytes = self._num_bytes = 0
