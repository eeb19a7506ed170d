"""The machine that the scheduler runs on: its clocks can be set, it can be started anew, and it can stand still."""

from random import Random

from common.clocks import Clocks
from scheduler_svc.core.requests.journal_time import Stamp
from tests.sim.world import World

STARTED_AT_S = 2e9  # wall-clock time at the start of the run


class Machine:
    """Clocks in virtual time.

    Attributes:
        num_boots: how often it was started.
        num_settings: how often the wall's clock was set.
    """

    def __init__(self, world: World) -> None:
        self.num_boots = 1
        self.num_settings = 0
        self._world = world
        self._rng: Random = world.stream("machine")
        self._wall_s = STARTED_AT_S
        self._rested_s = 0.0  # time that went by for it alone
        self._booted_at = {_boot_id(1): -self._rng.uniform(0.0, 1e6)}

    def set_wall(self, by_s: float) -> None:
        """Somebody, or NTP, sets the wall's clock."""
        self.num_settings += 1
        self._wall_s += by_s

    def reboot(self) -> None:
        """It is started anew; nothing but the disk and the wall's clock goes on."""
        self.num_boots += 1
        self._booted_at[_boot_id(self.num_boots)] = self._world.now + self._rested_s

    def rest(self, seconds: float) -> None:
        """So much time goes by for which no process of the run has anything to do."""
        self._rested_s += seconds

    def clocks(self, monotonic_s: float) -> Clocks:
        """What the clocks show to a process whose own shows this."""
        passed_s, boot = self._world.now + self._rested_s, _boot_id(self.num_boots)
        return Clocks(self._wall_s + passed_s, passed_s - self._booted_at[boot], monotonic_s, boot)

    def true_age_s(self, stamp: Stamp) -> float:
        """Seconds since a stamp was made, whatever its clocks showed."""
        return self._world.now + self._rested_s - self._booted_at[stamp.boot] - stamp.uptime_s


def _boot_id(number: int) -> bytes:
    return number.to_bytes(16, "big")
