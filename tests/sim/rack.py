"""Where executors' processes run: a supervisor starts each again when it has ended."""

from collections import deque
from dataclasses import dataclass, replace
from random import Random

from tests.sim.executors import Ending, ExecutorProcess
from tests.sim.keeper_link import Keeping
from tests.sim.keepers import KeeperHost
from tests.sim.models import Build
from tests.sim.sockets import Port
from tests.sim.steps import Pace
from tests.sim.world import World

RESTART_S = (0.02, 0.4)
WATCH_S = 0.7  # how often a supervisor looks for a process whose step never ends


@dataclass
class Slot:
    """A place for one process.

    Attributes:
        build: of the next process.
        must_be_large: one has to hold what the others cannot.
        host: the keeper of its machine, if there is one.
        team: number of the executor that its process is, or is a standby of: one of a team serves.
        kept_as: the next process asks for a pool of this build's kind; None for its own.
        down_until: none is started before.
    """

    name: str
    build: Build
    must_be_large: bool
    host: KeeperHost | None
    team: int
    kept_as: Build | None = None
    process: ExecutorProcess | None = None
    down_until: float = 0.0


@dataclass(frozen=True)
class Machines:
    """Where executors run.

    Attributes:
        hosts: a keeper for each machine; empty if nothing is kept.
        num_standbys: of each executor.
        asks: whether processes ask the keeper which of them wait; otherwise those do that start while one of their team
            serves.
    """

    hosts: tuple[KeeperHost, ...] = ()
    num_standbys: tuple[int, ...] = ()
    asks: bool = False


class Rack:
    """All executors.

    Attributes:
        endings: of the next processes that get a pool.
    """

    def __init__(self, world: World, port: Port, builds: list[Build], pace: Pace, machines: Machines) -> None:
        hosts = machines.hosts or (None,)
        self.slots = [Slot(f"ex{i}", build, i == 0, hosts[i % len(hosts)], i) for i, build in enumerate(builds)]
        for slot, num_standbys in zip(list(self.slots), machines.num_standbys, strict=False):
            self.slots += [replace(slot, name=f"{slot.name}{letter}") for letter in "bcd"[:num_standbys]]
        self.endings: deque[Ending] = deque()
        self._num_started = 0
        self._world = world
        self._port = port
        self._pace = pace
        self._asks = machines.asks
        self._rng: Random = world.stream("executors")
        self.poison_kills = self._rng.random() < 0.6
        for slot in self.slots:
            world.after(self._rng.uniform(0.0, 0.1), self._start, slot)
        world.after(WATCH_S, self._watch)

    @property
    def alive(self) -> list[ExecutorProcess]:
        """Processes that run."""
        return [slot.process for slot in self.slots if slot.process is not None]

    def slot(self, process: ExecutorProcess) -> Slot:
        """Where a process runs."""
        return next(slot for slot in self.slots if slot.process is process)

    def _start(self, slot: Slot) -> None:
        if self._world.now < slot.down_until:
            self._world.at(slot.down_until, self._start, slot)
            return
        team = [each.process for each in self.slots if each.team == slot.team and each.process is not None]
        serves = any(not each.is_waiting and each.build == slot.build for each in team)
        is_standby = None if self._asks else slot.host is not None and serves
        what = "waits with" if is_standby else "starts with"
        self._world.say(slot.name, what, slot.build.model, slot.build.library)
        self._num_started += 1
        keeping = None
        if slot.host is not None:
            kept_as, slot.kept_as = slot.kept_as or slot.build, None
            keeping = Keeping(slot.host, slot.name, self._num_started, kept_as, is_standby)
        process = (self._world, self._port, slot.name, slot.build, self._pace, self._rng, self._exited)
        slot.process = ExecutorProcess(*process, keeping, self._next_ending)
        slot.process.thread.poison_kills = self.poison_kills

    def _next_ending(self) -> Ending | None:
        return self.endings.popleft() if self.endings else None

    def _exited(self, process: ExecutorProcess, code: int) -> None:
        slot = self.slot(process)
        slot.process = None
        self._world.after(self._rng.uniform(*RESTART_S), self._start, slot)

    def _watch(self) -> None:
        """Kill processes that the scheduler gave up because their step never ended. Where a standby waits, a keeper
        does."""
        for slot in self.slots:
            process, team = slot.process, [each.process for each in self.slots if each.team == slot.team]
            has_standby = any(each is not None and each.is_waiting for each in team)
            if process is not None and process.is_stuck and process.epoch is None and not has_standby:
                process.kill()
        self._world.after(WATCH_S, self._watch)
