"""Paged attention against a model of it that knows no blocks, tiles or masks."""

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.arguments import AttentionRows, KVCache
from kernels.reference import attention
from tests.support.effort import examples


@dataclass(frozen=True)
class Case:
    """A mixed batch: `rows` are (query_len, context_len)."""

    rows: list[tuple[int, int]]
    block_size: int
    num_kv_heads: int
    group: int
    head_dim: int
    seed: int
    heads_side_by_side: bool = False  # in memory, as flash-attn has them


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        context_len = draw(st.integers(1, 70))
        query_len = draw(st.one_of(st.just(1), st.integers(1, context_len)))
        rows.append((query_len, context_len))
    return Case(
        rows=rows,
        block_size=draw(st.sampled_from([1, 2, 3, 7, 16, 64])),
        num_kv_heads=draw(st.sampled_from([1, 2, 3])),
        group=draw(st.sampled_from([1, 2, 5])),
        head_dim=draw(st.sampled_from([2, 8, 24])),
        seed=draw(st.integers(0, 2**20)),
        heads_side_by_side=draw(st.booleans()),
    )


def naive(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One query [heads, dim] over all of keys, values [positions, kv_heads, dim], in float64."""
    group = query.shape[0] // keys.shape[1]
    out = []
    for head, vector in enumerate(query.double()):
        weights = (keys[:, head // group].double() @ vector * scale).softmax(0)
        out.append(weights @ values[:, head // group].double())
    return torch.stack(out)


def check(case: Case) -> None:
    rng = random.Random(case.seed)
    generator = torch.Generator().manual_seed(case.seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    counts = [-(-context // case.block_size) for _, context in case.rows]
    num_blocks = sum(counts) + 3
    free = rng.sample(range(num_blocks), num_blocks)
    shape = (num_blocks, case.num_kv_heads, case.block_size, case.head_dim)
    caches = [torch.full(shape, torch.nan) for _ in range(2)]
    if case.heads_side_by_side:
        caches = [cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in caches]
    cache = KVCache(*caches)
    tables = torch.zeros(len(case.rows), max(counts), dtype=torch.int64)
    contexts = []
    for row, (count, (_, context)) in enumerate(zip(counts, case.rows, strict=True)):
        tables[row, :count] = torch.tensor([free.pop() for _ in range(count)])
        keys, values = (noise(context, case.num_kv_heads, case.head_dim) for _ in range(2))
        positions = torch.arange(context)
        slots = tables[row, positions // case.block_size] * case.block_size + positions % case.block_size
        reference.store_kv(keys, values, cache, slots)
        contexts.append((keys, values))
    query_lens = [query_len for query_len, _ in case.rows]
    query = noise(sum(query_lens), case.num_kv_heads * case.group, case.head_dim)
    starts = torch.tensor([0, *query_lens]).cumsum(0)

    out = torch.full_like(query, torch.nan)
    rows = AttentionRows(starts, torch.tensor([context for _, context in case.rows]), tables)
    reference.paged_attention(query, cache, rows, case.head_dim**-0.5, out)

    token = 0
    for (query_len, context), (keys, values) in zip(case.rows, contexts, strict=True):
        for visible in range(context - query_len + 1, context + 1):
            expected = naive(query[token], keys[:visible], values[:visible], case.head_dim**-0.5)
            torch.testing.assert_close(out[token].double(), expected, atol=1e-5, rtol=1e-4)
            token += 1


@settings(max_examples=examples(150))
@given(cases())
def test_any_mixed_batch(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_chunks_longer_than_one_piece_of_queries(block_size: int) -> None:
    pieces = attention.QUERY_PIECE
    rows = [(pieces, pieces), (1, 40), (pieces + 1, pieces + 9), (2 * pieces, 2 * pieces)]
    check(Case(rows, block_size=block_size, num_kv_heads=2, group=2, head_dim=8, seed=1))


def test_single_rows_are_few_calls_and_little_padding() -> None:
    def tiles_of(context_lens: list[int]) -> list[attention.Tile]:
        starts = list(range(len(context_lens) + 1))
        tables = torch.zeros(len(context_lens), max(context_lens), dtype=torch.int64)
        return attention.plan_tiles(starts, context_lens, tables, 2, 16, 64)

    assert len(tiles_of([50 + i for i in range(64)])) == 1
    mixed = tiles_of([8000] + [30] * 63)
    assert sorted(tile.width for tile in mixed) == [30, 8000]
    assert sorted(token for tile in mixed for token in tile.tokens.tolist()) == list(range(64))
    most = attention.TILE_ELEMENTS // (2 * 64)  # positions
    assert [tile.num_rows for tile in tiles_of([2 * most // 5] * 5)] == [2, 2, 1]
    assert [tile.num_rows for tile in tiles_of([5 * most] * 2)] == [1, 1]


def test_slot_minus_one_stores_nothing() -> None:
    cache = KVCache(torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 8))
    key, value = torch.ones(3, 2, 8), torch.full((3, 2, 8), 2.0)
    reference.store_kv(key, value, cache, torch.tensor([7, -1, 0]))
    assert cache.keys.sum() == 2 * 16
    assert (cache.keys[2, :, 1] == 1).all()
    assert (cache.values[0, :, 0] == 2).all()
    before = cache.keys.clone()
    reference.store_kv(key, value, cache, torch.tensor([-1, -1, -1]))
    assert (cache.keys == before).all()
