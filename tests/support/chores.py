"""Chores of the core, its fleet and its parts, done all at once: the event loop leaves some for the next turn."""

from collections.abc import Iterable
from typing import Any


def done(chores: Iterable[list[Any]]) -> list[Any]:
    """All that chores give."""
    return [each for some in chores for each in some]


def tick(core: Any, now: float) -> list[Any]:
    """What a core, a fleet or a request manager does that is due."""
    return [*done(core.chores(now)), *core.tick(now)]
