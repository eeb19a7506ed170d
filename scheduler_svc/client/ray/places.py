"""Which places stay, which are to be made, and which are given up. Pure."""

import math

from scheduler_svc.client.ray.clocks import Durations
from scheduler_svc.client.ray.facts import Action, Goal, Leave, Life, MakePlace, Place, RemovePlace, Say, Seen

HAND_OVER_S = 10.0  # before a node goes: for its executors to leave
PATIENCE_S = 60.0  # with a node that is to go at no known time, until there are others


class Places:
    """The places of a fleet.

    Attributes:
        wanted: how many there are to be; None until it is known.
    """

    def __init__(self, goal: Goal, durations: Durations) -> None:
        self.wanted: int | None = None if goal.scales else goal.executors
        self._goal = goal
        self._durations = durations
        self._closing: set[int] = set()

    def see(self, seen: Seen, idle: set[int], now_s: float) -> tuple[list[Place], list[Action]]:
        """Places that stay, and what to do about those that do not, are missing or are too many.

        Args:
            idle: slots in which nothing has served for some time.
        """
        self._learn_wanted(seen)
        assert self.wanted is not None
        actions: list[Action] = []
        open_places: list[Place] = []
        going: list[Place] = []
        for place in seen.places:
            node = seen.nodes.get(place.node)
            if place.is_lost or (place.node and node is None):
                actions.append(RemovePlace(place.slot))
            elif self._is_closing(seen, place):
                if not any(host.life in (Life.PENDING, Life.RUNNING) for host in seen.in_place(place.slot)):
                    actions.append(RemovePlace(place.slot))
            elif node is not None and node.is_going:
                going.append(place)
            else:
                open_places.append(place)
        self._closing &= {place.slot for place in seen.places}
        num_ready = sum(1 for place in open_places if serves(seen, place))
        for place in going:
            is_dispensable = num_ready >= self.wanted or place.slot in idle or not _runs(seen, place)
            actions += self._leave_node(seen, place, now_s, is_dispensable=is_dispensable)
        taken = {place.slot for place in seen.places}
        for _ in range(self.wanted - len(open_places)):
            slot = next(number for number in range(len(taken) + 1) if number not in taken)
            taken.add(slot)
            actions.append(MakePlace(slot))
        for place in _least_useful(seen, open_places)[: max(0, len(open_places) - self.wanted)]:
            open_places.remove(place)
            actions += self._close(seen, place)
        return open_places, actions

    def _learn_wanted(self, seen: Seen) -> None:
        """A scheduler that has just started does not know yet; until it does, all stays as it is."""
        if self._goal.scales and seen.wanted is not None:
            self.wanted = seen.wanted
        elif self.wanted is None:
            stay = [place for place in seen.places if not (place.is_lost or self._is_closing(seen, place))]
            going = [place for place in stay if place.node in seen.nodes and seen.nodes[place.node].is_going]
            self.wanted = max(self._goal.executors, len(stay) - len(going))

    def _is_closing(self, seen: Seen, place: Place) -> bool:
        """Whether a place's executor was told to leave, perhaps by an earlier manager, and has no successor there."""
        if place.slot in self._closing:
            return True
        hosts = seen.in_place(place.slot)
        node = seen.nodes.get(place.node)
        ends = (node is not None and node.is_going) or all(host.name.revision == self._goal.revision for host in hosts)
        return bool(hosts) and ends and all(host.is_leaving for host in hosts)

    def _leave_node(self, seen: Seen, place: Place, now_s: float, *, is_dispensable: bool) -> list[Action]:
        node = seen.nodes[place.node]
        assert node.drain_by_s is not None
        known_s = self._durations.of(f"node {node.id} is to go", now_s, holds=True)
        is_late = known_s >= PATIENCE_S if math.isinf(node.drain_by_s) else now_s >= node.drain_by_s - HAND_OVER_S
        if not (is_dispensable or is_late):
            return []
        return [Say(f"executor {place.slot} leaves {node.address}, which is to go"), *self._close(seen, place)]

    def _close(self, seen: Seen, place: Place) -> list[Action]:
        """Let a place's executor leave; the place goes when it has left."""
        self._closing.add(place.slot)
        hosts = seen.in_place(place.slot)
        if not _runs(seen, place):
            return [RemovePlace(place.slot)]
        return [Leave(host.name) for host in sorted(hosts, key=seen.is_ready) if host.is_live]  # standbys first


def serves(seen: Seen, place: Place) -> bool:
    """Whether the scheduler gives a place's executor work."""
    return any(seen.is_ready(host) for host in seen.in_place(place.slot))


def _runs(seen: Seen, place: Place) -> bool:
    return any(host.life is Life.RUNNING for host in seen.in_place(place.slot))


def _least_useful(seen: Seen, places: list[Place]) -> list[Place]:
    """Those that wait for resources first; then as the scheduler says; then the youngest."""
    order = {name: at for at, name in enumerate(seen.drain_first)}

    def use(place: Place) -> tuple[bool, int, int]:
        at = (order.get(host.name.in_fleet, len(order)) for host in seen.in_place(place.slot))
        return serves(seen, place), min(at, default=0), -place.slot

    return sorted(places, key=use)
