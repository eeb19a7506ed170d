"""Results of a batch on their way to the store: a few at a time, and with them how far the input was taken. Pure."""

from collections import deque

from scheduler_svc.store.records import BatchResult, Progress

MAX_WAITING_BYTES = 8 * 2**20  # then no line is begun until the store has some
GROUP_BYTES = 2**20  # of results that are written at once; one may be larger


class LineResults:
    """What has begun, and what has come of it.

    Args:
        progress: of the store when the worker took the batch up.
    """

    def __init__(self, progress: Progress) -> None:
        self._next = progress
        self._open: dict[int, Progress] = {}  # lines that have begun, and no result, in their order
        self._waiting: deque[BatchResult] = deque()
        self._num_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether no result waits for the store."""
        return not self._waiting

    @property
    def has_room(self) -> bool:
        """Whether a line may begin."""
        return self._num_bytes < MAX_WAITING_BYTES

    def begin(self, line: int, offset: int, next_offset: int) -> None:
        """The next line of the input is taken: it has these bytes."""
        self._open[line] = Progress(offset, line)
        self._next = Progress(next_offset, line + 1)

    def skip(self, line: int) -> None:
        """The line that has begun has a result in the store already."""
        del self._open[line]

    def add(self, result: BatchResult) -> None:
        """A line that has begun has a result."""
        del self._open[result.line]
        self._waiting.append(result)
        self._num_bytes += len(result.body)

    def take(self) -> tuple[list[BatchResult], Progress]:
        """Results to write now, and how far the input is taken once they are written: all lines before have one."""
        group: list[BatchResult] = []
        num_bytes = 0
        while self._waiting and (not group or num_bytes < GROUP_BYTES):
            result = self._waiting.popleft()
            group.append(result)
            num_bytes += len(result.body)
        self._num_bytes -= num_bytes
        return group, self._progress()

    def _progress(self) -> Progress:
        """The first line without a result in the store, once those that were taken are written."""
        first = next(iter(self._open.values()), self._next)
        if self._waiting:  # of lower lines, maybe: these are told of when they are written
            lowest = min(result.line for result in self._waiting)
            if lowest < first.next_line:
                return Progress(0, 0)
        return first
