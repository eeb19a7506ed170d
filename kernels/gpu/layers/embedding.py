"""The embedding gather, which also fills in the tokens that the host does not know yet."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import check_dtype, check_last_stride, check_rank, check_tensor
from kernels.gpu.integers import ceil_div, next_power_of_two
from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.layers.row_tile import RowTile

_MAX_COLUMNS = 2048


def choose_embedding_tile(size: int) -> RowTile:
    """A part of one token's row for each program; one configuration for each row size.

    Args:
        size: values of an embedding.
    """
    columns = min(_MAX_COLUMNS, next_power_of_two(size))
    return RowTile(1, columns, num_warps=max(1, columns // 512))


def embed_tokens(token_ids: Tensor, token_lanes: Tensor, last_tokens: Tensor, table: Tensor, out: Tensor) -> None:
    """Embeddings of a plan's tokens. Ids and lanes are trusted: one beyond its tensor reads foreign memory.

    Args:
        token_ids: [tokens] int32; -1 stands for the last token sampled in the token's lane.
        token_lanes: [tokens] int32, lane of the row each token belongs to; read only for the id -1.
        last_tokens: [lanes] int32, the token last sampled in each lane.
        table: [vocab, size], bfloat16, float16 or float32; the rows may lie apart, each must be dense.
        out: [tokens, size], dtype of `table`, likewise.

    Raises:
        ValueError: a shape, dtype, device or stride does not fit.
    """
    check_rank("table", table, 2)
    check_dtype("table", table)
    check_rank("token_ids", token_ids, 1)
    check_rank("last_tokens", last_tokens, 1)
    num_tokens, size, device = len(token_ids), table.shape[1], table.device
    check_tensor("token_ids", token_ids, (num_tokens,), torch.int32, device)
    check_tensor("token_lanes", token_lanes, (num_tokens,), torch.int32, device)
    check_tensor("last_tokens", last_tokens, tuple(last_tokens.shape), torch.int32, device)
    check_tensor("out", out, (num_tokens, size), table.dtype, device)
    for name, tensor in (("token_ids", token_ids), ("token_lanes", token_lanes), ("last_tokens", last_tokens)):
        check_last_stride(name, tensor)
    check_last_stride("table", table)
    check_last_stride("out", out)
    if out.numel() == 0:
        return
    tile = choose_embedding_tile(size)
    _embed_tokens_kernel.launch(
        (num_tokens * ceil_div(size, tile.columns),),
        token_ids,
        token_lanes,
        last_tokens,
        table,
        out,
        table.stride(0),
        out.stride(0),
        SIZE=size,
        COLUMNS=tile.columns,
        num_warps=tile.num_warps,
    )


# The ids are slices of a step's staged inputs: their alignment changes from step to step and buys nothing here.
@LaunchableKernel
@triton.jit(do_not_specialize_on_alignment=["token_ids", "token_lanes", "last_tokens"])
def _embed_tokens_kernel(
    token_ids,
    token_lanes,
    last_tokens,
    table,
    out,
    table_stride,
    out_stride,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    tiles_per_row: tl.constexpr = (SIZE + COLUMNS - 1) // COLUMNS
    token = tl.program_id(0) // tiles_per_row
    columns = (tl.program_id(0) % tiles_per_row) * COLUMNS + tl.arange(0, COLUMNS)
    token_id = tl.load(token_ids + token)
    if token_id < 0:
        token_id = tl.load(last_tokens + tl.load(token_lanes + token))
    # int64: a vocabulary of 151,936 rows, or 65,536 tokens, passes 2**31 values at a size of 14,135 or 32,768.
    values = tl.load(table + token_id.to(tl.int64) * table_stride + columns, mask=columns < SIZE)
    tl.store(out + token.to(tl.int64) * out_stride + columns, values, mask=columns < SIZE)
