"""Paged attention against its definition in float64 and against its twin."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.arguments import AttentionRows, KVCache
from kernels.gpu.attention.paged_attention import PagedAttention, paged_attention
from kernels.gpu.attention.plan import AttentionShape, GraphBounds
from kernels.gpu.attention.work import ITEM_FIELDS
from tests.kernels.gpu.attention_cases import (
    SMALL,
    Batch,
    Case,
    attend,
    attend_arguments,
    attend_with,
    check,
    exact_tiles,
    run,
)
from tests.support.effort import combinations, examples

# A row of each kind: decode rows at and around the ends of blocks, steps and tiles, a new prompt, a cached prefix.
MIXED = [(1, 1), (1, 16), (1, 17), (1, 257), (70, 70), (3, 130), (20, 128), (1, 64), (65, 200)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block_size = draw(st.sampled_from([16, 32, 64, 128, 256, 1024]))
    edges = st.builds(lambda multiple, off: max(1, multiple * 64 + off), st.integers(0, 5), st.integers(-2, 2))
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (3, 2), (1, 4), (2, 5), (1, 8), (1, 16)]))
    lens = []
    for _ in range(draw(st.integers(1, 4))):
        context = draw(st.one_of(st.integers(1, 40), edges, st.integers(1, 400)))
        query = draw(st.one_of(st.just(1), st.integers(1, min(20, context)), st.integers(1, min(150, context))))
        lens.append((query, context))
    return Case(
        lens,
        AttentionShape(
            kv_heads * group,
            kv_heads,
            draw(st.sampled_from([16, 32, 64, 128])),
            block_size,
            draw(st.sampled_from([torch.float16, torch.float32])),
        ),
        seed=draw(st.integers(0, 2**20)),
        flash_layout=draw(st.booleans()),
        spare_columns=draw(st.integers(0, 3)),
    )


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    case=cases(),
    num_sms=st.sampled_from([1, 132]),
    piece_len=st.sampled_from([None, 128, 256]),
    one_launch=st.booleans(),
)
def test_any_batch(device: torch.device, case: Case, num_sms: int, piece_len: int | None, one_launch: bool) -> None:
    batch = Batch(case, device)
    check(batch, attend(batch, num_sms, piece_len=piece_len, one_launch=one_launch))


@pytest.mark.parametrize(("block_size", "flash_layout"), combinations([16, 64, 256], [False, True]))
def test_the_twin(device: torch.device, block_size: int, flash_layout: bool) -> None:
    case = Case(MIXED, replace(SMALL, block_size=block_size), flash_layout=flash_layout)
    batch = Batch(case, device)
    results = []
    for function in (paged_attention, reference.paged_attention):
        out = torch.full_like(batch.query, torch.nan)
        rows = AttentionRows(batch.query_starts, batch.lens_on_device, batch.block_tables)
        function(batch.query, batch.cache, rows, batch.scale, out)
        results.append(out)
        check(batch, out)
    torch.testing.assert_close(*results, atol=2e-3, rtol=1e-3)


@pytest.mark.slow
def test_pieces_that_early_queries_of_a_tile_do_not_see(device: torch.device) -> None:
    # Tiles of 32 queries, pieces of 32 positions: the last piece of a tile has a part of the diagonal only.
    batch = Batch(Case([(61, 61), (90, 200)], AttentionShape(4, 2, 64, 16, torch.float32)), device)
    check(batch, attend(batch, piece_len=32))


@pytest.mark.parametrize("group", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_whichever_program_of_a_tile_ends_last(device: torch.device, group: int) -> None:
    """The interpreter runs programs one after another, so the last one in the list merges; here each may be the last.

    Bit for bit, and again with the same counters, as a graph replays.
    """
    lens = [(1, 130), (3, 100), (40, 90), (1, 1)]
    batch = Batch(Case(lens, AttentionShape(2 * group, 2, 64, 16, torch.float32)), device)
    attention = PagedAttention(batch.case.shape, 1, device, exact_tiles, max_partials=4096)
    plan = attention.plan(batch.query_lens, batch.context_lens, piece_len=32)
    expected = run(attention, plan, batch)
    check(batch, expected)
    items = plan.work.reshape(-1, ITEM_FIELDS)
    assert len(plan.launches) == 2
    for seed in range(2):
        orders = [
            launch.first_item + np.random.default_rng(seed).permutation(launch.num_items) for launch in plan.launches
        ]
        shuffled = replace(plan, work=items[np.concatenate(orders)].ravel())
        assert run(attention, shuffled, batch).equal(expected)
        assert not attention._arrived.any(), "the counters are for the next launch"


@pytest.mark.slow
def test_more_pieces_than_a_merge_reads_at_once(device: torch.device) -> None:
    batch = Batch(Case([(1, 32 * 35), (1, 32 * 32), (2, 32 * 17 + 5)], replace(SMALL, dtype=torch.float32)), device)
    check(batch, attend(batch, piece_len=32))


def test_scores_far_apart(device: torch.device) -> None:
    """A softmax that is not shifted by its maximum overflows, and pieces differ by more than float32 can hold."""
    batch = Batch(Case([(1, 300), (30, 200)], replace(SMALL, dtype=torch.float32)), device)
    batch.scale = 200.0
    out = attend(batch, piece_len=32)
    torch.testing.assert_close(out.double(), batch.expected, atol=2e-3, rtol=2e-3)


@pytest.mark.slow
def test_a_context_of_128k(device: torch.device) -> None:
    batch = Batch(Case([(1, 131072), (1, 5)], AttentionShape(2, 1, 64, 1024, torch.float16)), device)
    check(batch, attend(batch, num_sms=132))


@settings(max_examples=examples(8, quick=2))
@given(
    contexts=st.lists(st.one_of(st.integers(1, 50), st.integers(1, 1500)), min_size=1, max_size=5),
    spare_rows=st.integers(0, 2),
)
def test_plans_for_a_graph(device: torch.device, contexts: list[int], spare_rows: int) -> None:
    batch = Batch(Case([(1, context) for context in contexts], replace(SMALL, block_size=256)), device)
    out = attend(batch, num_sms=8, spare_tokens=spare_rows, graph=GraphBounds(len(contexts) + spare_rows, 2000))
    assert torch.equal(out[: len(contexts)], attend(batch, num_sms=8))
    assert out[len(contexts) :].isnan().all()
    check(batch, out[: len(contexts)])


def test_a_graph_of_several_queries_a_row(device: torch.device) -> None:
    batch = Batch(Case([(4, 700), (2, 1000), (4, 4)], SMALL), device)
    out = attend(batch, num_sms=8, graph=GraphBounds(4, 2000, max_query_len=4))
    check(batch, out)


@pytest.mark.slow
@pytest.mark.parametrize("piece_len", [None, 128])
def test_results_do_not_depend_on_company(device: torch.device, piece_len: int | None) -> None:
    """Bit for bit, where the pieces are given or no row is long enough to be cut."""
    longest = 250 if piece_len is None else 900
    lens = [(1, longest), (1, 77), (40, longest - 50), (3, 130)]
    together = attend(Batch(Case(lens, SMALL), device), piece_len=piece_len)
    full = Batch(Case(lens, SMALL), device)
    first = 0
    for row, (query_len, context) in enumerate(lens):
        alone = Batch(Case([(query_len, context)], SMALL), device)
        alone.query = full.query[first : first + query_len]
        alone.cache = full.cache
        alone.block_tables = full.block_tables[row : row + 1]
        assert torch.equal(attend(alone, piece_len=piece_len), together[first : first + query_len])
        first += query_len


def test_an_empty_step(device: torch.device) -> None:
    attention = PagedAttention(SMALL, 1, device)
    plan = attention.plan(np.zeros(0, np.int32), np.zeros(0, np.int32))
    batch = Batch(Case([(1, 1)], SMALL), device)
    assert run(attention, plan, batch).isnan().all()


@pytest.mark.parametrize("block_size", [16, 128])
def test_caches_of_more_than_2_to_the_31_values(host: torch.device, tmp_path: Path, block_size: int) -> None:
    """Blocks that lie 2**30 values apart, in a file that is almost all hole."""
    batch = Batch(Case([(1, 2 * block_size + 8)], replace(SMALL, block_size=block_size)), host)
    num_blocks, *sizes = batch.cache.keys.shape
    assert num_blocks == 5
    assert batch.block_tables[0, :3].max() >= 2
    assert batch.expected.isfinite().all()
    size = (num_blocks - 1) * 2**30 + 2**16
    file = tmp_path / "cache"
    file.touch()
    os.truncate(file, 2 * size)
    memory = torch.from_file(str(file), shared=True, size=size, dtype=torch.float16)
    strides = (2**30, *batch.cache.keys.stride()[1:])
    far = KVCache(*(memory.as_strided((num_blocks, *sizes), strides, offset) for offset in (0, 2**15)))
    far.keys.copy_(batch.cache.keys)
    far.values.copy_(batch.cache.values)
    batch.cache = far
    check(batch, attend(batch))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": lambda x: x[:, :3]}, r"query has shape \(2, 3, 64\), expected \(2, 4, 64\)"),
        ({"query": lambda x: x.bfloat16()}, "query is torch.bfloat16, expected torch.float16"),
        ({"query": lambda x: x[..., 0]}, r"query has shape \(2, 4\), expected \(2, 4, 64\)"),
        ({"query": lambda x: x.mT.contiguous().mT}, r"query has strides \(256, 1, 4\), expected 64 and 1"),
        ({"out": lambda x: x[:1]}, r"out has shape \(1, 4, 64\)"),
        ({"key_cache": lambda x: x.float()}, "key_cache is torch.float32, expected torch.float16"),
        ({"key_cache": lambda x: x[:, :1]}, "key_cache has shape"),
        ({"value_cache": lambda x: x[1:]}, "value_cache has shape"),
        ({"value_cache": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)}, "value_cache has strides"),
        ({"key_cache": lambda x: x.mT.contiguous().mT}, "key_cache has strides .*, expected 1 for the last"),
        ({"block_tables": lambda x: x.long()}, "block_tables is torch.int64, expected torch.int32"),
        ({"block_tables": lambda x: x.mT.contiguous().mT}, "block_tables has strides"),
        ({"block_tables": lambda x: x[0]}, "block_tables has shape .*, expected 2 dimensions"),
        ({"work": lambda x: x[1:]}, "work has shape"),
        ({"work": lambda x: x.long()}, "work is torch.int64"),
        ({"work": lambda x: torch.stack((x, x), 1)[:, 0]}, "work has .* strides"),
        ({"scale": lambda _: 0.0}, "scale is 0.0, expected a positive one"),
    ],
)
def test_what_does_not_fit(device: torch.device, change: dict[str, Callable], message: str) -> None:
    batch = Batch(Case([(1, 40), (1, 20)], SMALL), device)
    attention = PagedAttention(SMALL, 1, device)
    plan = attention.plan(batch.query_lens, batch.context_lens)
    arguments = attend_arguments(batch, plan)
    attend_with(attention, arguments)
    with pytest.raises(ValueError, match=message):
        attend_with(attention, arguments | {name: make(arguments[name]) for name, make in change.items()})


@pytest.mark.gpu
def test_a_captured_graph(device: torch.device) -> None:
    """Captured with one step's work and replayed with others'."""
    shape = AttentionShape(16, 8, 128, 256, torch.bfloat16)
    bounds = GraphBounds(64, 131072)
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    attention = PagedAttention(shape, num_sms, device)
    lens = [[(1, 1)] * 64, [(1, 4000 - 60 * i) for i in range(64)], [(1, 70_000)] + [(1, 9)] * 63]
    batches = [Batch(Case(each, shape, seed=i), device) for i, each in enumerate(lens)]
    plans = [attention.plan(batch.query_lens, batch.context_lens, bounds) for batch in batches]
    columns = max(batch.block_tables.shape[1] for batch in batches)
    num_blocks = max(len(batch.cache.keys) for batch in batches)
    query, out = torch.empty_like(batches[0].query), torch.empty_like(batches[0].query)
    cache = KVCache(*(batches[0].cache.keys.new_empty(num_blocks, 8, 256, 128) for _ in range(2)))
    tables = torch.zeros(64, columns, dtype=torch.int32, device=device)
    work = torch.from_numpy(plans[0].work).to(device)

    def step() -> None:
        step = attention.stage(plans[0], work, tables)
        attention.attend(query, attention.view_cache(cache), step, batches[0].scale, out)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for batch, plan in zip(batches[1:] + batches[:1], plans[1:] + plans[:1], strict=True):
        query.copy_(batch.query)
        cache.keys[: len(batch.cache.keys)] = batch.cache.keys
        cache.values[: len(batch.cache.values)] = batch.cache.values
        tables[:, : batch.block_tables.shape[1]] = batch.block_tables
        work.copy_(torch.from_numpy(plan.work))
        out.fill_(torch.nan)
        graph.replay()
        error = (out.double() - batch.expected).norm() / batch.expected.norm()
        assert error < 4e-3
