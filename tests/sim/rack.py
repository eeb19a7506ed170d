"""Where executors' processes run: a supervisor starts each again when it has ended."""

from dataclasses import dataclass
from random import Random

from tests.sim.executors import ExecutorProcess, Pace
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
    """

    name: str
    build: Build
    must_be_large: bool
    process: ExecutorProcess | None = None
    down_until: float = 0.0


class Rack:
    """All executors."""

    def __init__(self, world: World, port: Port, builds: list[Build], pace: Pace) -> None:
        self.slots = [Slot(f"ex{i}", build, must_be_large=i == 0) for i, build in enumerate(builds)]
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
        self._world.say(slot.name, "starts with", slot.build.model, slot.build.library)
        slot.process = ExecutorProcess(
            self._world, self._port, slot.name, slot.build, self._pace, self._rng, self._exited
        )
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
