"""Attention over a paged KV cache, and the stores into it, for one flat batch of decode rows and prompt chunks.

A cache is [num_blocks, kv_heads, block_size, head_dim] to look at. In memory a head's positions in a block lie
together on CPUs, where that was measured faster than heads side by side, which is what flash-attn wants. Seen as
[cache rows, head_dim], the vector of `slot` and `head` is cache row `(block * kv_heads + head) * block_size + offset`;
attention goes by these rows, so any block size takes the same path.

What a step's layers have in common (which rows attend together, their masks) is worked out once by `plan_tiles`.
`paged_attention` does both at once: it is the twin with the signature that kernels share.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from kernels.arguments import AttentionRows, KVCache

# Elements of K gathered at once. Beyond about 4 MiB the gathered copy falls out of the L2 cache before it is read
# (64 rows of 512 positions in float32: 42 ms at 2 to 4 MiB, 67 ms in one piece, on an EPYC 9005 core).
TILE_ELEMENTS = 2**20
# Queries of a prompt chunk that share one mask. Later pieces see more keys; shorter pieces waste less on masked ones.
QUERY_PIECE = 256


@dataclass(frozen=True)
class Tile:
    """Rows that attend in one call: either single-token rows of similar context length, or one prompt chunk.

    Attributes:
        tokens: [queries] int64, the tokens of the step that are this tile's queries.
        cache_rows: [rows * kv_heads * width] int64, K and V to gather. Past a row's context they repeat its last
            position, so that nothing is ever read that was not written (a stale NaN would survive any mask).
        width: positions gathered for each row.
        num_rows: rows in the tile.
        mask: bool, true where a query sees a key: [rows, 1, 1, width] for single-token rows, [queries, width] for a
            chunk; None if every query sees everything.
    """

    tokens: Tensor
    cache_rows: Tensor
    width: int
    num_rows: int
    mask: Tensor | None


def store_kv(key: Tensor, value: Tensor, cache: KVCache, slot_mapping: Tensor) -> None:
    """Write K and V of a step into the cache, in place.

    Args:
        key, value: [tokens, kv_heads, head_dim], dtype of the cache.
        cache: in any strides.
        slot_mapping: [tokens] integers, `block * block_size + offset`; -1 is skipped.
    """
    stored = (slot_mapping >= 0).nonzero().squeeze(1)
    if len(stored) < len(slot_mapping):
        key, value, slot_mapping = (tensor.index_select(0, stored) for tensor in (key, value, slot_mapping))
    slots, block_size = slot_mapping.long(), cache.keys.shape[2]
    blocks, offsets = slots // block_size, slots % block_size
    cache.keys[blocks, :, offsets] = key
    cache.values[blocks, :, offsets] = value


def expand_block_tables(block_ids: Tensor, table_starts: Tensor, out: Tensor) -> None:
    """Ragged block tables into a rectangle; entries past a row's table stay as they are.

    Args:
        block_ids: [sum of the tables' lengths] integers.
        table_starts: [rows + 1] integers; row r's table is `block_ids[table_starts[r] : table_starts[r + 1]]`.
        out: [rows, width], dtype of `block_ids`.
    """
    starts = table_starts.tolist()
    for row, (start, end) in enumerate(itertools.pairwise(starts)):
        out[row, : end - start] = block_ids[start:end]


def plan_tiles(
    query_starts: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Tensor,
    num_kv_heads: int,
    block_size: int,
    head_dim: int,
) -> list[Tile]:
    """Group a batch's rows into tiles.

    Single-token rows are sorted by context length and cut where a tile would outgrow the cache or would be mostly
    padding, so one long row does not stretch the gather of many short ones.

    Args:
        query_starts: rows + 1 entries; row r's tokens are `query_starts[r] .. query_starts[r + 1] - 1`.
        context_lens: one entry for each row; the row's last token stands at position `context_lens[r] - 1`.
        block_tables: [rows, max blocks] integers, padded with anything.
        num_kv_heads, block_size, head_dim: of the cache.
    """
    geometry = (block_tables, num_kv_heads, block_size)
    tiles = []
    singles = []
    for row, context_len in enumerate(context_lens):
        if query_starts[row + 1] - query_starts[row] == 1:
            singles.append(row)
        else:
            tiles.append(_chunk_tile(row, query_starts[row], query_starts[row + 1], context_len, *geometry))
    singles.sort(key=lambda row: context_lens[row])

    max_positions = max(1, TILE_ELEMENTS // (num_kv_heads * head_dim))
    start = 0
    for end in range(1, len(singles) + 1):
        if end < len(singles):
            width = context_lens[singles[end]]
            shortest = context_lens[singles[start]]
            if (end - start + 1) * width <= max_positions and width <= 2 * shortest + 64:
                continue
        rows = singles[start:end]
        tiles.append(_decode_tile(rows, query_starts, [context_lens[row] for row in rows], *geometry))
        start = end
    return tiles


def attend_tiles(
    query: Tensor, cache: KVCache, tiles: Sequence[Tile], scale: float, scratch: Tensor, out: Tensor
) -> None:
    """Attention of one layer, see `paged_attention`, but over a contiguous cache only.

    `scratch` is [2, >= scratch_rows(tiles), head_dim] in the dtype of the cache.
    """
    _, num_kv_heads, _, head_dim = cache.keys.shape
    for tile in tiles:
        shape = (tile.num_rows, num_kv_heads, tile.width, head_dim)
        key, value = (
            torch.index_select(vectors.view(-1, head_dim), 0, tile.cache_rows, out=space[: len(tile.cache_rows)])
            for vectors, space in ((cache.keys, scratch[0]), (cache.values, scratch[1]))
        )
        attend = _attend_singles if tile.num_rows == len(tile.tokens) else _attend_chunk
        attended = attend(query.index_select(0, tile.tokens), key.view(shape), value.view(shape), tile.mask, scale)
        out.index_copy_(0, tile.tokens, attended)


def scratch_rows(tiles: Sequence[Tile]) -> int:
    """Vectors of head_dim that `attend_tiles` gathers at most for each of K and V."""
    return max(len(tile.cache_rows) for tile in tiles)


def paged_attention(query: Tensor, cache: KVCache, rows: AttentionRows, scale: float, out: Tensor) -> None:
    """Causal grouped-query attention of a mixed batch (PagedAttention, Kwon et al. 2023, arXiv:2309.06180).

    Token i of a row with q queries and a context of c stands at position `c - q + i` and sees positions up to its own.

    Args:
        query: [tokens, heads, head_dim].
        cache: in the dtype of `query` and any strides; heads is a multiple of kv_heads.
        rows: of the step; of any integer dtype.
        scale: of the scores, `head_dim ** -0.5`.
        out: [tokens, heads, head_dim], dtype of `query`.
    """
    _, num_kv_heads, block_size, head_dim = cache.keys.shape
    starts, lens = rows.query_starts.tolist(), rows.context_lens.tolist()
    tiles = plan_tiles(starts, lens, rows.block_tables, num_kv_heads, block_size, head_dim)
    scratch = cache.keys.new_empty(2, scratch_rows(tiles), head_dim)
    dense = KVCache(cache.keys.contiguous(), cache.values.contiguous())
    attend_tiles(query, dense, tiles, scale, scratch, out)


def _decode_tile(
    rows: list[int],
    query_starts: Sequence[int],
    context_lens: list[int],
    block_tables: Tensor,
    num_kv_heads: int,
    block_size: int,
) -> Tile:
    device = block_tables.device
    width = context_lens[-1]  # rows come sorted
    ends = torch.tensor(context_lens, device=device)[:, None]
    every = torch.arange(width, device=device)
    positions = torch.minimum(every, ends - 1)
    mask = None if context_lens[0] == width else (every < ends)[:, None, None, :]
    return Tile(
        tokens=torch.tensor([query_starts[row] for row in rows], device=device),
        cache_rows=_cache_rows(block_tables[torch.tensor(rows, device=device)], positions, num_kv_heads, block_size),
        width=width,
        num_rows=len(rows),
        mask=mask,
    )


def _chunk_tile(
    row: int, start: int, end: int, context_len: int, block_tables: Tensor, num_kv_heads: int, block_size: int
) -> Tile:
    device = block_tables.device
    positions = torch.arange(context_len, device=device)
    return Tile(
        tokens=torch.arange(start, end, device=device),
        cache_rows=_cache_rows(block_tables[row : row + 1], positions[None], num_kv_heads, block_size),
        width=context_len,
        num_rows=1,
        mask=positions <= positions[start - end :, None],
    )


def _cache_rows(tables: Tensor, positions: Tensor, num_kv_heads: int, block_size: int) -> Tensor:
    """Cache rows of positions [rows, width] for every head, as [rows * kv_heads * width]."""
    blocks = tables.gather(1, positions // block_size).long()
    first_rows = blocks * (num_kv_heads * block_size) + positions % block_size
    heads = torch.arange(num_kv_heads, device=tables.device) * block_size
    return (first_rows[:, None, :] + heads[:, None]).reshape(-1)


def _attend_singles(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """One query a row. The query heads of a KV head stand in as its queries, so K and V are not repeated."""
    num_rows, num_kv_heads = key.shape[:2]
    grouped = query.view(num_rows, num_kv_heads, -1, query.shape[-1])
    return F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scale).view_as(query)


def _attend_chunk(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The queries of one row, piece by piece; a piece reads the keys up to its last position only."""
    assert mask is not None
    num_queries, context_len = mask.shape
    pieces = []
    for start in range(0, num_queries, QUERY_PIECE):
        end = min(start + QUERY_PIECE, num_queries)
        visible = context_len - num_queries + end
        attended = F.scaled_dot_product_attention(
            query[None, start:end].transpose(1, 2),
            key[:, :, :visible],
            value[:, :, :visible],
            attn_mask=mask[start:end, :visible],
            scale=scale,
            enable_gqa=True,
        )
        pieces.append(attended[0].transpose(0, 1))
    return torch.cat(pieces)
