"""How much of a property `make test` tries, and what it leaves to `make test-slow`.

Hypothesis tries few examples in the first and more in the second, always the same ones: examples that are drawn anew
would fail a change that has nothing to do with them. `tests/fresh.py` draws those.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import Phase, settings

THOROUGH = 100  # hypothesis' own number of examples; numbers given to `examples` are of this effort
QUICK = 25
FEWEST = 5


def load_profiles() -> None:
    """Declare the profiles that `--hypothesis-profile` can name, and choose `quick` unless it does.

    No failure is explained by coverage: that traces each line, and the time limit would end the test before it is told.
    No example has a deadline: on a busy machine any may take long, such as the first, which may start a process.
    """
    each = settings(deadline=None, phases=[phase for phase in Phase if phase is not Phase.explain])
    settings.register_profile("quick", each, max_examples=QUICK, derandomize=True)
    settings.register_profile("thorough", each, max_examples=THOROUGH, derandomize=True)
    settings.register_profile("fresh", each, max_examples=THOROUGH // 2, derandomize=False, database=None)
    settings.load_profile("quick")


def examples(thorough: int, quick: int | None = None) -> int:
    """How many examples a test tries in the chosen profile.

    Args:
        thorough: in the profile of this name.
        quick: in the profile of this name; a quarter of `thorough` if it is not given.
    """
    chosen = settings.default.max_examples
    if quick is not None and chosen == QUICK:
        return quick
    return max(FEWEST, thorough * chosen // THOROUGH)


def combinations(*axes: Iterable[Any], together: int = 1) -> list[Any]:
    """Every combination of a value from each axis, for `parametrize`.

    `make test` runs just enough of them that any values of `together` axes meet (the first alone if that is 0), the
    others are marked slow.

    Args:
        axes: values, or names with their values; a name stands in the test's name.
    """
    named = [list(axis.items() if isinstance(axis, dict) else ((str(value), value) for value in axis)) for axis in axes]
    every = list(itertools.product(*named))
    names = [[str(name) for name, _ in combination] for combination in every]
    chosen = covering([set(itertools.combinations(enumerate(combination), together)) for combination in names])
    return [
        pytest.param(
            *(value for _, value in combination),
            id="-".join(name for name, _ in combination),
            marks=() if i in chosen else pytest.mark.slow,
        )
        for i, combination in enumerate(every)
    ]


def covering(meetings: list[set[Any]]) -> set[int]:
    """Which sets to take so that their union is that of all; always the one that adds most."""
    to_meet, chosen = set().union(*meetings), set()
    while to_meet:
        best = max(range(len(meetings)), key=lambda i: len(meetings[i] & to_meet))
        to_meet -= meetings[best]
        chosen.add(best)
    return chosen
