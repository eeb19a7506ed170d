"""RMSNorm, alone and fused with the residual add. Zhang & Sennrich 2019, arXiv:1910.07467.

A program takes whole rows: a row is loaded once, with 16-byte loads that are all in flight together, and is normalized
from registers. Narrow rows are taken several at a time once there are enough of them to fill the chip anyway.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import check_dtype, check_last_stride, check_range, check_rank, check_tensor
from kernels.gpu.integers import ceil_div, next_power_of_two
from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.layers.row_tile import FULL_CHIP_PROGRAMS, MAX_ROWS, RowTile

MAX_SIZE = 16_384
"""The longest row: 16 values in each of the 1024 threads of the largest program."""

_TILE_VALUES = 4096


def choose_norm_tile(num_rows: int, size: int) -> RowTile:
    """Two configurations for each row size: one row a program, or, with more rows than fill the chip, a full tile.

    Args:
        num_rows, size: shape of the activations.
    """
    columns = next_power_of_two(size)
    rows = 1 if num_rows <= FULL_CHIP_PROGRAMS else min(MAX_ROWS, max(1, _TILE_VALUES // columns))
    # 16 values of each row in a thread, two vectors of 16 bytes: with fewer, the weight would want another layout than
    # a tile of several rows, and would change it through shared memory.
    return RowTile(rows, columns, num_warps=min(32, max(1, columns // 512)))


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """`x / rms(x) * weight` over the last dimension.

    Args:
        x: [tokens, size], bfloat16, float16 or float32; the rows may lie apart, each must be dense.
        weight: [size], dtype of `x`.
        eps: added to the mean square.
        out: [tokens, size], dtype of `x`, may be `x`; the normalized value is rounded to it before `weight` is applied.

    Raises:
        ValueError: a shape, dtype, device or stride does not fit, or a row is longer than `MAX_SIZE`.
    """
    _check(x, weight, out)
    num_rows, size = x.shape
    if num_rows == 0:
        return
    tile = choose_norm_tile(num_rows, size)
    _rms_norm_kernel.launch(
        (ceil_div(num_rows, tile.rows),),
        x,
        weight,
        out,
        num_rows,
        x.stride(0),
        out.stride(0),
        eps,
        **tile.constants(size),
    )


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """Add a layer's output to the residual stream and normalize the sum, in one pass over memory.

    Args:
        x: [tokens, size], bfloat16, float16 or float32; the rows may lie apart, each must be dense.
        residual: [tokens, size], dtype of `x`; becomes `residual + x`, rounded.
        weight: [size], dtype of `x`.
        eps: added to the mean square.
        out: [tokens, size], dtype of `x`, may be `x`; becomes `rms_norm(residual + x)`.

    Raises:
        ValueError: a shape, dtype, device or stride does not fit, or a row is longer than `MAX_SIZE`.
    """
    _check(x, weight, out)
    check_tensor("residual", residual, tuple(x.shape), x.dtype, x.device)
    check_last_stride("residual", residual)
    num_rows, size = x.shape
    if num_rows == 0:
        return
    tile = choose_norm_tile(num_rows, size)
    _add_rms_norm_kernel.launch(
        (ceil_div(num_rows, tile.rows),),
        x,
        residual,
        weight,
        out,
        num_rows,
        x.stride(0),
        residual.stride(0),
        out.stride(0),
        eps,
        **tile.constants(size),
    )


def _check(x: Tensor, weight: Tensor, out: Tensor) -> None:
    check_rank("x", x, 2)
    check_dtype("x", x)
    num_rows, size = x.shape
    check_range("the row size of x", size, 1, MAX_SIZE)
    check_tensor("weight", weight, (size,), x.dtype, x.device)
    check_tensor("out", out, (num_rows, size), x.dtype, x.device)
    check_last_stride("x", x)
    check_last_stride("weight", weight)
    check_last_stride("out", out)


# The number of rows is another at every step: compiling anew for 1 and for multiples of 16 would stall serving.
@LaunchableKernel
@triton.jit(do_not_specialize=["num_rows"])
def _rms_norm_kernel(
    x,
    weight,
    out,
    num_rows,
    x_stride,
    out_stride,
    eps,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows, columns, inside = _tile(num_rows, SIZE, ROWS, COLUMNS)
    values = tl.load(x + rows * x_stride + columns, mask=inside, other=0.0)
    scale = tl.load(weight + columns, mask=columns < SIZE, other=0.0)
    tl.store(out + rows * out_stride + columns, _normalize(values, scale, eps, SIZE), mask=inside)


@LaunchableKernel
@triton.jit(do_not_specialize=["num_rows"])
def _add_rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    num_rows,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows, columns, inside = _tile(num_rows, SIZE, ROWS, COLUMNS)
    added = tl.load(x + rows * x_stride + columns, mask=inside, other=0.0)
    stream = residual + rows * residual_stride + columns
    kept = tl.load(stream, mask=inside, other=0.0)
    scale = tl.load(weight + columns, mask=columns < SIZE, other=0.0)
    total = (kept.to(tl.float32) + added.to(tl.float32)).to(kept.dtype)
    tl.store(stream, total, mask=inside)
    tl.store(out + rows * out_stride + columns, _normalize(total, scale, eps, SIZE), mask=inside)


@triton.jit
def _tile(num_rows, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows and columns of this program's tile, and where it lies inside the tensor."""
    # int64: 65,536 rows of a wide projection pass 2**31 values.
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    return rows, columns, (rows < num_rows) & (columns < SIZE)


@triton.jit
def _normalize(values, scale, eps, SIZE: tl.constexpr):
    """Rows of zeros beyond SIZE, normalized in float32, rounded, and scaled."""
    wide = values.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=1, keep_dims=True) / SIZE
    normed = (wide * tl.rsqrt(mean_square + eps)).to(values.dtype)
    return (normed.to(tl.float32) * scale.to(tl.float32)).to(values.dtype)
