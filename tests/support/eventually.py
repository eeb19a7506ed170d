"""Waiting for a condition instead of for some time."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def eventually(condition: Callable[[], Value], timeout_s: float = 60.0, told: Callable[[], str] = lambda: "") -> Value:
    """Ask until `condition()` is true, and return what it gave.

    Args:
        told: what to say of it if it never was.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {timeout_s:.0f} s {told()}"
        time.sleep(0.02)
    return value
