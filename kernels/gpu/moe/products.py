"""The matrix products of a mixture of experts: choices that were sorted by expert, in blocks of one expert each.

A program multiplies a block of choices with a part of their expert's columns. Grids are made for the worst way in which
tokens may choose; a program whose slot is empty returns at once. A weight is read from memory about once: blocks of
one expert run side by side and find it in L2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.layers.gated_linear import FLOAT32_TILES, ProductTiles

_COMBINED_COLUMNS = 1024


# By the number of choices an expert has on average. Up to 24 the weights' bytes are all that counts, and the tiles are
# there to keep many of them in flight; from 64 rows on Hopper multiplies by warp groups.
_BY_MEAN_ROWS = (
    (8, ProductTiles(rows=16, columns=128, depth=128, num_warps=4, num_stages=3)),
    (24, ProductTiles(rows=32, columns=128, depth=64, num_warps=4, num_stages=4)),
    (96, ProductTiles(rows=64, columns=128, depth=64, num_warps=4, num_stages=4)),
)
_LARGEST = ProductTiles(rows=128, columns=256, depth=64, num_warps=8, num_stages=3)


def choose_product_tiles(num_choices: int, num_experts: int, dtype: torch.dtype) -> ProductTiles:
    """Four configurations for 16-bit types, one for float32."""
    if dtype == torch.float32:
        return FLOAT32_TILES
    for mean_rows, config in _BY_MEAN_ROWS:
        if num_choices <= mean_rows * num_experts:
            return config
    return _LARGEST


def launch_products(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    order: Tensor,
    blocks: Tensor,
    gated: Tensor,
    given: Tensor,
    num_chosen: int,
    config: ProductTiles,
) -> None:
    """Both products, with SiLU-and-multiply as the first one's epilogue.

    Args:
        x: [tokens, hidden]; the rows may lie apart.
        gate_up: [experts, 2 * intermediate, hidden], dense.
        down: [experts, hidden, intermediate], dense.
        order, blocks: see `launch_routing`, for blocks of `config.rows`.
        gated: [choices, intermediate], dense; becomes the activations, in the order of `order`.
        given: [choices, hidden], dense; becomes what each choice's expert gives.
        num_chosen: choices a token.
        config: tiles.
    """
    _, hidden, intermediate = down.shape
    precision = "ieee" if x.dtype == torch.float32 else "tf32"  # tf32 says nothing about 16-bit types
    _gate_up_kernel.launch(
        (len(blocks) * triton.cdiv(intermediate, config.columns // 2),),
        x,
        gate_up,
        order,
        blocks,
        gated,
        x.stride(0),
        HIDDEN=hidden,
        INTERMEDIATE=intermediate,
        NUM_CHOSEN=num_chosen,
        ROWS=config.rows,
        COLUMNS=config.columns // 2,
        DEPTH=config.depth,
        PRECISION=precision,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    _down_kernel.launch(
        (len(blocks) * triton.cdiv(hidden, config.columns),),
        gated,
        down,
        order,
        blocks,
        given,
        HIDDEN=hidden,
        INTERMEDIATE=intermediate,
        ROWS=config.rows,
        COLUMNS=config.columns,
        DEPTH=config.depth,
        PRECISION=precision,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def launch_combine(given: Tensor, weights: Tensor, out: Tensor, num_chosen: int) -> None:
    """Add up what a token's experts gave, weighted, in float32 and in the order of its choices.

    Args:
        given: [tokens * num_chosen, hidden], dense.
        weights: float32 [tokens * num_chosen].
        out: [tokens, hidden]; the rows may lie apart.
        num_chosen: choices a token.
    """
    num_tokens, hidden = out.shape
    columns = min(_COMBINED_COLUMNS, triton.next_power_of_2(hidden))
    _combine_kernel.launch(
        (num_tokens * triton.cdiv(hidden, columns),),
        given,
        weights,
        out,
        out.stride(0),
        HIDDEN=hidden,
        NUM_CHOSEN=num_chosen,
        COLUMNS=columns,
        num_warps=max(1, columns // 256),
    )


@LaunchableKernel
@triton.jit
def _gate_up_kernel(
    x,
    gate_up,
    order,
    blocks,
    gated,
    x_stride,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tiles: tl.constexpr = (INTERMEDIATE + COLUMNS - 1) // COLUMNS
    slot = tl.program_id(0) // tiles
    first_column = (tl.program_id(0) % tiles) * COLUMNS
    expert = tl.load(blocks + 4 * slot)
    if expert < 0:
        return
    rows = tl.load(blocks + 4 * slot + 1) + tl.arange(0, ROWS)
    inside = rows < tl.load(blocks + 4 * slot + 2)
    # Past the block's end and past the last column something valid is read, and nothing stored.
    tokens = tl.load(order + rows, mask=inside, other=0) // NUM_CHOSEN
    both = tl.arange(0, 2 * COLUMNS)  # gate and up side by side: a thread then has both of a pair
    weight_rows = (both % 2) * INTERMEDIATE + tl.minimum(first_column + both // 2, INTERMEDIATE - 1)
    depth = tl.arange(0, DEPTH)
    # int64: 65,536 tokens of 32,768 values, or 128 experts of 16 Mi, pass 2**31.
    x_tile = x + tokens[:, None].to(tl.int64) * x_stride + depth[None, :]
    weight_tile = gate_up + expert.to(tl.int64) * (2 * INTERMEDIATE * HIDDEN)
    weight_tile += weight_rows[None, :] * HIDDEN + depth[:, None]
    total = tl.zeros((ROWS, 2 * COLUMNS), tl.float32)
    total = _multiply(x_tile, weight_tile, total, HIDDEN, DEPTH, PRECISION)
    # As in `silu_and_mul`, but not by a function that both share: ptxas would use other registers.
    dtype = gated.dtype.element_ty
    gate, up = total.to(dtype).reshape(ROWS, COLUMNS, 2).split()
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(dtype)
    product = (silu.to(tl.float32) * up.to(tl.float32)).to(dtype)
    columns = first_column + tl.arange(0, COLUMNS)
    tile = gated + rows[:, None].to(tl.int64) * INTERMEDIATE + columns[None, :]
    tl.store(tile, product, mask=inside[:, None] & (columns[None, :] < INTERMEDIATE))


@LaunchableKernel
@triton.jit
def _down_kernel(
    gated,
    down,
    order,
    blocks,
    given,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tiles: tl.constexpr = (HIDDEN + COLUMNS - 1) // COLUMNS
    slot = tl.program_id(0) // tiles
    columns = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    expert = tl.load(blocks + 4 * slot)
    if expert < 0:
        return
    first = tl.load(blocks + 4 * slot + 1)
    end = tl.load(blocks + 4 * slot + 2)
    rows = first + tl.arange(0, ROWS)
    read_rows = tl.minimum(rows, end - 1)
    read_columns = tl.minimum(columns, HIDDEN - 1)
    depth = tl.arange(0, DEPTH)
    gated_tile = gated + read_rows[:, None].to(tl.int64) * INTERMEDIATE + depth[None, :]
    down_tile = down + expert.to(tl.int64) * (HIDDEN * INTERMEDIATE)
    down_tile += read_columns[None, :] * INTERMEDIATE + depth[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    total = _multiply(gated_tile, down_tile, total, INTERMEDIATE, DEPTH, PRECISION)
    choices = tl.load(order + rows, mask=rows < end, other=0)
    tile = given + choices[:, None].to(tl.int64) * HIDDEN + columns[None, :]
    tl.store(tile, total.to(given.dtype.element_ty), mask=(rows < end)[:, None] & (columns[None, :] < HIDDEN))


@triton.jit
def _multiply(values_tile, weight_tile, total, SIZE: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr):
    """Add values @ weights to `total`, DEPTH of the SIZE summed terms at a time; the tiles point to the first terms."""
    depth = tl.arange(0, DEPTH)
    for start in range(0, SIZE, DEPTH):
        if SIZE % DEPTH == 0:
            values = tl.load(values_tile)
            weights = tl.load(weight_tile)
        else:
            left = SIZE - start
            values = tl.load(values_tile, mask=depth[None, :] < left, other=0.0)
            weights = tl.load(weight_tile, mask=depth[:, None] < left, other=0.0)
        total = tl.dot(values, weights, total, input_precision=PRECISION)
        values_tile += DEPTH
        weight_tile += DEPTH
    return total


@LaunchableKernel
@triton.jit
def _combine_kernel(
    given,
    weights,
    out,
    out_stride,
    HIDDEN: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    tiles: tl.constexpr = (HIDDEN + COLUMNS - 1) // COLUMNS
    token = tl.program_id(0) // tiles
    columns = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < HIDDEN
    total = tl.zeros((COLUMNS,), tl.float32)
    for choice in tl.static_range(NUM_CHOSEN):
        place = token * NUM_CHOSEN + choice
        values = tl.load(given + place.to(tl.int64) * HIDDEN + columns, mask=inside, other=0.0)
        total += tl.load(weights + place) * values.to(tl.float32)
    tl.store(out + token.to(tl.int64) * out_stride + columns, total.to(out.dtype.element_ty), mask=inside)
