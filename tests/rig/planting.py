"""Faults in modules of ours: a function, or one call in a function, does something else while a fault is planted.

Both are found by their names, so the product may be written anew around them. What is not found, or not so often as the
fault says, is an error: `test_faults.py` plants each fault without a GPU, so a rename that misses one is noticed there.
"""

import ast
import functools
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

STAND_IN = "_planted_{}"


@dataclass(frozen=True)
class Plant:
    """One thing that is done differently.

    Attributes:
        function: its dotted path as the module names it that uses it: of a class that this module imports, the module
            alone gets one whose method differs.
        does: is called with what it replaces, and then with the arguments.
        call: name of the call inside the function that is replaced; empty if it is the function itself.
        at: which of the calls of that name, in the order of the text.
        of: how many there are.
    """

    function: str
    does: Callable[..., Any]
    call: str = ""
    at: int = 0
    of: int = 1


@contextmanager
def planted(plants: Sequence[Plant]) -> Iterator[None]:
    """Plant a fault, and take it out again.

    Raises:
        ValueError: a function has another number of such calls.
        AttributeError, ModuleNotFoundError: there is no such function.
    """
    functions = dict.fromkeys(plant.function for plant in plants)
    with pytest.MonkeyPatch.context() as patch:
        for function in functions:
            _change(patch, function, [plant for plant in plants if plant.function == function])
        yield


def _change(patch: pytest.MonkeyPatch, path: str, plants: Sequence[Plant]) -> None:
    module, names = _module_of(path)
    *owners, name = names
    original = functools.reduce(getattr, names, module)
    changed = _with_other_calls(original, [plant for plant in plants if plant.call])
    for plant in plants:
        if not plant.call:
            changed = _around(changed, plant.does)
    owner: Any = functools.reduce(getattr, owners, module)
    if inspect.isclass(owner) and owner.__module__ != module.__name__:
        patch.setattr(module, owners[-1], type(owner.__name__, (owner,), {name: changed}))
    else:
        patch.setattr(owner, name, changed)


def _module_of(path: str) -> tuple[ModuleType, list[str]]:
    """The longest part of a dotted path that is a module, and the names after it."""
    module, names = path, list[str]()
    while True:
        module, _, name = module.rpartition(".")
        names.insert(0, name)
        try:
            return importlib.import_module(module), names
        except ModuleNotFoundError as error:
            if error.name != module or "." not in module:
                raise


def _around(original: Callable[..., Any], does: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return does(original, *args, **kwargs)

    return changed


def _with_other_calls(original: Callable[..., Any], plants: Sequence[Plant]) -> Callable[..., Any]:
    """A function, compiled anew with some of its calls replaced."""
    if not plants:
        return original
    tree = ast.parse(textwrap.dedent(inspect.getsource(original)))
    namespace = dict(inspect.unwrap(original).__globals__)
    for number, plant in enumerate(plants):
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == plant.call]
        if len(calls) != plant.of:
            raise ValueError(f"{plant.function} has {len(calls)} calls of {plant.call}, not {plant.of}")
        call = sorted(calls, key=lambda node: (node.lineno, node.col_offset))[plant.at]
        stand_in = STAND_IN.format(number)
        call.args.insert(0, call.func)
        call.func = ast.copy_location(ast.Name(stand_in, ast.Load()), call.func)
        namespace[stand_in] = plant.does
    exec(compile(tree, inspect.getfile(original), "exec"), namespace)
    changed: Callable[..., Any] = namespace[original.__name__]
    return changed


def _name(called: ast.expr) -> str:
    """The last part of what is called."""
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
