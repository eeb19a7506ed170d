"""What is to be where: the manager's decisions. Pure; level-triggered, as Kubernetes' controllers are.

Each look at the cluster is compared with the goal, and the difference becomes actions. So a manager that died, and
knows nothing of what it did, goes on from what it sees. Only clocks are remembered: how long something has been so.

    node gone ─────────▶ its places are removed ──▶ fewer places than wanted ──▶ MakePlace, and Ray finds a node
    host gone ─────────▶ another one in its place, after a growing delay
    node is to go ─────▶ places elsewhere first; its executors leave once these serve, or when time is short
    too many places ───▶ the least useful executor leaves
    another revision ──▶ `succession.py`, one place after the other
"""

import math

from scheduler_svc.client.ray.delays import Delays
from scheduler_svc.client.ray.facts import (
    Action,
    Goal,
    Host,
    HostName,
    Leave,
    Life,
    MakePlace,
    Place,
    Remove,
    RemovePlace,
    Say,
    Seen,
    StartExecutor,
    StartKeeper,
    StartScheduler,
)
from scheduler_svc.client.ray.succession import successions

HAND_OVER_S = 10.0  # before a node goes: for its executors to leave
PATIENCE_S = 60.0  # with a node that is to go at no known time, until there are others
STRAY_STANDBY_S = 20.0  # a standby in a place where nothing serves has nothing to wait for


