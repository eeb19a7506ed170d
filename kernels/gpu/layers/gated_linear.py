"""The first half of a SwiGLU for few rows: both products and the activation in one pass over the weights.

With few rows the weights' bytes are all that counts, and a launch of its own for the activation, with what it writes
and reads again, takes longer than the activation. Shazeer 2020, arXiv:2002.05202.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import check_contiguous, check_dtype, check_last_stride, check_rank, check_tensor
from kernels.gpu.integers import ceil_div
from kernels.gpu.launching import LaunchableKernel


@dataclass(frozen=True)
class ProductTiles:
    """The tile of a program that computes one of the products of a SwiGLU, and how it runs.

    Attributes:
        rows: a power of two.
        columns: of the result; in the first product half of them are of gate, half of up.
        depth: of a step along the dimension that is summed over.
        num_warps, num_stages: Triton's.
    """

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int


_MANY_PROGRAMS = 264  # two for each SM of an H100 or H200
# Without tensor cores: for tests and debugging.
FLOAT32_TILES = ProductTiles(rows=16, columns=32, depth=32, num_warps=4, num_stages=2)


def choose_gated_tiles(num_rows: int, size: int, dtype: torch.dtype) -> ProductTiles:
    """A configuration for up to 16, 32 and 64 rows and for more, of tiles so wide that there are still enough of them.

    Wide tiles read `x`, which L2 has, less often. Narrow ones are more programs, each with its loads on their way.

    Args:
        num_rows, size: shape of the result.
        dtype: of all tensors.
    """
    if dtype == torch.float32:
        return FLOAT32_TILES
    if num_rows <= 32:
        rows = 16 if num_rows <= 16 else 32
        if 2 * size >= 64 * _MANY_PROGRAMS:
            return ProductTiles(rows, columns=64, depth=128, num_warps=4, num_stages=3)
        return ProductTiles(rows, columns=32, depth=128, num_warps=4, num_stages=6 if rows == 16 else 5)
    if num_rows <= 64:
        columns = 128 if 2 * size >= 64 * _MANY_PROGRAMS else 64
        return ProductTiles(64, columns, depth=64, num_warps=4, num_stages=4)
    return ProductTiles(128, columns=128, depth=64, num_warps=8, num_stages=4)


def linear_silu_and_mul(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """`silu_and_mul` of a `linear` without a bias; see `kernels.reference.linear_silu_and_mul`.

    Args:
        x: [rows, in], bfloat16, float16 or float32; the rows may lie apart, each must be dense.
        weight: [2 * size, in], gate over up, dense, dtype of `x`.
        out: [rows, size], dtype of `x`; sums are in float32, and gate, up and silu are rounded as in the twin.

    Raises:
        ValueError: a shape, dtype, device or stride does not fit.
    """
    check_rank("x", x, 2)
    check_dtype("x", x)
    check_rank("weight", weight, 2)
    num_rows, in_size = x.shape
    size = len(weight) // 2
    check_tensor("weight", weight, (2 * size, in_size), x.dtype, x.device)
    check_contiguous("weight", weight)
    if weight.numel() >= 2**31:
        raise ValueError(f"weight has shape {tuple(weight.shape)}, expected less than 2**31 values")
    check_tensor("out", out, (num_rows, size), x.dtype, x.device)
    check_last_stride("x", x)
    check_last_stride("out", out)
    if num_rows == 0:
        return
    tiles = choose_gated_tiles(num_rows, size, x.dtype)
    _gated_linear_kernel.launch(
        (ceil_div(num_rows, tiles.rows) * ceil_div(2 * size, tiles.columns),),
        x,
        weight,
        out,
        num_rows,
        x.stride(0),
        out.stride(0),
        IN_SIZE=in_size,
        SIZE=size,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns // 2,
        DEPTH=tiles.depth,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",  # tf32 says nothing about 16-bit types
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        # Unless told, ptxas aims lower than what shared memory lets run, and spills.
        maxnreg=128 if tiles.rows <= 32 else 255,
    )


# The number of rows is another at every step: compiling anew for 1 and for multiples of 16 would stall serving.
@LaunchableKernel
@triton.jit(do_not_specialize=["num_rows"])
def _gated_linear_kernel(
    x,
    weight,
    out,
    num_rows,
    x_stride,
    out_stride,
    IN_SIZE: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # The row tiles of some columns are neighbours: one reads the weights from memory, the others from L2.
    row_tiles = tl.cdiv(num_rows, ROWS)
    rows = (tl.program_id(0) % row_tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first_column = (tl.program_id(0) // row_tiles) * COLUMNS
    # Past the last row and the last column something valid is read, and nothing stored.
    x_rows = tl.minimum(rows, num_rows - 1)
    both = tl.arange(0, 2 * COLUMNS)  # gate and up side by side: a thread then has both of a pair
    weight_rows = (both % 2) * SIZE + tl.minimum(first_column + both // 2, SIZE - 1)
    depth = tl.arange(0, DEPTH)
    x_tile = x + x_rows[:, None] * x_stride + depth[None, :]
    offsets = weight_rows[None, :] * IN_SIZE + depth[:, None]
    total = tl.zeros((ROWS, 2 * COLUMNS), tl.float32)
    for start in range(0, IN_SIZE, DEPTH):
        if IN_SIZE % DEPTH == 0:
            values = tl.load(x_tile)
            weights = tl.load(weight + start + offsets)
        else:
            left = IN_SIZE - start
            values = tl.load(x_tile, mask=depth[None, :] < left, other=0.0)
            weights = tl.load(weight + start + offsets, mask=depth[:, None] < left, other=0.0)
        total = tl.dot(values, weights, total, input_precision=PRECISION)
        x_tile += DEPTH
    dtype = out.dtype.element_ty
    gate, up = total.to(dtype).reshape(ROWS, COLUMNS, 2).split()
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(dtype)
    product = (silu.to(tl.float32) * up.to(tl.float32)).to(dtype)
    columns = first_column + tl.arange(0, COLUMNS)
    inside = (rows[:, None] < num_rows) & (columns[None, :] < SIZE)
    tl.store(out + rows[:, None] * out_stride + columns[None, :], product, mask=inside)
