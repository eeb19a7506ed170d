"""SiLU-and-multiply, the activation of SwiGLU. Shazeer 2020, arXiv:2002.05202."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import check_dtype, check_last_stride, check_rank, check_tensor
from kernels.gpu.integers import ceil_div, next_power_of_two
from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.layers.row_tile import FULL_CHIP_PROGRAMS, MAX_ROWS, RowTile

_MAX_COLUMNS = 1024


def choose_activation_tile(num_rows: int, size: int) -> RowTile:
    """Two configurations for each size: one row a program, or, with more programs than fill the chip, four rows.

    Args:
        num_rows, size: shape of the result.
    """
    columns = min(_MAX_COLUMNS, next_power_of_two(size))
    rows = 1 if num_rows * ceil_div(size, columns) <= FULL_CHIP_PROGRAMS else MAX_ROWS
    return RowTile(rows, columns, num_warps=max(1, columns // 256))


def silu_and_mul(gate_up: Tensor, out: Tensor) -> None:
    """`silu(gate) * up` of a fused projection.

    Args:
        gate_up: [tokens, 2 * size], gate in the first half, bfloat16, float16 or float32; the rows may lie apart,
            each must be dense.
        out: [tokens, size], dtype of `gate_up`; silu is rounded to it before the product.

    Raises:
        ValueError: a shape, dtype, device or stride does not fit.
    """
    check_rank("gate_up", gate_up, 2)
    check_dtype("gate_up", gate_up)
    num_rows, width = gate_up.shape
    size = width // 2
    if width == 0 or width % 2:
        raise ValueError(f"gate_up has shape {tuple(gate_up.shape)}, expected rows of two equal halves")
    check_tensor("out", out, (num_rows, size), gate_up.dtype, gate_up.device)
    check_last_stride("gate_up", gate_up)
    check_last_stride("out", out)
    if num_rows == 0:
        return
    tile = choose_activation_tile(num_rows, size)
    tiles_per_row = ceil_div(size, tile.columns)
    _silu_and_mul_kernel.launch(
        (ceil_div(num_rows, tile.rows) * tiles_per_row,),
        gate_up,
        out,
        num_rows,
        gate_up.stride(0),
        out.stride(0),
        **tile.constants(size),
    )


# The number of rows is another at every step: compiling anew for 1 and for multiples of 16 would stall serving.
@LaunchableKernel
@triton.jit(do_not_specialize=["num_rows"])
def _silu_and_mul_kernel(
    gate_up,
    out,
    num_rows,
    gate_up_stride,
    out_stride,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # One grid dimension for both, as the others end at 65,535. int64: 65,536 rows of 51,200 values pass 2**31.
    tiles_per_row: tl.constexpr = (SIZE + COLUMNS - 1) // COLUMNS
    tile = tl.program_id(0)
    rows = (tile // tiles_per_row).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = (tile % tiles_per_row) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (rows < num_rows) & (columns < SIZE)
    source = gate_up + rows * gate_up_stride + columns
    gate = tl.load(source, mask=inside, other=0.0)
    up = tl.load(source + SIZE, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    product = (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)
    tl.store(out + rows * out_stride + columns, product, mask=inside)
