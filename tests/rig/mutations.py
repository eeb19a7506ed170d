"""Modules of ours with a line changed: faults that the rig must find, or it would not find them when they happen."""

import importlib
import inspect
from types import ModuleType


def mutated(module: str, *changes: tuple[str, str]) -> ModuleType:
    """A module by its name, with each first text of `changes` replaced by the second; the original stays as it is.

    Raises:
        ValueError: a text is not there just once, because the code has moved on: change the mutation with it.
    """
    original = importlib.import_module(module)
    source = inspect.getsource(original)
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(f"{module} has {source.count(old)} times {old!r}, not once")
        source = source.replace(old, new)
    copy = ModuleType(module)
    copy.__file__ = original.__file__
    exec(compile(source, str(original.__file__), "exec"), copy.__dict__)
    return copy
