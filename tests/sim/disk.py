"""The journal's disk: what was saved survives the scheduler, and it can be slow, full or stuck."""

from collections import deque
from collections.abc import Callable

from scheduler_svc.core.requests.group_commit import BatchFailed, BatchSaved, JournalBatch
from tests.sim.world import World

WRITE_S = (0.0005, 0.006)
FAILED_BUT_WRITTEN = 0.1  # the disk broke at the very end of the transaction


class Disk:
    """Keeps batches as `scheduler_svc.server.journal` does: in one transaction each, one after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.stream("disk")
        self._rows: dict[int, bytes] = {}
        self._queue: deque[JournalBatch] = deque()
        self._results: list[BatchSaved | BatchFailed] = []
        self._wake: Callable[[], None] = lambda: None
        self._life = 0
        self._full_until = 0.0
        self._stuck_until = 0.0

    def open(self, wake: Callable[[], None]) -> list[tuple[int, bytes]]:
        """A scheduler starts. Returns numbers and payloads of the batches that are there."""
        self._wake = wake
        return sorted(self._rows.items())

    def write(self, batch: JournalBatch) -> None:
        """Save a batch some time."""
        self._queue.append(batch)
        if len(self._queue) == 1:
            self._begin()

    def results(self) -> list[BatchSaved | BatchFailed]:
        """What became of batches since the last call."""
        results, self._results = self._results, []
        return results

    def crash(self) -> None:
        """The scheduler dies: what is being written may or may not be there."""
        if self._queue and self._rng.random() < 0.5:
            self._commit(self._queue[0])
        self._life += 1
        self._queue.clear()
        self._results.clear()

    def close(self) -> None:
        """The scheduler ends in order: it does not wait for what it has given up."""
        self.crash()

    def fill_up(self, until: float) -> None:
        """There is no room until an operator makes some."""
        self._full_until = until

    def stick(self, until: float) -> None:
        """Writes do not return."""
        self._stuck_until = until

    def _begin(self) -> None:
        done_at = max(self._world.now + self._rng.uniform(*WRITE_S), self._stuck_until)
        self._world.at(done_at, self._end, self._life)

    def _end(self, life: int) -> None:
        if life != self._life:
            return
        if self._world.now < self._stuck_until:  # it got stuck on its way
            self._world.at(self._stuck_until, self._end, life)
            return
        batch = self._queue.popleft()
        is_full = self._world.now < self._full_until
        if not is_full or self._rng.random() < FAILED_BUT_WRITTEN:
            self._commit(batch)
        self._world.say("disk", "batch", batch.number, "reset" if batch.reset else "", "failed" if is_full else "saved")
        self._results.append(
            BatchFailed(batch.number, "no space left on device") if is_full else BatchSaved(batch.number)
        )
        if self._queue:
            self._begin()
        self._wake()

    def _commit(self, batch: JournalBatch) -> None:
        kept = {} if batch.reset else {n: row for n, row in self._rows.items() if n >= batch.keep_from}
        self._rows = kept | {batch.number: batch.payload}
