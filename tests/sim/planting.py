"""Faults that are planted: the simulator finds each within some hundred runs, or it would prove nothing."""

from collections.abc import Callable

import pytest

from tests.sim.simulation import simulate

MAX_RUNS = 400

Patch = Callable[[pytest.MonkeyPatch], None]
Faults = list[tuple[str, Patch]]


def enter(faults: Faults, profile: str) -> Callable[[Patch], Patch]:
    """Add a fault to a list, with the mix that has to find it."""

    def add(patch: Patch) -> Patch:
        faults.append((profile, patch))
        return patch

    return add


def check_found(profile: str) -> None:
    """Run a mix until a run fails, by what was planted and not by a mistake in the planting."""
    for seed in range(MAX_RUNS):
        if failure := simulate(seed, profile).failure:
            assert not failure.startswith(("TypeError", "AttributeError")), f"the fault itself is faulty: {failure}"
            return
    pytest.fail(f"{MAX_RUNS} runs of {profile} do not find it")
