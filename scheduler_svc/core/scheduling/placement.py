"""Which executor a waiting sequence is for. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.sequence import Sequence


@dataclass(slots=True, eq=False)
class Room:
    """The executors that a waiting sequence may go to now, among those that may run it.

    Attributes:
        able: those that may run it, in the order in which they joined.
        executors: by epoch, those that have a free lane; of them those that have not refused a sequence for lack of
            memory, and whose answers are neither late nor doubted, as far as there are such.
        loads: tokens that what runs on each of these, or waits for it, is expected to take, times its slowness.
        least: of these loads.
    """

    able: list[ExecutorState]
    executors: dict[int, ExecutorState]
    loads: dict[int, float]
    least: float

    @classmethod
    def among(cls, able: list[ExecutorState], placed: Mapping[int, int], avoid: str = "") -> "Room":
        """Those among the executors that may run it; none of the name `avoid`, if there are others.

        Args:
            placed: by epoch, tokens that what waits for each is expected to take.
        """
        room = [e for e in able if e.running.has_free_lane]
        room = [e for e in room if not e.is_full] or room
        if avoid:
            room = [e for e in room if e.name != avoid] or room
        room = [e for e in room if not e.is_doubtful] or [e for e in room if not e.membership.is_late] or room
        loads = {e.epoch: (e.load + placed.get(e.epoch, 0)) * e.membership.slowness for e in room}
        return cls(able, {e.epoch: e for e in room}, loads, min(loads.values(), default=0.0))

    def move(self, sequence: Sequence, before: int, after: int) -> None:
        """Note that a sequence waits for another executor than before."""
        for epoch, cost in ((before, -sequence.cost), (after, sequence.cost)):
            if epoch in self.loads:
                self.loads[epoch] += cost * self.executors[epoch].membership.slowness
        self.least = min(self.loads.values(), default=0.0)


PlacementRule = Callable[[Sequence, Room, str], ExecutorState | None]


def place(sequence: Sequence, room: Room, avoid: str = "") -> ExecutorState | None:
    """On which executor a waiting sequence should run, None if none of those that may run it has a free lane.

    It goes where most of its prefix is cached, unless that executor is much busier than another (more than twice its
    load, and four sequences like this one); then to the least busy one, of equals to the one that has least cached, so
    that conversations share all caches. Where it waits already it stays (`sequence.placed`), as long as that holds, or
    the executor still has all that was computed for it.

    Args:
        avoid: name of an executor that it should not go to, if it can go to another.
    """
    executors, loads = room.executors, room.loads
    if len(executors) <= 1:
        return next(iter(executors.values()), None)
    most = 2 * room.least + 4 * sequence.cost
    placed = executors.get(sequence.placed)
    if placed is not None and placed.name != avoid:
        own = sequence.cost * placed.membership.slowness  # it counts itself
        if loads[placed.epoch] <= most + own or 0 < sequence.num_written <= placed.cached_tokens(sequence, {}):
            return placed
    free = [n for n, load in loads.items() if load <= most]
    if avoid:
        others = [n for n in loads if executors[n].name != avoid]
        free = [n for n in others if n in free] or others or free
    first_keys: dict[int, int] = {}
    cached = {n: tokens for n in free if (tokens := executors[n].cached_tokens(sequence, first_keys))}
    if cached:
        return executors[min(cached, key=lambda n: (-cached[n], loads[n], n))]
    return executors[min(free, key=lambda n: (loads[n], executors[n].blocks.num_cached))]
