"""A Ray cluster in virtual time, as the plan of a fleet sees it and acts on it."""

import itertools
from dataclasses import dataclass, field, replace

from scheduler_svc.client.ray import facts as f
from scheduler_svc.client.ray.plan import FleetPlan

ACTOR_S = 0.5  # from an actor's creation to its first report
JOIN_S = 2.0  # from there to an executor that serves, or waits
LEAVE_S = 0.5
LOOK_S = 0.25


@dataclass
class FakeHost:
    """An actor and its process."""

    name: f.HostName
    node: str
    made_at: float
    holds: bool = False  # the resources of its place
    beside: bool = False
    gpus: tuple[str, ...] = ()
    failed: bool = False
    leave_at: float | None = None
    active: bool = False  # serves, or will without waiting
    deaf: bool = False  # its scheduler does not hear of it

    def life(self, now: float) -> f.Life:
        if now < self.made_at + ACTOR_S:
            return f.Life.PENDING
        if self.failed:
            return f.Life.FAILED
        return f.Life.LEFT if self.leave_at is not None and now >= self.leave_at + LEAVE_S else f.Life.RUNNING


@dataclass
class FakeRay:
    """Nodes with room for so many places each.

    Attributes:
        capacity: of each node that is alive, by id.
        drain_by: of nodes that are to go.
        bad_revisions: executors of these cannot run as configured.
        broken: what must not happen, and did.
        said: lines for the operator.
    """

    capacity: dict[str, int] = field(default_factory=lambda: {"a" * 8: 2, "b" * 8: 2, "c" * 8: 2})
    now: float = 100.0
    drain_by: dict[str, float] = field(default_factory=dict)
    bad_revisions: set[int] = field(default_factory=set)
    wanted: int | None = None
    drain_first: tuple[str, ...] = ()
    hosts: dict[f.HostName, FakeHost] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    min_ready: int = 99
    max_places: int = 0
    actions: list[f.Action] = field(default_factory=list)

    # --- what the plan sees ---

    def look(self) -> f.Seen:
        self._give_places()
        nodes = {node: f.Node(node, f"ip-{node[0]}", self.drain_by.get(node)) for node in self.capacity}
        places = [f.Place(slot, node, slot in self.lost) for slot, node in sorted(self.places.items())]
        hosts = [f.Host(host.name, self._report(host)) for host in self.hosts.values()]
        ready = None
        if self._scheduler_serves():
            ready = frozenset(host.name.in_fleet for host in self.hosts.values() if self.serves(host))
        standbys = frozenset(
            host.name.in_fleet
            for host in self.hosts.values()
            if self.serves(host) and any(self._waits(other) for other in self._beside(host))
        )
        wanted = None if ready is None else self.wanted
        return f.Seen(nodes, places, hosts, ready, standbys, wanted, self.drain_first)

    def _report(self, host: FakeHost) -> f.HostReport | None:
        life = host.life(self.now)
        if life is f.Life.PENDING:
            return None
        return f.HostReport(
            node=host.node,
            address=f"ip-{host.node[0]}",
            pid=1 if life is f.Life.RUNNING else 0,
            life=life,
            is_leaving=host.leave_at is not None,
            is_well=self.serves(host) or self._waits(host),
            gpus=host.gpus,
        )

    def _scheduler_serves(self) -> bool:
        return any(
            host.name.role == "scheduler"
            and host.life(self.now) is f.Life.RUNNING
            and host.leave_at is None
            and self.now >= host.made_at + ACTOR_S + JOIN_S
            for host in self.hosts.values()
        )

    def is_up(self, host: FakeHost) -> bool:
        return (
            host.name.role == "executor"
            and host.life(self.now) is f.Life.RUNNING
            and self.now >= host.made_at + ACTOR_S + JOIN_S
        )

    def serves(self, host: FakeHost) -> bool:
        if not self.is_up(host) or host.leave_at is not None or host.deaf:
            return False
        if not host.active:  # takes what another one of its place has left
            host.active = not any(other.active for other in self._beside(host))
        return host.active

    def _waits(self, host: FakeHost) -> bool:
        return self.is_up(host) and not host.active and host.leave_at is None

    def _beside(self, host: FakeHost) -> list[FakeHost]:
        there = [other for other in self.hosts.values() if other.name.role == "executor" and other is not host]
        running = (f.Life.PENDING, f.Life.RUNNING)
        return [one for one in there if one.name.slot == host.name.slot and one.life(self.now) in running]

    def _give_places(self) -> None:
        for slot, node in sorted(self.places.items()):
            if node:
                continue
            for free, room in self.capacity.items():
                if free not in self.drain_by and list(self.places.values()).count(free) < room:
                    self.places[slot] = free
                    break

    # --- what the plan does ---

    def do(self, action: f.Action, revision: int) -> None:
        self.actions.append(action)
        match action:
            case f.StartScheduler(node):
                assert not any(host.name.role == "scheduler" for host in self.hosts.values()), "two schedulers"
                free = [each for each in self.capacity if each not in self.drain_by] or list(self.capacity)
                self._add(f.HostName("scheduler", "0", 0, revision), node if node in self.capacity else free[0])
            case f.StartKeeper(node):
                self._add(f.HostName("keeper", node[:8], 0, revision), node)
            case f.MakePlace(slot):
                assert slot not in self.places
                self.places[slot] = ""
                self.max_places = max(self.max_places, len(self.places))
            case f.RemovePlace(slot):
                self.places.pop(slot, None)
                self.lost.discard(slot)
                for name in [name for name in self.hosts if name.role == "executor" and name.slot == slot]:
                    del self.hosts[name]
            case f.StartExecutor(slot, number, beside):
                node = self.places[slot]
                assert self._keeper_serves(node), "an executor before its keeper"
                host = self._add(f.HostName("executor", str(slot), number, revision), node)
                host.holds, host.beside = beside is None, beside is not None
                held = [other for other in self._beside(host) if other.holds]
                assert beside is not None or not held, f"{host.name} waits for what {held[0].name} holds"
                host.gpus = (str(slot),) if beside is None else beside.report.gpus
                assert host.gpus == (str(slot),), "the GPUs of another place"
                host.active = not self._beside(host)
                host.failed = revision in self.bad_revisions
            case f.Leave(name):
                if name in self.hosts and self.hosts[name].leave_at is None:
                    self.hosts[name].leave_at = self.now
            case f.Remove(name):
                self.hosts.pop(name, None)
            case f.Say(line):
                self.said.append(line)

    def _add(self, name: f.HostName, node: str) -> FakeHost:
        assert name not in self.hosts, f"{name} twice"
        self.hosts[name] = FakeHost(name, node, self.now)
        return self.hosts[name]

    def _keeper_serves(self, node: str) -> bool:
        keeper = [host for name, host in self.hosts.items() if name.role == "keeper" and host.node == node]
        return any(host.life(self.now) is f.Life.RUNNING for host in keeper)

    # --- what happens to it ---

    def add_node(self, room: int = 2) -> str:
        node = next(letter * 8 for letter in "abcdefghijklmnopqrstuvwxyz" if letter * 8 not in self.ever)
        self.ever.add(node)
        self.capacity[node] = room
        return node

    def __post_init__(self) -> None:
        self.ever = set(self.capacity)

    def kill_node(self, node: str) -> None:
        del self.capacity[node]
        self.drain_by.pop(node, None)
        self.lost |= {slot for slot, at in self.places.items() if at == node}
        self.hosts = {name: host for name, host in self.hosts.items() if host.node != node}

    def kill(self, name: f.HostName) -> None:
        del self.hosts[name]

    def executors(self) -> list[f.HostName]:
        return sorted((name for name in self.hosts if name.role == "executor"), key=str)

    def ready(self) -> set[str]:
        return set(self.look().ready or ())

    # --- time ---

    def run(self, plan: FleetPlan, seconds: float) -> None:
        for _ in range(int(seconds / LOOK_S)):
            seen = self.look()
            if seen.ready is not None:
                self.min_ready = min(self.min_ready, len(seen.ready))
            for action in plan.see(seen, self.now):
                self.do(action, plan.goal.revision)
            self.now += LOOK_S

    def run_until_complete(self, plan: FleetPlan, seconds: float = 300.0) -> float:
        """How long it took."""
        began = self.now
        for _ in itertools.count():
            self.run(plan, LOOK_S)
            if plan.is_complete(self.look()):
                return self.now - began
            assert self.now - began < seconds, self.story()
        raise AssertionError

    def story(self) -> str:
        return "\n".join(
            [*map(str, self.actions[-30:]), *map(str, self.hosts.values()), str(self.places), str(self.drain_by)]
        )


def next_revision(plan: FleetPlan, **changes) -> FleetPlan:
    """The plan of the next manager, which knows nothing of the one before."""
    goal = replace(plan.goal, **({"revision": plan.goal.revision + 1} | changes))
    return FleetPlan(goal, "a" * 8)
