"""The machine that the scheduler runs on: its clocks can be set, it can be started anew, and it can stand still."""

from random import Random

from scheduler_svc.core.requests.journal_time import Clocks
from tests.sim.world import World

STARTED_AT_S = 2e9  # wall-clock time at the start of the run


class Machine:
    """Clocks in virtual time.

    Attributes:
        num_boots: how often it was started.
        rested_s: time that went by for it alone.
    """

    def __init__(self, world: World) -> None:
        self.num_boots = 1
        self._world = world
        self._rng: Random = world.stream("machine")
        self._wall_s = STARTED_AT_S
        self._booted_at = -self._rng.uniform(0.0, 1e6)
        self.rested_s = 0.0

    def set_wall(self, by_s: float) -> None:
        """Somebody, or NTP, sets the wall's clock."""
        self._wall_s += by_s

    def reboot(self) -> None:
        """It is started anew; nothing but the disk and the wall's clock goes on."""
        self.num_boots += 1
        self._booted_at = self._world.now + self.rested_s

    def rest(self, seconds: float) -> None:
        """So much time goes by for which no process of the run has anything to do."""
        self.rested_s += seconds

    def clocks(self, monotonic_s: float) -> Clocks:
        """What the clocks show to a process whose own shows this."""
        passed_s = self._world.now + self.rested_s
        boot = self.num_boots.to_bytes(16, "big")
        return Clocks(self._wall_s + passed_s, passed_s - self._booted_at, monotonic_s, boot)