class FleetPlan:
    """Turns what is seen into actions.

    Args:
        goal: what is to be.
        scheduler_node: where the scheduler was last, or is to be first; it is where a journal that is not shared lies.

    Attributes:
        is_stopping: everything is to go.
    """

    def __init__(self, goal: Goal, scheduler_node: str) -> None:
        self.goal = goal
        self.is_stopping = False
        self._scheduler_node = scheduler_node
        self._wanted: int | None = None if goal.scales else goal.executors
        self._closing: set[int] = set()
        self._delays = Delays()
        self._since: dict[str, float] = {}

    def see(self, seen: Seen, now_s: float) -> list[Action]:
        """What to do now."""
        if self.is_stopping:
            return self._stop(seen)
        self._learn_wanted(seen)
        actions = self._scheduler(seen, now_s)
        open_places, place_actions = self._places(seen, now_s)
        actions += place_actions
        actions += self._keepers(seen)
        if not any(host.life is Life.RUNNING for host in seen.of_role("scheduler")):
            return actions  # executors are told where it is
        tended = [place for place in open_places if place.node and (_keeper_runs(seen, place) or not self.goal.keeps)]
        for place in tended:
            actions += self._executors(seen, place, now_s)
        return actions + (successions(seen, tended, self.goal) if tended == open_places else [])

    @property
    def wanted(self) -> int:
        """How many executors there are to be."""
        return self.goal.executors if self._wanted is None else self._wanted

    def is_complete(self, seen: Seen) -> bool:
        """Whether all is as asked for: each executor serves, and is of this revision."""
        executors = seen.of_role("executor")
        ready = [host for host in executors if seen.is_ready(host)]
        standbys = {host.name.in_fleet for host in ready} <= seen.with_standby or not self.goal.standby
        current = all(host.name.revision == self.goal.revision and host.is_live for host in executors)
        stays = all(place.node in seen.nodes and not seen.nodes[place.node].is_going for place in seen.places)
        counted = len(ready) == len(seen.places) == self.wanted
        return seen.ready is not None and counted and stays and current and standbys

    def failures(self, seen: Seen) -> list[str]:
        """Why processes cannot run as they are configured."""
        failed = [host for host in seen.hosts if host.life is Life.FAILED]
        return [f"{host.name}: {host.failure or (host.report and host.report.reason)}" for host in failed]

    def is_down(self, seen: Seen) -> bool:
        """Whether all is gone."""
        return not seen.hosts and not seen.places

    def _learn_wanted(self, seen: Seen) -> None:
        """A scheduler that has just started does not know yet; until it does, all stays as it is."""
        if self.goal.scales and seen.wanted is not None:
            self._wanted = seen.wanted
        elif self._wanted is None:
            stay = [place for place in seen.places if not (place.is_lost or self._is_closing(seen, place))]
            going = [place for place in stay if place.node in seen.nodes and seen.nodes[place.node].is_going]
            self._wanted = max(self.goal.executors, len(stay) - len(going))

    def _scheduler(self, seen: Seen, now_s: float) -> list[Action]:
        hosts = seen.of_role("scheduler")
        actions: list[Action] = []
        for host in hosts:
            if host.report is None:
                continue
            self._scheduler_node = host.report.node
            if host.life is Life.LEFT:
                actions.append(Remove(host.name))
            elif not host.is_leaving:
                actions += self._move_scheduler(seen, host.name, host.report.node, now_s)
        if not hosts and self._delays.is_due("scheduler", now_s):
            self._delays.started("scheduler", now_s)
            node = seen.nodes.get(self._scheduler_node)
            stays = node is not None and not node.is_going
            if not stays and self._scheduler_node and not self.goal.journal_is_shared:
                actions.append(Say("the scheduler starts without its journal: requests that were open are lost"))
            actions.append(StartScheduler(self._scheduler_node if stays else ""))
        return actions

    def _move_scheduler(self, seen: Seen, name: HostName, node_id: str, now_s: float) -> list[Action]:
        """Away from a node that is to go, if there is another one."""
        node = seen.nodes.get(node_id)
        if node is None or node.drain_by_s is None or all(other.is_going for other in seen.nodes.values()):
            return []
        if self.goal.journal_is_shared:  # its successor goes on with what is open, the sooner the better
            return [Say(f"the scheduler moves away from {node.address}"), Remove(name)]
        if now_s < node.drain_by_s - HAND_OVER_S:
            return []  # what is open may end
        return [Say(f"the scheduler leaves {node.address}"), Leave(name)]

    def _keepers(self, seen: Seen) -> list[Action]:
        """One on each node that has places."""
        nodes = dict.fromkeys(place.node for place in seen.places if place.node in seen.nodes)
        there = {host.name.where for host in seen.of_role("keeper")}
        wanted = [node for node in nodes if self.goal.keeps]
        starts = [StartKeeper(node) for node in wanted if node[:8] not in there]
        kept = {node[:8] for node in wanted}
        return [*starts, *(Remove(host.name) for host in seen.of_role("keeper") if host.name.where not in kept)]

    def _places(self, seen: Seen, now_s: float) -> tuple[list[Place], list[Action]]:
        """Places that stay, and what to do about those that do not, are missing or are too many."""
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
        wanted, num_ready = self.wanted, sum(1 for place in open_places if _serves(seen, place))
        for place in going:
            actions += self._leave_node(seen, place, now_s, is_replaced=num_ready >= wanted)
        taken = {place.slot for place in seen.places}
        for _ in range(wanted - len(open_places)):
            slot = next(number for number in range(len(taken) + 1) if number not in taken)
            taken.add(slot)
            actions.append(MakePlace(slot))
        for place in self._least_useful(seen, open_places)[: max(0, len(open_places) - wanted)]:
            open_places.remove(place)
            actions += self._close(seen, place)
        return open_places, actions

    def _is_closing(self, seen: Seen, place: Place) -> bool:
        """Whether a place's executor was told to leave, perhaps by an earlier manager, and has no successor there."""
        if place.slot in self._closing:
            return True
        hosts = seen.in_place(place.slot)
        node = seen.nodes.get(place.node)
        ends = (node is not None and node.is_going) or all(host.name.revision == self.goal.revision for host in hosts)
        return bool(hosts) and ends and all(host.is_leaving for host in hosts)

    def _leave_node(self, seen: Seen, place: Place, now_s: float, *, is_replaced: bool) -> list[Action]:
        node = seen.nodes[place.node]
        assert node.drain_by_s is not None
        since = self._since.setdefault(node.id, now_s)
        is_late = now_s >= (since + PATIENCE_S if math.isinf(node.drain_by_s) else node.drain_by_s - HAND_OVER_S)
        if not (is_replaced or is_late or not _serves(seen, place)):
            return []
        return [Say(f"executor {place.slot} leaves {node.address}, which is to go"), *self._close(seen, place)]

    def _close(self, seen: Seen, place: Place) -> list[Action]:
        """Let a place's executor leave; the place goes when it has left."""
        self._closing.add(place.slot)
        hosts = [host for host in seen.in_place(place.slot) if host.is_live]
        if not any(host.life is Life.RUNNING for host in hosts):
            return [RemovePlace(place.slot)]
        standbys_first = sorted(hosts, key=seen.is_ready)
        return [Leave(host.name) for host in standbys_first]

    def _least_useful(self, seen: Seen, places: list[Place]) -> list[Place]:
        """Those that wait for resources first; then as the scheduler says; then the youngest."""
        order = {name: at for at, name in enumerate(seen.drain_first)}

        def use(place: Place) -> tuple[bool, int, int]:
            hosts = seen.in_place(place.slot)
            return (
                _serves(seen, place),
                min((order.get(h.name.in_fleet, len(order)) for h in hosts), default=0),
                -place.slot,
            )

        return sorted(places, key=use)

    def _executors(self, seen: Seen, place: Place, now_s: float) -> list[Action]:
        """Keep a place that stays complete."""
        hosts = seen.in_place(place.slot)
        gone = [host for host in hosts if _is_over(host, self.goal.revision)]
        actions: list[Action] = [Remove(host.name) for host in gone]
        live = [host for host in hosts if host.is_live]
        failed = [host for host in hosts if host.life is Life.FAILED and host not in gone]
        if not live and not failed and not any(host.is_leaving for host in hosts if host not in gone):
            key = f"place {place.slot}"
            if self._delays.is_due(key, now_s):
                self._delays.started(key, now_s)
                actions.append(StartExecutor(place.slot, _free_number(hosts)))
        elif self.goal.standby and hosts == live and len(live) == 1 and self._has_come(seen, live[0]):
            actions.append(StartExecutor(place.slot, _free_number(hosts), beside=live[0]))
        return actions + self._stray_standby(seen, place, live, now_s)

    def _has_come(self, seen: Seen, host: Host) -> bool:
        """Whether an executor is there to stay."""
        return host.name.revision == self.goal.revision and seen.is_ready(host)

    def _stray_standby(self, seen: Seen, place: Place, live: list[Host], now_s: float) -> list[Action]:
        """A standby whose executor has ended, and whose memory is gone as well, would wait for ever."""
        key = f"stray {place.slot}"
        alone = len(live) == 1 and live[0].report is not None and live[0].report.is_well and live[0].report.pid != 0
        if seen.ready is None or not alone or seen.is_ready(live[0]):
            self._since.pop(key, None)
            return []
        if now_s - self._since.setdefault(key, now_s) < STRAY_STANDBY_S:
            return []
        del self._since[key]
        return [Say(f"{live[0].name} waits for memory that is gone, and is replaced"), Remove(live[0].name)]

    def _stop(self, seen: Seen) -> list[Action]:
        """Executors leave, then the scheduler, then the rest goes."""
        executors, schedulers = seen.of_role("executor"), seen.of_role("scheduler")
        running = [host for host in executors if host.life is Life.RUNNING]
        if running:
            return [Leave(host.name) for host in running if not host.is_leaving]
        actions: list[Action] = [Remove(host.name) for host in executors]
        actions += [RemovePlace(place.slot) for place in seen.places]
        running = [host for host in schedulers if host.life is Life.RUNNING]
        if running:
            return actions + [Leave(host.name) for host in running if not host.is_leaving]
        return actions + [Remove(host.name) for host in [*schedulers, *seen.of_role("keeper")]]


def _serves(seen: Seen, place: Place) -> bool:
    return any(seen.is_ready(host) for host in seen.in_place(place.slot))


def _keeper_runs(seen: Seen, place: Place) -> bool:
    return any(host.name.where == place.node[:8] and host.life is Life.RUNNING for host in seen.of_role("keeper"))


def _is_over(host: Host, revision: int) -> bool:
    """Whether a host's actor has nothing to do any more."""
    return host.life is Life.LEFT or (host.life is Life.FAILED and host.name.revision < revision)


def _free_number(hosts: list[Host]) -> int:
    taken = {host.name.number for host in hosts}
    return next(number for number in range(len(taken) + 1) if number not in taken)
