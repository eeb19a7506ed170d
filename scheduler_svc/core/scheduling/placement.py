"""Which executor a waiting sequence is for. Pure."""

from collections.abc import Callable
from typing import NamedTuple

from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.sequence import Sequence


class Room(NamedTuple):
    """The executors that a waiting sequence may go to now, among those that may run it.

    Attributes:
        able: those that may run it, in the order in which they joined.
        executors: those that have a free lane; of them those that have not refused a sequence for lack of memory, and
            whose answers are not late, as far as there are such.
        by_epoch: the same.
        fewest: sequences that run on the least busy one.
    """

    able: list[ExecutorState]
    executors: list[ExecutorState]
    by_epoch: dict[int, ExecutorState]
    fewest: int

    @classmethod
    def among(cls, able: list[ExecutorState], avoid: str = "") -> "Room":
        """Those among the executors that may run it; none of the name `avoid`, if there are others."""
        room = [e for e in able if e.running.has_free_lane]
        room = [e for e in room if not e.is_full] or room
        if avoid:
            room = [e for e in room if e.name != avoid] or room
        room = [e for e in room if not e.membership.is_late] or room
        return cls(able, room, {e.epoch: e for e in room}, min((e.num_running for e in room), default=0))


PlacementRule = Callable[[Sequence, Room], ExecutorState | None]


def place(sequence: Sequence, room: Room) -> ExecutorState | None:
    """On which executor a waiting sequence should run, None if none of those that may run it has a free lane.

    It goes where most of its prefix is cached, unless that executor is much busier than another (more than twice its
    sequences, and four); then where fewest run. Once chosen it stays (`sequence.placed`), as long as that holds.
    """
    executors, most = room.executors, 2 * room.fewest + 4
    if len(executors) <= 1:
        return executors[0] if executors else None
    chosen = room.by_epoch.get(sequence.placed)
    if chosen is None or chosen.num_running > most:
        first_keys: dict[int, int] = {}
        candidates = [
            (-e.cached_tokens(sequence, first_keys), n, e.epoch) for e in executors if (n := e.num_running) <= most
        ]
        chosen = room.by_epoch[min(candidates)[2]]
        sequence.placed = chosen.epoch
    return chosen
