"""Paged attention against its definition in float64 and against its twin."""

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.arguments import AttentionRows, KVCache
from kernels.gpu.attention.paged_attention import PagedAttention, paged_attention
from kernels.gpu.attention.plan import (
    AttentionPlan,
    AttentionShape,
    AttentionTiles,
    GraphBounds,
    choose_tiles,
)
from kernels.gpu.attention.work import ITEM_FIELDS
from tests.kernels.gpu.attention_cases import Batch, Case, attend_arguments, attend_with
from tests.support.effort import combinations, covering, examples

SMALL = AttentionShape(4, 2, 64, 16, torch.float16)
# A row of each kind: decode rows at and around the ends of blocks, steps and tiles, a new prompt, a cached prefix.
MIXED = [(1, 1), (1, 16), (1, 17), (1, 257), (70, 70), (3, 130), (20, 128), (1, 64), (65, 200)]


def exact_tiles(shape: AttentionShape, num_queries: int) -> AttentionTiles:
    """Both kinds of tile in float32, so that an error of a millionth shows."""
    return AttentionTiles(
        16 if num_queries * shape.group <= 16 else 64, 32, num_warps=4, num_stages=2, programs_per_sm=1
    )


def attend(batch: Batch, num_sms: int = 1, spare_tokens: int = 0, **options: object) -> Tensor:
    """The batch's attention, from the plan to the result."""
    shape, device = batch.case.shape, batch.query.device
    choose = exact_tiles if shape.dtype == torch.float32 else choose_tiles
    attention = PagedAttention(shape, num_sms, device, choose, max_partials=4096)
    return run(attention, attention.plan(batch.query_lens, batch.context_lens, **options), batch, spare_tokens)


def run(attention: PagedAttention, plan: AttentionPlan, batch: Batch, spare_tokens: int = 0) -> Tensor:
    work = torch.from_numpy(plan.work).to(batch.query.device)
    query = torch.cat((batch.query, torch.full_like(batch.query[:1], torch.nan).expand(spare_tokens, -1, -1)))
    out = torch.full_like(query, torch.nan)
    step = attention.stage(plan, work, batch.block_tables)
    assert attention.attend(query, attention.view_cache(batch.cache), step, batch.scale, out) is out
    return out


def check(batch: Batch, out: Tensor) -> None:
    error = (out.double() - batch.expected).abs().max().item()
    limit = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[out.dtype]
    assert error < limit


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
@settings(max_examples=examples(40), deadline=None)
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


@pytest.mark.parametrize(
    ("piece_len", "group"),
    [(None, 5), (128, 2), (128, 16)]
    + [
        pytest.param(piece_len, group, marks=pytest.mark.slow)
        for piece_len, group in itertools.product([None, 128], [1, 2, 4, 5, 8, 16])
        if (piece_len, group) not in [(None, 5), (128, 2), (128, 16)]
    ],
)
def test_groups_of_query_heads(device: torch.device, group: int, piece_len: int | None) -> None:
    kv_heads = 1 if group > 4 else 2
    shape = AttentionShape(kv_heads * group, kv_heads, 64, 32, torch.float32)
    batch = Batch(Case([(1, 300), (2, 129), (3, 3), (20, 260)], shape), device)
    check(batch, attend(batch, piece_len=piece_len))


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256, 512, 1024])
def test_block_sizes(device: torch.device, block_size: int) -> None:
    edges = [block_size * count + off for count in (1, 2) for off in (-1, 0, 1)]
    lens = [(1, edge) for edge in edges] + [(edges[0] - 8, edges[0])] * (block_size <= 256)
    batch = Batch(Case(lens, replace(SMALL, num_heads=2, num_kv_heads=1, block_size=block_size)), device)
    check(batch, attend(batch))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [16, 32, 128])
