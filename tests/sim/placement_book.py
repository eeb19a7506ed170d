"""Which executors waiting sequences are for: where their prefix is cached, unless that one is much busier."""

from collections import Counter

from scheduler_svc.core.executor.block_manager import BlockTable
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.scheduling import placement
from scheduler_svc.core.scheduling.placement import Room
from scheduler_svc.core.sequence import Sequence


class PlacementBook:
    """Stands between the scheduler and its rule, and looks whether the rule keeps its word.

    Args:
        moments: what happened, and how often.
    """

    def __init__(self, moments: Counter[str]) -> None:
        self._moments = moments

    def place(self, sequence: Sequence, room: Room, avoid: str = "") -> ExecutorState | None:
        """Do what `placement.place` does, and check what it chose."""
        chosen = placement.place(sequence, room, avoid)
        if len(room.executors) > 1:
            self._check(sequence, room, avoid, chosen)
        return chosen

    def _check(self, sequence: Sequence, room: Room, avoid: str, chosen: ExecutorState | None) -> None:
        name, loads = sequence.request_id, room.loads
        assert chosen is not None, f"{name} is for no executor, and {list(loads)} have room"
        hits = {epoch: _num_cached(executor, sequence) for epoch, executor in room.executors.items()}
        limit = 2 * min(loads.values()) + 4 * sequence.cost
        if chosen.epoch == sequence.placed:
            limit += sequence.cost * chosen.membership.slowness  # that one's load has its own cost
            has_all = 0 < sequence.num_written <= hits[chosen.epoch]
            assert loads[chosen.epoch] <= limit or has_all or avoid, f"{name} stays at one that is much busier"
            self._moments["stays where it waits"] += 1
            return
        others = [epoch for epoch, each in room.executors.items() if each.name != avoid] or list(loads)
        free = [epoch for epoch in others if loads[epoch] <= limit] or others
        assert chosen.epoch in free, f"{name} is for {chosen.name}, which it has to avoid, or which is much busier"
        best = max(hits[epoch] for epoch in free)
        assert hits[chosen.epoch] == best, f"{name} is for {chosen.epoch}; its prefix is elsewhere: {hits}"
        if best:
            self._moments["goes to its prefix"] += 1
            self._moments["its prefix is too busy"] += max(hits.values()) > best
        else:
            assert loads[chosen.epoch] == min(loads[epoch] for epoch in free), f"{name} is for a busier one: {loads}"


def _num_cached(executor: ExecutorState, sequence: Sequence) -> int:
    """Tokens of a sequence that an executor has not to compute again."""
    salt, tail = sequence.cache_salt.encode(), sequence.tail
    num_full = len(executor.blocks.match(BlockTable(salt), sequence.tokens.tobytes()))
    has_tail = tail is not None and tail.origin == executor.origin and num_full >= tail.first
    return max(num_full * executor.limits.block_size, tail.num_valid if has_tail else 0)
