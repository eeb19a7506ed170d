"""Tensors in memory that the test knows all of, so that it sees what a kernel reads and writes beside them."""

import mmap

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.support.effort import examples

DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
GAPS = st.sampled_from([0, 1, 8])
"""Values between the rows."""
NUM_EXAMPLES = 10 if torch.cuda.is_available() else examples(60)
"""For hypothesis: on a GPU each shape costs a second of compiling."""
TOLERANCES = {torch.float32: 4e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}
"""Relative, for a few float32 operations in another order, whose rounding to the dtype then falls the other way once
or twice."""
CUTTING_TOLERANCE = 2**-5
"""The interpreter cuts bfloat16 off where the GPU and the twins round it."""
POISON = 12288.0
MAP_NORESERVE = 0x4000  # Linux's; in Python's mmap from 3.13


def noise(seed: int, *shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Normally distributed; the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def framed(values: Tensor, *, beside: int = 8, frame: float = torch.nan) -> Tensor:
    """A copy in a frame of NaN: `beside` values after each row, and a row or more before the first and after the last.

    Rows are aligned to 16 bytes where their length and `beside` are multiples of 8.
    """
    rows, stride = values.shape[0], values[0].numel() + beside
    margin = 32 * (stride // 32 + 1) + (3 if beside % 8 else 0)
    memory = torch.full((margin + rows * stride + margin,), frame, dtype=values.dtype, device=values.device)
    inner = memory[margin : margin + rows * stride].view(rows, stride)
    return inner[:, : stride - beside].unflatten(1, values.shape[1:]).copy_(values)


def poison(*shape: int, dtype: torch.dtype, device: torch.device, beside: int = 8) -> Tensor:
    """A tensor to be filled by a kernel, in a frame of the same value: one that no kernel computes, and not NaN, which
    is what comes of reading beside the inputs."""
    return framed(torch.full(shape, POISON, dtype=dtype, device=device), beside=beside, frame=POISON)


def memory_of(tensor: Tensor) -> Tensor:
    """All the memory that `tensor` lies in, as one dimension."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def twin_of(tensor: Tensor) -> Tensor:
    """The same tensor in a copy of all its memory."""
    storage = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def assert_same_memory(actual: Tensor, expected: Tensor, *, scale: float = 0.0, exact: bool = False) -> None:
    """The memories of both tensors agree up to a tolerance; NaN agrees with NaN.

    Args:
        actual, expected: tensors of one dtype, each in memory of its own.
        scale: of the terms that were added up to the values, where those may cancel.
        exact: not a bit may differ, except where the interpreter cannot round.
    """
    cut = actual.dtype == torch.bfloat16 and actual.device.type == "cpu"
    relative = CUTTING_TOLERANCE if cut else 0.0 if exact else TOLERANCES[actual.dtype]
    info = torch.finfo(actual.dtype)
    absolute = 0.0 if exact else max(relative * scale, 2 * info.smallest_normal * info.eps)
    torch.testing.assert_close(memory_of(actual), memory_of(expected), rtol=relative, atol=absolute, equal_nan=True)


def assert_untouched(tensor: Tensor, kept: Tensor) -> None:
    """Not a bit of the memory of `tensor` has changed since `kept` was made by `twin_of`."""
    assert torch.equal(memory_of(tensor).view(torch.uint8), memory_of(kept).view(torch.uint8))


def far_apart(rows: int, size: int, dtype: torch.dtype) -> Tensor:
    """Rows 2**30 values apart, in address space of which only what is touched takes memory.

    The third row begins where 32 bits overflow. As much lies before the rows as behind, so that a kernel whose offsets
    do overflow reads zeros and ends no process.
    """
    distance = 2**30
    length = 2 * rows * distance * dtype.itemsize
    space = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    values = torch.frombuffer(space, dtype=torch.uint8).view(dtype)
    return values.as_strided((rows, size), (distance, 1), rows * distance)


def share_of_equal(actual: Tensor, expected: Tensor) -> float:
    """The part of the values that is the same to the last bit.

    Where every step is rounded as in the twin, a float16 differs about once in ten thousand, when the last bits of a
    float32 tip it over; a step that is not rounded makes every fourth or so differ.
    """
    return float((actual == expected).float().mean())


def relative_error(actual: Tensor, exact: Tensor) -> float:
    """Norm of the difference, as a part of the norm of `exact` (float64)."""
    return float((actual.double() - exact).norm() / exact.norm())
