"""Paged attention of mixed batches, against the twin in float64."""

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.arguments import AttentionRows, KVCache
from kernels.cpu import CpuKernels
from tests.kernels.cpu.helpers import distance, noise, poisoned
from tests.support.effort import examples

# Scores are float32 and weights bf16, whose sum is that of the rounded ones; the result is rounded once more.
TOLERANCE = 0.005


@dataclass(frozen=True)
class Batch:
    """What `paged_attention` takes."""

    query: Tensor
    cache: KVCache
    rows: AttentionRows


def make(
    rows: list[tuple[int, int]],
    block_size: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    seed: int,
    scale: float = 1.0,
) -> Batch:
    """Rows are (query_len, context_len). Slots that no row uses are NaN, entries of tables that none needs are wild."""
    counts = [-(-context // block_size) for _, context in rows]
    num_blocks = sum(counts) + 2
    free = random.Random(seed).sample(
        range(1, num_blocks), num_blocks - 1
    )  # block 0 stays NaN: nothing may stray there
    cache = KVCache(*(poisoned(num_blocks, kv_heads, block_size, head_dim) for _ in range(2)))
    tables = torch.full((len(rows), max(counts) + 1), 2**30, dtype=torch.int32)
    for row, (count, (_, context)) in enumerate(zip(counts, rows, strict=True)):
        tables[row, :count] = torch.tensor([free.pop() for _ in range(count)])
        positions = torch.arange(context)
        slots = tables[row, positions // block_size] * block_size + positions % block_size
        key, value = (noise(context, kv_heads, head_dim, seed=seed + 7 * row + side) for side in range(2))
        reference.store_kv(key * scale, value, cache, slots)
    query_lens = [query_len for query_len, _ in rows]
    query = noise(sum(query_lens), kv_heads * group, head_dim, seed=seed)
    contexts = torch.tensor([context for _, context in rows], dtype=torch.int32)
    return Batch(query, cache, AttentionRows(torch.tensor([0, *query_lens]).cumsum(0).int(), contexts, tables))


def attend(kernels: CpuKernels, batch: Batch) -> Tensor:
    out = poisoned(*batch.query.shape)
    kernels.paged_attention(**vars(batch), scale=batch.query.shape[-1] ** -0.5, out=out)
    return out


def check(kernels: CpuKernels, batch: Batch) -> None:
    expected = torch.empty_like(batch.query, dtype=torch.float64)
    cache = KVCache(batch.cache.keys.double(), batch.cache.values.double())
    rows = replace(batch.rows, block_tables=batch.rows.block_tables.clamp(max=len(cache.keys) - 1))
    reference.paged_attention(batch.query.double(), cache, rows, batch.query.shape[-1] ** -0.5, expected)
    out = attend(kernels, batch)
    assert distance(out, expected) < TOLERANCE
    errors = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)  # of each head of each token
    assert errors.max() < 3 * TOLERANCE


@st.composite
def rows(draw: st.DrawFn) -> tuple[int, int]:
    context_len = draw(st.one_of(st.integers(1, 70), st.sampled_from([255, 256, 257, 300])))
    return draw(st.one_of(st.just(1), st.integers(1, min(context_len, 40)))), context_len


@settings(max_examples=examples(30))
@given(
    rows=st.lists(rows(), min_size=1, max_size=5),
    block_size=st.sampled_from([1, 3, 16, 32, 256]),
    kv_heads=st.sampled_from([1, 2]),
    group=st.sampled_from([1, 2, 3, 4, 5, 8]),
    head_dim=st.sampled_from([64, 128]),
    seed=st.integers(0, 2**16),
)
def test_any_mixed_batch(
    kernels: CpuKernels,
    rows: list[tuple[int, int]],
    block_size: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    seed: int,
) -> None:
    check(kernels, make(rows, block_size, kv_heads, group, head_dim, seed))


@pytest.mark.parametrize("group", [1, 2, 5])
def test_several_blocks_of_queries_and_chunks_of_positions(kernels: CpuKernels, group: int) -> None:
    check(kernels, make([(140, 140), (130, 530), (1, 800), (2, 513)], 16, 1, group, 64, seed=1))


def test_scores_that_only_differences_of_survive(kernels: CpuKernels) -> None:
    """Scores of some thousands: without their maximum taken off, in and between chunks, all weights would be inf."""
    batch = make([(1, 600), (9, 600)], 16, 1, 2, 64, seed=3, scale=500)
    check(kernels, batch)


def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels) -> None:
    batch = make([(1, 700), (33, 300), (1, 20), (1, 256)], 16, 2, 2, 64, seed=5)
    together = attend(kernels, batch)
    for row in range(4):
        first, last = batch.rows.query_starts[row : row + 2].tolist()
        alone = Batch(
            batch.query[first:last].contiguous(),
            batch.cache,
            AttentionRows(
                torch.tensor([0, last - first], dtype=torch.int32),
                batch.rows.context_lens[row : row + 1],
                batch.rows.block_tables[row : row + 1],
            ),
        )
        assert torch.equal(attend(kernels, alone), together[first:last]), row


def part_of(batch: Batch, cuts: list[int]) -> Batch:
    """A batch of one row as several: those of its queries and of its context between two cuts."""
    num_rows = len(cuts) - 1
    tables = batch.rows.block_tables.expand(num_rows, -1).contiguous()
    before = int(batch.rows.context_lens) - len(batch.query)
    contexts = torch.tensor([before + cut for cut in cuts[1:]], dtype=torch.int32)
    return Batch(batch.query, batch.cache, AttentionRows(torch.tensor(cuts, dtype=torch.int32), contexts, tables))


@settings(max_examples=examples(40))
@given(
    data=st.data(),
    context_len=st.one_of(st.integers(1, 70), st.integers(240, 300), st.integers(505, 540)),
    group=st.sampled_from([1, 2, 3, 4, 5, 8]),
    head_dim=st.sampled_from([64, 128]),
    scale=st.sampled_from([1.0, 20.0]),
    seed=st.integers(0, 2**16),
)
def test_a_query_gives_the_same_bits_alone_and_in_any_part_of_a_prompt(
    kernels: CpuKernels, data: st.DataObject, context_len: int, group: int, head_dim: int, scale: float, seed: int
) -> None:
    """So what was decoded may be computed again as part of a prompt, and a prompt may be cut anywhere."""
    num_queries = data.draw(st.integers(1, min(context_len, 150)))
    cuts = data.draw(st.sets(st.integers(1, num_queries)))
    batch = make([(num_queries, context_len)], 16, 2, group, head_dim, seed, scale)
    whole = attend(kernels, batch)
    assert torch.equal(
        attend(kernels, part_of(batch, sorted({0, num_queries} | cuts))).view(torch.int16), whole.view(torch.int16)
    )
    singly = attend(kernels, part_of(batch, list(range(num_queries + 1))))
    assert torch.equal(singly.view(torch.int16), whole.view(torch.int16))


def test_what_does_not_fit_is_refused(kernels: CpuKernels) -> None:
    batch = make([(1, 5)], 16, 2, 2, 64, seed=0)
    cache, rows, out = batch.cache, batch.rows, torch.empty_like(batch.query)

    def refuses(message: str, **wrong: Any) -> None:
        with pytest.raises(ValueError, match=message):
            kernels.paged_attention(**{**vars(batch), "scale": 0.125, "out": out, **wrong})

    refuses("3 heads, no multiple of the 2 KV heads", query=batch.query[:, :3].contiguous())
    refuses("key_cache has strides", cache=replace(cache, keys=cache.keys.transpose(1, 2)))
    refuses("value_cache is", cache=replace(cache, values=cache.values[1:]))
    refuses("context_lens is torch.int64", rows=replace(rows, context_lens=rows.context_lens.long()))
    refuses("query_starts is", rows=replace(rows, query_starts=rows.query_starts[:1]))
    refuses("out is", out=out[..., :32])
