"""Triton's interpreter without what it does over and over, which is half of its time."""

import functools
from typing import Any


def quicken() -> None:
    """Let the interpreter prepare once what it prepares at each call: results stay as they are.

    It puts its own functions into `triton.language` for a launch, and looks for them again at each call of a function
    in each program. It lists all dtypes to find the one of each value.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    if hasattr(interpreter, "in_place"):
        return
    in_place: set[int] = set()
    interpreter.in_place = in_place
    patch_lang, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    np_dtype, np_dtype_of_scalar = interpreter._get_np_dtype, functools.cache(interpreter._get_np_dtype)

    def patch_once(function: Any) -> Any:
        found = {id(value) for value in function.__globals__.values() if value is tl or value is tl.core}
        if found and found <= in_place:
            return interpreter._LangPatchScope()
        scope = patch_lang(function)
        in_place.update(found)
        return scope

    def launch_anew(*arguments: Any, **named: Any) -> Any:
        in_place.clear()
        try:
            return launch(*arguments, **named)
        finally:
            in_place.clear()

    def known_np_dtype(kind: Any) -> Any:
        scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
        return np_dtype(kind) if isinstance(scalar, tl.pointer_type) else np_dtype_of_scalar(scalar)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, launch_anew
    interpreter._get_np_dtype = known_np_dtype