def test_head_dims(device: torch.device, head_dim: int, dtype: torch.dtype) -> None:
    batch = Batch(Case([(1, 300), (3, 129), (20, 40)], AttentionShape(4, 2, head_dim, 16, dtype)), device)
    check(batch, attend(batch, piece_len=128))


@pytest.mark.slow
def test_pieces_that_early_queries_of_a_tile_do_not_see(device: torch.device) -> None:
    # Tiles of 32 queries, pieces of 32 positions: the last piece of a tile has a part of the diagonal only.
    batch = Batch(Case([(61, 61), (90, 200)], AttentionShape(4, 2, 64, 16, torch.float32)), device)
    check(batch, attend(batch, piece_len=32))


@pytest.mark.parametrize("group", [2, 5])
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


@settings(max_examples=examples(8, quick=2), deadline=None)
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


QWEN3 = [(16, 8), (32, 8), (40, 8), (64, 8), (4, 1)]
STEPS = {
    "256 x 1k": [(1, 1024)] * 256,
    "32 x 8k": [(1, 8192)] * 32,
    "1 x 128k": [(1, 131072)],
    "ragged": [(1, 1 + 37 * i * i % 5000) for i in range(200)],
    "one long among short": [(1, 150)] * 100 + [(1, 100_000)],
    "prefill 1 x 8k": [(8192, 8192)],
    "prefill 8 x 1k": [(1024, 1024)] * 8,
    "end of 100k": [(200, 100_000)],
    "mixed": [(1, 900)] * 60 + [(5, 1000), (40, 40), (700, 1900), (1500, 1500)],
}


SHAPES = [
    *(AttentionShape(*heads, 128, size, torch.bfloat16) for heads in QWEN3 for size in (16, 64, 256)),
    AttentionShape(16, 8, 128, 32, torch.float16),
    AttentionShape(32, 8, 128, 1024, torch.float16),
    AttentionShape(14, 2, 64, 16, torch.bfloat16),
    AttentionShape(14, 2, 64, 256, torch.bfloat16),
    AttentionShape(4, 2, 16, 16, torch.bfloat16),
    AttentionShape(8, 2, 32, 256, torch.bfloat16),
]


def real_sizes() -> list[Any]:
    """Some of all steps with all shapes, about one in five: a GPU is lent for minutes, and each test takes a second.

    Kinds of tile, groups of heads, block sizes, dtypes, head_dims and layouts meet pair by pair, each step meets blocks
    that are smaller than a tile, as long as one and longer, and each shape is there.
    """
    every = list(itertools.product(STEPS, SHAPES))
    chosen = covering([meetings(combination) for combination in every])
    return [pytest.param(*every[i], id=f"{every[i][0]}-{every[i][1]}") for i in sorted(chosen)]


def meetings(combination: tuple[str, AttentionShape]) -> set[Any]:
    """What is tested together by a step and a shape."""
    step, shape = combination
    is_narrow = {queries == 1 for queries, _ in STEPS[step]}
    kind = (str(is_narrow), shape.group, shape.block_size, shape.dtype, shape.head_dim, flash_layout(shape))
    longer = (shape.block_size > 64) - (shape.block_size < 64)
    return {*itertools.combinations(enumerate(kind), 2), (step, longer), shape}


def flash_layout(shape: AttentionShape) -> bool:
    return shape.num_kv_heads == 8


@pytest.mark.gpu
@pytest.mark.parametrize(("step", "shape"), real_sizes())
def test_real_sizes(device: torch.device, step: str, shape: AttentionShape) -> None:
    case = Case(STEPS[step], shape, flash_layout=flash_layout(shape))
    batch = Batch(case, device)
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    attention = PagedAttention(case.shape, num_sms, device)
    for one_launch in (False, True):
        out = run(attention, attention.plan(batch.query_lens, batch.context_lens, one_launch=one_launch), batch)
        error = (out.double() - batch.expected).norm() / batch.expected.norm()
        assert error < (4e-3 if case.shape.dtype == torch.bfloat16 else 6e-4)


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
