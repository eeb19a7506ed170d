"""How a kernel is launched: past Triton's own way once it is compiled.

`kernel[grid](...)` binds the arguments to the signature, specializes each and makes a key of strings at every launch.
What it returns, the compiled kernel, can be launched at once, where the arguments are of the kinds that it was compiled
for.
"""

from typing import Any

import triton
from torch import Tensor
from triton.runtime.jit import JITFunction

_INT32 = 2**31


class LaunchableKernel:
    """A kernel of `triton.jit` that remembers what Triton compiled for which kinds of arguments. Use it as a decorator.

    Only the first launch of a kind runs Triton's hooks, and its check that globals have not changed.

    Args:
        jitted: the kernel. Its `tl.constexpr` parameters come last.
    """

    def __init__(self, jitted: Any) -> None:
        self.jitted = jitted
        self._is_compiled = isinstance(jitted, JITFunction)  # and not interpreted
        self._known: dict[tuple[object, ...], tuple[Any, list[object]]] = {}

    def launch(self, grid: tuple[int, ...], *args: object, **constants: Any) -> None:
        """Launch the kernel in the current stream of the current device.

        Args:
            grid: programs, in one or two dimensions.
            args: the parameters that are no constants, in their order.
            constants: the others by name, and Triton's options; each place in the sources has them in one order.
        """
        if not self._is_compiled:
            self.jitted[grid](*args, **constants)
            return
        driver = triton.runtime.driver.active
        device = driver.get_current_device()
        key = (device, *constants.values(), *map(_kind, args))
        known = self._known.get(key)
        if known is None:
            self._launch_first(key, grid, args, constants)
            return
        compiled, values = known
        width, height = grid if len(grid) == 2 else (grid[0], 1)
        stream = driver.get_current_stream(device)
        metadata = compiled.packed_metadata
        compiled.run(width, height, 1, stream, compiled.function, metadata, None, None, None, *args, *values)

    def _launch_first(
        self, key: tuple[object, ...], grid: tuple[int, ...], args: tuple[object, ...], constants: dict[str, Any]
    ) -> None:
        compiled = self.jitted[grid](*args, **constants)
        if compiled is not None:  # it is, where launches are only listed
            self._known[key] = compiled, [constants[name] for name in self.jitted.arg_names[len(args) :]]


def _kind(arg: object) -> object:
    """What Triton compiles for: the type, and whether a number is 1, and whether 16 divides it or the address."""
    if type(arg) is int:
        if arg == 1:
            return "one"
        return arg % 16 == 0 if -_INT32 <= arg < _INT32 else (arg % 16 == 0, "int64")
    if isinstance(arg, Tensor):
        return arg.dtype if arg.data_ptr() % 16 == 0 else (arg.dtype, "unaligned")
    return float if type(arg) is float else (type(arg), arg)
