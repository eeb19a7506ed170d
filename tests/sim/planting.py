"""Faults that are planted: the simulator finds each within some hundred runs, or it would prove nothing."""

from collections.abc import Callable

import pytest

from tests.sim.simulation import simulate

MAX_RUNS = 400

Patch = Callable[[pytest.MonkeyPatch], None]
Faults = list[tuple[str, int, Patch]]


def enter(faults: Faults, profile: str, seed: int = 0) -> Callable[[Patch], Patch]:
    """Add a fault to a list, with the mix that has to find it, and the seed to begin with: one that has found it."""

    def add(patch: Patch) -> Patch:
        faults.append((profile, seed, patch))
        return patch

    return add


def check_found(profile: str, first: int) -> None:
    """Run a mix from a seed on until a run fails, by what was planted and not by a mistake in the planting."""
    for seed in range(first, first + MAX_RUNS):
        if failure := simulate(seed, profile).failure:
            assert not failure.startswith(("TypeError", "AttributeError")), f"the fault itself is faulty: {failure}"
            return
    pytest.fail(f"{MAX_RUNS} runs of {profile} from seed {first} on do not find it")
