"""The journal's disk: what was saved survives the scheduler, and it can be slow, full or stuck.

Its file can vanish, be cut, be damaged, and be replaced by a copy of an earlier one.
"""

from collections import deque
from collections.abc import Callable

from common.clocks import Clocks
from scheduler_svc.core.requests.group_commit import BatchFailed, BatchSaved, JournalBatch, JournalLost, JournalResult
from scheduler_svc.core.requests.journal_time import Stamp
from scheduler_svc.core.requests.recovery import Loaded
from tests.sim.world import World

Rows = dict[int, tuple[Stamp, bytes]]

WRITE_S = (0.0005, 0.006)
LOOK_S = 0.5  # between two looks at the file
FAILED_BUT_WRITTEN = 0.1  # the disk broke at the very end of the transaction


class Disk:
    """Keeps batches as `scheduler_svc.server.journal` does: in one transaction each, one after the other.

    Attributes:
        false_since: since when it has not what was written to it; None while it has. A journal begun anew, when it is
            complete, is true.
    """

    def __init__(self, world: World) -> None:
        self.false_since: float | None = None
        self._world = world
        self._rng = world.stream("disk")
        self._rows: Rows = {}
        self._copy: Rows = {}
        self._is_open = self._is_harmed = self._is_lost = False
        self._clocks: Callable[[], Clocks] = lambda: Clocks(0.0, 0.0, 0.0)
        self._wall_offset_s = 0.0
        self._queue: deque[JournalBatch] = deque()
        self._results: list[JournalResult] = []
        self._wake: Callable[[], None] = lambda: None
        self._life = 0
        self._full_until = 0.0
        self._stuck_until = 0.0

    def open(self, wake: Callable[[], None], clocks: Callable[[], Clocks]) -> Loaded:
        """A scheduler starts.

        Args:
            wake: there are results.
            clocks: what its machine's clocks show.
        """
        self._wake, self._clocks = wake, clocks
        self._is_open, self._is_harmed, self._is_lost = True, False, False
        rows, now = sorted(self._rows.items()), clocks()
        age_s, self._wall_offset_s = 0.0, now.wall_s - now.monotonic_s
        if rows:
            last = rows[-1][1][0]
            age_s, self._wall_offset_s = last.age_s(now), last.wall_offset_s(now)
        return Loaded([(number, payload) for number, (_, payload) in rows], age_s, self._wall_offset_s)

    @property
    def last_stamp(self) -> Stamp | None:
        """Of the last row that is there."""
        return self._rows[max(self._rows)][0] if self._rows else None

    def write(self, batch: JournalBatch) -> None:
        """Save a batch some time."""
        self._queue.append(batch)
        if len(self._queue) == 1:
            self._begin()

    def results(self) -> list[JournalResult]:
        """What became of batches, and of the file, since the last call."""
        results, self._results = self._results, []
        return results

    def crash(self) -> None:
        """The scheduler dies: what is being written may or may not be there."""
        if self._queue and not self._is_harmed and not self._is_lost and self._rng.random() < 0.5:
            self._commit(self._queue[0])
        self._life += 1
        self._is_open = False
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

    # --- what happens to the file ---

    def vanish(self) -> None:
        """It is deleted."""
        self._harm({})

    def cut(self) -> None:
        """It loses its last rows; SQLite takes the rest for all there is."""
        numbers = sorted(self._rows)
        kept = numbers[: self._rng.randrange(len(numbers))] if numbers else []
        self._harm({number: self._rows[number] for number in kept})

    def flip(self) -> None:
        """A byte of a batch changes. A scheduler that runs does not read it."""
        if not (filled := [number for number, (_, payload) in self._rows.items() if payload]):
            return
        number = self._rng.choice(filled)
        stamp, payload = self._rows[number]
        at = self._rng.randrange(len(payload))
        flipped = bytes([payload[at] ^ 1 << self._rng.randrange(8)])
        self._rows[number] = (stamp, payload[:at] + flipped + payload[at + 1 :])
        self._is_false()

    def copy(self) -> None:
        """An operator copies it."""
        self._copy = dict(self._rows)

    def put_back(self) -> None:
        """The copy takes its place."""
        self._harm(dict(self._copy))

    def _harm(self, rows: Rows) -> None:
        self._rows = rows
        self._is_harmed = True
        self._is_false()
        self._world.after(self._rng.uniform(0.0, LOOK_S), self.look)

    def _is_false(self) -> None:
        if self.false_since is None:
            self.false_since = self._world.now

    def look(self) -> None:
        """A scheduler that runs notices that the file is not what it has written."""
        if self._is_harmed and self._is_open:
            self._is_harmed, self._is_lost = False, True
            self._rows = {}
            self._results.append(JournalLost("it is gone"))
            self._wake()

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
        self.look()
        if self._is_lost and not batch.begins:
            failure = "the file is lost"
        else:
            failure = "no space left on device" if is_full else ""
            if not is_full or self._rng.random() < FAILED_BUT_WRITTEN:
                self._commit(batch)
        part = ("begins" if batch.begins else "", "completes" if batch.completes else "")
        self._world.say("disk", "batch", batch.number, *part, failure or "saved")
        self._results.append(BatchFailed(batch.number, failure) if failure else BatchSaved(batch.number))
        if self._queue:
            self._begin()
        self._wake()

    def _commit(self, batch: JournalBatch) -> None:
        if batch.begins:
            self._is_lost = False
        if batch.completes:
            self.false_since = None
        kept = {n: row for n, row in self._rows.items() if n >= batch.keep_from}
        self._rows = kept | {batch.number: (Stamp.at(self._clocks(), self._wall_offset_s), batch.payload)}
