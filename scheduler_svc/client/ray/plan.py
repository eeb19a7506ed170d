"""What is to be where: the manager's decisions. Pure; level-triggered, as Kubernetes' controllers are.

Each look at the cluster is compared with the goal, and the difference becomes actions. So a manager that died, and
knows nothing of what it did, goes on from what it sees. Only clocks are remembered: how long something has been so.

    node gone ─────────▶ its places are removed ──▶ fewer places than wanted ──▶ MakePlace, and Ray finds a node
    host gone ─────────▶ another one in its place, after a growing delay
    node is to go ─────▶ places elsewhere first; its executors leave once these serve, or when time is short
    too many places ───▶ the least useful executor leaves
    another revision ──▶ `succession.py`, one place after the other
"""

from scheduler_svc.client.ray.clocks import Delays, Durations
from scheduler_svc.client.ray.facts import (
    Action,
    Goal,
    Host,
    HostName,
    Leave,
    Life,
    Place,
    Remove,
    RemovePlace,
    Say,
    Seen,
    StartExecutor,
    StartKeeper,
    StartScheduler,
    free_number,
)
from scheduler_svc.client.ray.places import HAND_OVER_S, Places, serves
from scheduler_svc.client.ray.succession import successions

IDLE_S = 10.0  # an executor that has not served for so long, while the scheduler answers, is no loss
RETRY_S = 60.0  # what could not run as configured is tried again: a file may have come, or memory
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
        self._delays = Delays()
        self._durations = Durations()
        self._places = Places(goal, self._durations)
        self._beside: set[HostName] = set()  # started as standbys or successors of others

    def see(self, seen: Seen, now_s: float) -> list[Action]:
        """What to do now."""
        if self.is_stopping:
            return _stop(seen)
        idle = self._idle(seen, now_s)
        open_places, actions = self._places.see(seen, idle, now_s)
        actions += [*self._retries(seen, now_s), *self._scheduler(seen, now_s), *self._keepers(seen)]
        placed = [place for place in open_places if place.node]
        tended = [place for place in placed if _keeper_runs(seen, place) or not self.goal.keeps]
        if any(host.life is Life.RUNNING and not host.is_leaving for host in seen.of_role("scheduler")):
            for place in tended:  # executors are told where the scheduler is
                actions += self._executors(seen, place, now_s)
            actions += successions(seen, placed, idle, self.goal) if tended == placed else []
        actions = [action for action in actions if self._may(action, now_s)]
        for action in actions:
            if isinstance(action, StartExecutor):
                name = HostName("executor", str(action.slot), action.number, self.goal.revision)
                self._beside = self._beside - {name} if action.beside is None else self._beside | {name}
        return actions

    @property
    def wanted(self) -> int:
        """How many executors there are to be."""
        return self.goal.executors if self._places.wanted is None else self._places.wanted

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
        """Why processes cannot run as they are configured; without executors that are to be replaced."""
        failed = [host for host in seen.hosts if host.life is Life.FAILED and not self._is_old(host)]
        return [f"{host.name}: {host.failure or (host.report and host.report.reason)}" for host in failed]

    def is_down(self, seen: Seen) -> bool:
        """Whether all is gone."""
        return not seen.hosts and not seen.places

    def _is_old(self, host: Host) -> bool:
        return host.name.role == "executor" and host.name.revision < self.goal.revision

    def _may(self, action: Action, now_s: float) -> bool:
        """Whether something is not started too soon after it was started last."""
        match action:
            case StartExecutor(slot, _, beside):
                return self._delays.starts(f"executor {slot} {beside is None}", now_s)
            case StartKeeper(node):
                return self._delays.starts(f"keeper {node}", now_s)
        return True

    def _idle(self, seen: Seen, now_s: float) -> set[int]:
        """Slots whose executors have not served for a while, although the scheduler answers."""
        idle = set()
        for place in seen.places:
            is_idle = seen.ready is not None and not serves(seen, place)
            if self._durations.of(f"idle {place.slot}", now_s, holds=is_idle) >= IDLE_S:
                idle.add(place.slot)
        return idle

    def _retries(self, seen: Seen, now_s: float) -> list[Action]:
        """Hosts whose processes could not run end after a while, and others are started."""
        over: list[Action] = []
        for host in seen.hosts:
            failed_s = self._durations.of(f"failed {host.name}", now_s, holds=host.life is Life.FAILED)
            if failed_s >= RETRY_S or (host.life is Life.FAILED and self._is_old(host)):
                over.append(Remove(host.name))
        return over

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
        if not hosts and self._delays.starts("scheduler", now_s):
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

    def _executors(self, seen: Seen, place: Place, now_s: float) -> list[Action]:
        """Keep a place that stays complete."""
        hosts = seen.in_place(place.slot)
        left = [host for host in hosts if host.life is Life.LEFT]
        live = [host for host in hosts if host.is_live]
        actions: list[Action] = [Remove(host.name) for host in left]
        is_free = not live and not any(host.is_leaving for host in hosts if host not in left)
        is_alone = hosts == live and len(live) == 1 and not self._is_old(live[0])
        if is_free and not any(self._says_it_cannot_run(host) for host in hosts):
            actions.append(StartExecutor(place.slot, free_number(hosts)))
        elif self.goal.standby and is_alone and serves(seen, place):
            actions.append(StartExecutor(place.slot, free_number(hosts), beside=live[0]))
        return actions + self._stray_standby(seen, place, live, now_s)

    def _says_it_cannot_run(self, host: Host) -> bool:
        """Whether another one of this revision would fail as well. One that failed beside an executor says nothing
        against one of its own."""
        return host.life is Life.FAILED and host.name not in self._beside and not self._is_old(host)

    def _stray_standby(self, seen: Seen, place: Place, live: list[Host], now_s: float) -> list[Action]:
        """A standby whose executor has ended, and whose memory is gone as well, would wait for ever."""
        alone = len(live) == 1 and live[0].report is not None and live[0].report.is_well and live[0].report.pid != 0
        waits = alone and seen.ready is not None and not seen.is_ready(live[0])
        if self._durations.of(f"stray {place.slot}", now_s, holds=waits) < STRAY_STANDBY_S:
            return []
        return [Say(f"{live[0].name} waits for memory that is gone, and is replaced"), Remove(live[0].name)]


def _stop(seen: Seen) -> list[Action]:
    """The scheduler leaves, whose open answers the executors finish; then these, and then the rest goes."""
    executors, schedulers = seen.of_role("executor"), seen.of_role("scheduler")
    for role in (schedulers, executors):
        running = [host for host in role if host.life is Life.RUNNING]
        if running:
            return [Leave(host.name) for host in running if not host.is_leaving]
    gone = [*executors, *schedulers, *seen.of_role("keeper")]
    return [*(Remove(host.name) for host in gone), *(RemovePlace(place.slot) for place in seen.places)]


def _keeper_runs(seen: Seen, place: Place) -> bool:
    return any(host.name.where == place.node[:8] and host.life is Life.RUNNING for host in seen.of_role("keeper"))
