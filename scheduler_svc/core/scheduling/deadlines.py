"""When sequences have to end at the latest. Pure: the time is the caller's."""

import heapq
from collections.abc import Iterator

from scheduler_svc.core.sequence import Sequence, State

FEW = 64  # entries that are not worth looking through


class Deadlines:
    """A heap of sequences by deadline. Those that have ended stay in it until they are too many."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._compact_at = FEW

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, sequence: Sequence) -> None:
        """Note a sequence's deadline, if it has one."""
        if sequence.deadline is None:
            return
        if len(self._heap) >= self._compact_at:
            self._heap = [entry for entry in self._heap if entry[2].state is not State.FINISHED]
            heapq.heapify(self._heap)
            self._compact_at = max(FEW, 2 * len(self._heap))
        heapq.heappush(self._heap, (sequence.deadline, sequence.arrival, sequence))

    def passed(self, now: float) -> Iterator[Sequence]:
        """Take out the sequences whose deadline has passed and that have not ended."""
        while self._heap and self._heap[0][0] <= now:
            _, _, sequence = heapq.heappop(self._heap)
            if sequence.state is not State.FINISHED:
                yield sequence
