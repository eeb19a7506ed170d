"""Where executors' processes run: a supervisor starts each again when it has ended."""

from dataclasses import dataclass
from random import Random

from tests.sim.executors import ExecutorProcess, Pace
from tests.sim.keepers import KeeperHost
from tests.sim.models import Build
from tests.sim.sockets import Port
from tests.sim.world import World

RESTART_S = (0.02, 0.4)
WATCH_S = 0.7  # how often a supervisor looks for a process whose step never ends


@dataclass
class Slot:
    """A place for one process.

    Attributes:
        build: of the next process.
        must_be_large: one has to hold what the others cannot.
        down_until: none is started before.
        partner: name of the slot that it shares work with: only one of the two serves if both could.
    """

    name: str
    build: Build
    must_be_large: bool
    process: ExecutorProcess | None = None
    down_until: float = 0.0
    partner: str = ""


class Rack:
    """All executors.

    Args:
        keeper: of the machine that all of them run on; None if it has none.
        num_standbys: how many of the executors have a standby.
    """

    def __init__(
        self,
        world: World,
        port: Port,
        builds: list[Build],
        pace: Pace,
        keeper: KeeperHost | None = None,
        num_standbys: int = 0,
    ) -> None:
        self.slots = [Slot(f"ex{i}", build, must_be_large=i == 0) for i, build in enumerate(builds)]
        for slot in self.slots[:num_standbys]:
            slot.partner = f"{slot.name}b"
            self.slots.append(Slot(slot.partner, slot.build, slot.must_be_large, partner=slot.name))
        self._keeper = keeper
        self._num_started = 0
        self._world = world
        self._port = port
        self._pace = pace
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
        others = [other.process for other in self.slots if other.name == slot.partner and other.process is not None]
        is_standby = any(not other.is_waiting and other.build == slot.build for other in others)
        self._num_started += 1
        what = "waits with" if is_standby else "starts with"
        self._world.say(slot.name, what, slot.build.model, slot.build.library)
        process = (self._world, self._port, slot.name, slot.build, self._pace, self._rng, self._exited)
        slot.process = ExecutorProcess(*process, self._keeper, self._num_started, is_standby=is_standby)
        slot.process.poison_kills = self.poison_kills

    def _exited(self, process: ExecutorProcess, code: int) -> None:
        slot = self.slot(process)
        slot.process = None
        self._world.after(self._rng.uniform(*RESTART_S), self._start, slot)

    def _watch(self) -> None:
        """Kill processes that the scheduler gave up because their step never ended."""
        for process in self.alive:
            if process.is_stuck and process.epoch is None:
                process.kill()
        self._world.after(WATCH_S, self._watch)
