"""Faults that are planted: the simulator finds each within some hundred runs, or it would prove nothing.

A fault is a function that yields what it replaces, with what: `yield Outbox, "sent", forgetful`. It changes nothing by
itself; `planted` puts the replacements in place, and what was there back.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from tests.sim.simulation import simulate

MAX_RUNS = 400

Replacement = tuple[object, str, object]  # a class or module, a name in it, and what the name is to mean
Fault = Callable[[], Iterable[Replacement]]
Faults = list[tuple[str, int, Fault]]


def enter(faults: Faults, profile: str, seed: int = 0) -> Callable[[Fault], Fault]:
    """Add a fault to a list, with the mix that has to find it, and the seed to begin with: one that has found it."""

    def add(fault: Fault) -> Fault:
        faults.append((profile, seed, fault))
        return fault

    return add


@contextmanager
def planted(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Put replacements in place, and afterwards what was there."""
    replaced: list[Replacement] = []
    try:
        for owner, name, replacement in replacements:
            replaced.append((owner, name, vars(owner)[name]))
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in reversed(replaced):
            setattr(owner, name, original)


def check_applies(fault: Fault) -> None:
    """Check that what a fault replaces is there, that a function takes what the replaced one takes, and that all is as
    it was afterwards."""
    replacements = [*fault()]
    assert replacements, "it replaces nothing"
    for owner, name, replacement in replacements:
        assert name in vars(owner), f"{owner} has no {name} of its own"
        if callable(original := getattr(owner, name)) and not isinstance(replacement, type):
            _check_takes(replacement, original)
    before = [vars(owner)[name] for owner, name, _ in replacements]
    with planted(replacements):
        assert all(vars(owner)[name] is replacement for owner, name, replacement in replacements)
    assert [vars(owner)[name] for owner, name, _ in replacements] == before


def check_found(fault: Fault, profile: str, first: int) -> None:
    """Run a mix from a seed on until a run fails, by the fault and not by a mistake in it."""
    with planted(fault()):
        for seed in range(first, first + MAX_RUNS):
            if failure := simulate(seed, profile).failure:
                assert not failure.startswith(("TypeError", "AttributeError")), f"the fault itself is faulty: {failure}"
                return
    pytest.fail(f"{MAX_RUNS} runs of {profile} from seed {first} on do not find it")


def _check_takes(replacement: Callable, original: Callable) -> None:
    """Check that a function can be called as another one is called."""
    positional: list[str] = []
    named: dict[str, None] = {}
    for parameter in inspect.signature(original).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(parameter.name)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = None
    inspect.signature(replacement).bind(*positional, **named)
