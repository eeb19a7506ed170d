"""What a loop of a Triton kernel runs up to, where the number is known on the device only.

The compiler takes such a number as it is. The interpreter hands it to Python's `range`, as an array of one element; on
Python 3.12 and with newer numpy that is no integer any more (Triton 3.6: "only 0-dimensional arrays can be converted").
"""

import triton

if triton.knobs.runtime.interpret:  # as `triton.jit` itself decides, when a module is imported

    def loop_bound(number):
        """The number as Python's integer."""
        return int(number.handle.data.item())

else:

    @triton.jit
    def loop_bound(number):
        """The number itself."""
        return number
