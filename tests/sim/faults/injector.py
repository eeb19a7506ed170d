"""When which fault comes."""

from random import Random

from tests.sim.faults import executors, hostile, keepers, readers, scheduler
from tests.sim.faults.scene import Kind, Scene
from tests.sim.profiles import Profile

CLUSTERED = 0.3  # of the faults come right after another
WITHIN_S = 0.02
KINDS: dict[str, Kind] = {
    kind.__name__.rstrip("_"): kind
    for module in (executors, hostile, keepers, readers, scheduler)
    for kind in module.KINDS
}


class Injector:
    """Injects the faults of a profile.

    Args:
        span_s: they come from the start until then.
    """

    def __init__(self, scene: Scene, profile: Profile, span_s: float) -> None:
        self._scene = scene
        self._rng: Random = scene.world.stream("faults")
        self._num_left = 0
        for when in self._times(profile, span_s):
            (kind,) = self._rng.choices(list(profile.faults), weights=list(profile.faults.values()))
            self._num_left += 1
            scene.world.at(when, self._inject, kind)

    @property
    def is_done(self) -> bool:
        """Whether there will be no more of them."""
        return self._num_left == 0

    def _times(self, profile: Profile, span_s: float) -> list[float]:
        rng = self._rng
        times: list[float] = []
        for i in range(rng.randint(*profile.num_faults)):
            if profile.spacing_s:
                times.append(profile.spacing_s * (i + rng.uniform(0.0, 0.1)) + 0.1)
            elif times and rng.random() < CLUSTERED:
                times.append(times[-1] + rng.uniform(0.0, WITHIN_S))
            else:
                times.append(rng.uniform(WITHIN_S, span_s))
        return times

    def _inject(self, kind: str) -> None:
        world = self._scene.world
        world.say("fault", kind)
        self._num_left -= 1
        if KINDS[kind](self._scene, self._rng):
            world.faults[kind] += 1
