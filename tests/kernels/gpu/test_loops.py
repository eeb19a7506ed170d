"""Loops of kernels run in every interpreter: see `kernels/gpu/loops.py`."""

import ast
from pathlib import Path

import kernels.gpu

FOLDER = Path(kernels.gpu.__file__).parent


def kernel_loops():
    for path in sorted(FOLDER.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and any(
                "triton.jit" in ast.unparse(d) for d in function.decorator_list
            ):
                for loop in ast.walk(function):
                    if isinstance(loop, ast.For) and "static_range" not in ast.unparse(loop.iter):
                        yield f"{path.relative_to(FOLDER)}:{loop.lineno}", loop.iter.args


def is_known_when_compiled(bound: ast.expr) -> bool:
    return isinstance(bound, ast.Constant) or (isinstance(bound, ast.Name) and bound.id.isupper())


def is_wrapped(bound: ast.expr) -> bool:
    return isinstance(bound, ast.Call) and ast.unparse(bound.func) == "loop_bound"


def test_bounds_that_only_the_device_knows_are_wrapped() -> None:
    loops = list(kernel_loops())
    assert len(loops) >= 10, "found no loops"
    bare = [place for place, bounds in loops if not all(is_known_when_compiled(b) or is_wrapped(b) for b in bounds)]
    assert not bare, "Triton 3.6's interpreter fails on these on Python 3.12: put `loop_bound` around what they run to"
