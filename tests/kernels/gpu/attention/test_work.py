"""How attention is cut into work: all of it, nothing twice, in parts that end together, within a graph's capacity."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu.attention.plan import AttentionPlan, AttentionPlanner, AttentionShape, GraphBounds, choose_tiles
from kernels.gpu.attention.work import ITEM_FIELDS, Capacity, Cutting, RowColumns, WorkList, cut_rows
from tests.support.effort import examples

H200_SMS = 132
SHAPE = AttentionShape(16, 8, 128, 256, torch.bfloat16)

Lens = list[tuple[int, int]]


def rows_of(lens: Lens) -> RowColumns:
    """Rows of (query_len, context_len)."""
    queries, contexts = (np.array([pair[i] for pair in lens], np.int32) for i in range(2))
    return RowColumns(
        np.arange(len(lens), dtype=np.int32), np.cumsum(queries, dtype=np.int32) - queries, queries, contexts
    )


def items_of(plan: AttentionPlan) -> np.ndarray:
    return plan.work.reshape(-1, ITEM_FIELDS)


@st.composite
def cuttings(draw: st.DrawFn) -> Cutting:
    step = draw(st.sampled_from([16, 32, 64]))
    return Cutting(
        tile_queries=draw(st.integers(1, 9)),
        group=draw(st.integers(1, 3)),
        step=step,
        slots=draw(st.integers(1, 60)),
        grain=draw(st.integers(1, 20)),
        whole_len=draw(st.sampled_from([0, 100, 600])),
        min_piece=draw(st.sampled_from([1, 2 * step, 200])),
    )


@st.composite
def row_lens(draw: st.DrawFn, longest: int = 5000, most: int = 12) -> Lens:
    lens = []
    for _ in range(draw(st.integers(1, most))):
        context = draw(st.one_of(st.integers(1, 100), st.integers(1, longest)))
        query = draw(st.one_of(st.just(1), st.integers(1, min(context, 40))))
        lens.append((query, context))
    return lens


@st.composite
def like_lens(draw: st.DrawFn) -> Lens:
    """Decode rows of much the same length, so that most are cut or none, and one that may be longer."""
    length, count = draw(st.integers(100, 20_000)), draw(st.integers(1, 60))
    off = st.integers(-length // 50, length // 50)
    return [(1, length + draw(off)) for _ in range(count)] + [(1, draw(st.integers(1, 10 * length)))]


@st.composite
def shrinking_lens(draw: st.DrawFn) -> Lens:
    """Decode rows each of which is much of what is left of the work: more of them are cut than of any others."""
    lens: Lens = []
    length, ratio = float(draw(st.integers(1000, 2**20))), draw(st.floats(0.3, 0.99))
    while length >= 1 and len(lens) < 300:
        lens.append((1, int(length)))
        length *= ratio
    return lens


def check_work(work: WorkList, rows: RowColumns, cutting: Cutting, first_partial: int) -> None:
    """Each query sees each of its positions exactly once, and each partial result is where the merge looks for it."""
    seen: dict[int, list[tuple[int, int, int, int]]] = {}
    used: list[int] = []
    for row, token, count, position, start, end, first, piece, pieces, zero in work.items.tolist():
        assert zero == 0
        assert 1 <= count <= cutting.tile_queries
        assert 0 <= start < end <= position + count
        assert start % cutting.step == 0
        query = token - int(rows.tokens[row])
        assert position == rows.contexts[row] - rows.queries[row] + query
        assert query + count <= rows.queries[row]
        assert (first < 0) == (pieces == 1)
        if first >= 0:
            used += range(first + piece * count, first + (piece + 1) * count)
        for i in range(count):
            seen.setdefault(token + i, []).append((start, end, first, pieces))
    assert sorted(seen) == list(range(int(rows.queries.sum())))
    assert sorted(used) == list(range(first_partial, first_partial + work.num_partials))
    for row, (token, num_queries) in enumerate(zip(rows.tokens.tolist(), rows.queries.tolist(), strict=True)):
        for query in range(num_queries):
            pieces = sorted(seen[token + query])
            assert [piece[0] for piece in pieces] == [0, *(piece[1] for piece in pieces[:-1])]
            assert pieces[-1][1] > rows.contexts[row] - num_queries + query
            assert {piece[2:] for piece in pieces} == {(pieces[0][2], len(pieces))}
    lengths = work.items[:, 5] - work.items[:, 4]
    assert (np.diff(lengths) <= 0).all()


@settings(max_examples=examples(300))
@given(cuttings(), row_lens(), st.integers(0, 5), st.one_of(st.none(), st.integers(1, 8)))
def test_every_query_sees_each_position_once(
    cutting: Cutting, lens: Lens, first_partial: int, steps: int | None
) -> None:
    rows = rows_of(lens)
    piece_len = steps and steps * cutting.step
    check_work(cut_rows(cutting, rows, piece_len, first_partial), rows, cutting, first_partial)


@settings(max_examples=examples(200))
@given(cuttings(), row_lens(longest=50_000))
def test_no_item_is_much_longer_than_its_share(cutting: Cutting, lens: Lens) -> None:
    """Unless merging shorter ones would take longer than computing them."""
    items = cut_rows(cutting, rows_of(lens)).items
    tiles = cut_rows(cutting, rows_of(lens), piece_len=2**20 * cutting.step).items
    share = (tiles[:, 5] - tiles[:, 4]).sum() / cutting.slots
    for _, _, count, position, start, end, _, _, pieces, _ in items.tolist():
        length = position + count
        enough = (pieces + 1) ** 2 * count * cutting.group > 2 * length
        if length > cutting.whole_len and not enough:
            assert end - start <= max(1.25 * share, cutting.min_piece) + 2 * cutting.step


def makespan(items: np.ndarray, num_heads: int, num_slots: int) -> float:
    """When the last item ends, in positions, if each slot takes the next item of the list as soon as it is free."""
    slots = [0] * num_slots
    for length in (items[:, 5] - items[:, 4]).tolist():
        for _ in range(num_heads):
            heapq.heapreplace(slots, slots[0] + length)
    return max(slots)


@pytest.mark.parametrize(
    ("lens", "most", "before"),
    [
        ("nano", 1.05, 1.11),
        ([1024] * 256, 1.03, 1.16),
        ([8192] * 32, 1.05, 1.04),
        ([8192], 1.55, 1.94),
        ([640] * 16, 1.24, 1.55),
        ([640] * 64, 1.1, 1.55),
        ([2048] * 200, 1.06, 1.24),
        ([1000] * 50, 1.15, 1.98),
        ([100_000] + [150] * 100, 1.05, 1.11),
    ],
    ids=["nano's mean step", "256 x 1k", "32 x 8k", "1 x 8k", "16 x 640", "64 x 640", "200 x 2k", "50 x 1k", "1 long"],
)
def test_decode_items_end_together(lens: list[int] | str, most: float, before: float) -> None:
    """The last item ends so many times after an even share of all work; `before` is what two pieces a slot reached.

    A slot is a program's place on an SM. This is the worst case, in which a program is as slow when it is alone on the
    GPU as beside others. Programs that share the memory's rate end more evenly.
    """
    if lens == "nano":  # prompts and answers of 100 to 1,024 tokens, 128 of them in the middle of their answers
        rng = np.random.default_rng(0)
        lens = (rng.integers(100, 1025, 128) + rng.random(128) * rng.integers(100, 1025, 128)).astype(int).tolist()
    contexts = np.array(lens, np.int32)
    made = AttentionPlanner(SHAPE, H200_SMS).plan(np.ones_like(contexts), contexts)
    slots = H200_SMS * made.launches[0].config.programs_per_sm
    reached = makespan(items_of(made), SHAPE.num_kv_heads, slots) / (contexts.sum() * SHAPE.num_kv_heads / slots)
    assert reached <= most <= max(before, 1.05)


def test_a_long_row_among_many_that_are_hardly_too_long_is_cut() -> None:
    cutting = Cutting(tile_queries=1, group=1, step=16, slots=10, grain=8, whole_len=100, min_piece=16)
    items = cut_rows(cutting, rows_of([(1, 1050)] * 15 + [(1, 4200)])).items
    assert (items[:, 5] - items[:, 4]).max() < 2100


@settings(max_examples=examples(300))
@given(cuttings(), st.one_of(row_lens(longest=50_000, most=40), like_lens(), shrinking_lens()))
def test_any_context_lengths_fit_the_capacity(cutting: Cutting, lens: Lens) -> None:
    lens = [(min(query, cutting.tile_queries), context) for query, context in lens]
    work = cut_rows(cutting, rows_of(lens))
    capacity = cutting.capacity(len(lens), max(query for query, _ in lens))
    padded = work.padded(capacity)
    assert padded.items.shape == (capacity.items, ITEM_FIELDS)
    assert (padded.items[: len(work.items)] == work.items).all()
    assert (padded.items[len(work.items) :, 0] == -1).all()
    assert work.num_partials <= min(capacity.partials, cutting.max_partials)


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("lens", [[1] * 255 + [131072], [131072] * 256, [600] * 256, [4000, 131072], [131072]])
def test_graph_plans_have_one_form(kv_heads: int, lens: list[int]) -> None:
    planner = AttentionPlanner(replace(SHAPE, num_kv_heads=kv_heads, num_heads=2 * kv_heads), H200_SMS)
    bounds = GraphBounds(len(lens), 131072)
    ones = np.ones(len(lens), np.int32)
    first, second = (planner.plan(ones, contexts, bounds) for contexts in (np.array(lens), ones))
    assert first.launches == second.launches
    assert first.work.shape == second.work.shape
    assert (items_of(second)[len(lens) :] == -1).all()
    # Few programs are launched in vain: four rounds of the GPU's programs, which end at once.
    assert len(items_of(first)) <= len(lens) + 4 * (3 * H200_SMS // kv_heads)


def test_work_that_does_not_fit_is_refused() -> None:
    cutting = Cutting(tile_queries=1, group=1, step=16, slots=4, grain=1, whole_len=16, min_piece=16)
    work = cut_rows(cutting, rows_of([(1, 400)]))
    assert len(work.items) > 2
    for capacity in (Capacity(2, 99), Capacity(99, 2)):
        with pytest.raises(ValueError, match=r"the work has \d+ .*, the capacity is [02]"):
            work.padded(capacity)


def test_long_rows_among_short_ones_are_cut_and_short_ones_never() -> None:
    lens = [(1, 200)] * 200
    lens[77] = (1, 100_000)
    items = items_of(plan(lens))
    long = items[items[:, 0] == 77]
    share = (199 * 200 + 100_000) // (H200_SMS * 3 // 8)
    assert (long[:, 5] - long[:, 4]).max() <= share + 128
    assert (long[:, 6] >= 0).all()
    assert (items[items[:, 0] != 77, 6] == -1).all()
    assert len(items) == 199 + len(long)


def test_a_short_chunk_at_the_end_of_a_long_context_fills_the_gpu() -> None:
    items = items_of(plan([(64, 100_000)]))
    assert H200_SMS - 8 < len(items) * 8 <= H200_SMS
    assert (items[:, 2] == 64).all()


def test_work_that_fills_the_gpu_as_it_is_stays_whole() -> None:
    for lens in ([(1, 1024)] * 49, [(1, 512)] * 200, [(8192, 8192)], [(1024, 1024)] * 8):
        assert (items_of(plan(lens))[:, 6] == -1).all()


@settings(max_examples=examples(50))
@given(row_lens(longest=3000), row_lens(longest=3000), st.sampled_from([128, 256, 1024]))
def test_with_a_piece_length_company_changes_no_row(lens: Lens, others: Lens, piece_len: int) -> None:
    cutting = Cutting(tile_queries=8, group=2, step=64, slots=10, grain=4, whole_len=512, min_piece=256)

    def pieces(rows: RowColumns) -> list[list[int]]:
        items = cut_rows(cutting, rows, piece_len).items
        return sorted(items[items[:, 0] < len(lens)][:, :6].tolist())

    assert pieces(rows_of(lens)) == pieces(rows_of(lens + others))


@settings(max_examples=examples(50))
@given(row_lens(longest=30_000), row_lens(longest=30_000))
def test_otherwise_only_the_number_of_pieces_hangs_on_company(lens: Lens, others: Lens) -> None:
    cutting = Cutting(tile_queries=40, group=1, step=64, slots=10, grain=16, whole_len=256, min_piece=256)
    cuts: dict[tuple[int, int], list[int]] = {}
    for rows in (rows_of(lens), rows_of(lens + others), rows_of(lens * 3)):
        items = cut_rows(cutting, rows).items
        for row, context in enumerate(rows.contexts.tolist()):
            starts = sorted(items[items[:, 0] == row][:, 4].tolist())
            assert cuts.setdefault((context, len(starts)), starts) == starts


def plan(lens: Lens, **options: object) -> AttentionPlan:
    queries, contexts = (np.array([pair[i] for pair in lens]) for i in range(2))
    return AttentionPlanner(SHAPE, H200_SMS).plan(queries, contexts, **options)


@settings(max_examples=examples(100))
@given(row_lens(), st.booleans(), st.sampled_from([1, 2, 5, 16]))
def test_a_plan_of_decode_rows_and_chunks(lens: Lens, one_launch: bool, group: int) -> None:
    lens = [(min(query, context), context) for query, context in lens]
    shape = replace(SHAPE, num_heads=8 * group)
    narrow_queries = 16 // group
    queries, contexts = (np.array([pair[i] for pair in lens]) for i in range(2))
    made = AttentionPlanner(shape, 20).plan(queries, contexts, one_launch=one_launch)
    items = items_of(made)
    is_wide = queries > narrow_queries
    assert len(made.launches) == (1 if one_launch else len(set(is_wide.tolist())))
    assert sum(launch.num_items for launch in made.launches) == len(items)
    for launch in made.launches:
        own = items[launch.first_item : launch.first_item + launch.num_items]
        assert (own[:, 2] <= launch.config.block_m // group).all()
        if not one_launch:
            assert set(is_wide[own[:, 0]].tolist()) == {launch.config.block_m > 16}
    of_pieces = [(first + piece * count, count) for count, first, piece in items[:, [2, 6, 7]].tolist() if first >= 0]
    partials = [first + i for first, count in of_pieces for i in range(count)]
    assert sorted(partials) == list(range(len(partials)))


def test_an_empty_step_is_an_empty_plan() -> None:
    made = plan([])
    assert (made.launches, len(made.work)) == ((), 0)


@settings(max_examples=examples(100))
@given(st.sampled_from([1, 2, 4, 5, 8]), row_lens(longest=131072), st.sampled_from([64, 128]))
def test_heads_side_by_side_divide_the_heads(kv_heads: int, lens: Lens, head_dim: int) -> None:
    shape = AttentionShape(2 * kv_heads, kv_heads, head_dim, 256, torch.bfloat16)
    queries, contexts = (np.array([pair[i] for pair in lens]) for i in range(2))
    for launch in AttentionPlanner(shape, H200_SMS).plan(queries, contexts).launches:
        assert kv_heads % launch.heads_at_once == 0
        if launch.config.block_m > 16 and launch.heads_at_once > 1:
            assert launch.heads_at_once * contexts.max() * head_dim * 2 * 2 <= 24 * 2**20


@settings(max_examples=examples(100))
@given(row_lens(longest=131072, most=30), st.sampled_from([1, 2, 4]), st.sampled_from([1, 20, H200_SMS]))
def test_partial_results_of_any_step_have_room(lens: Lens, group: int, num_sms: int) -> None:
    planner = AttentionPlanner(replace(SHAPE, num_heads=8 * group), num_sms)
    queries, contexts = (np.array([pair[i] for pair in lens]) for i in range(2))
    made = planner.plan(queries, contexts, max_partials=planner.max_partials)
    if (items_of(made)[:, 6] >= 0).any():
        with pytest.raises(ValueError, match=r"\d+ partial results, there is room for 1"):
            planner.plan(queries, contexts, max_partials=1)


@pytest.mark.parametrize(
    ("queries", "contexts", "options", "message"),
    [
        ([1, 2], [1, 1], {}, "expected 1 <= query <= context"),
        ([0], [1], {}, "expected 1 <= query <= context"),
        ([1], [1, 1], {}, "expected 1 <= query <= context"),
        ([1], [1], {"piece_len": 100}, "piece_len is 100, expected a positive multiple of 128"),
        ([1], [1], {"piece_len": 0}, "piece_len is 0, expected a positive multiple of 128"),
        ([1, 1], [1, 1], {"graph": GraphBounds(1, 9)}, "number of rows is 2, expected 0 to 1"),
        ([1], [10], {"graph": GraphBounds(1, 9)}, "longest context is 10, expected 0 to 9"),
        ([2], [2], {"graph": GraphBounds(1, 9)}, "most queries of a row is 2, expected 0 to 1"),
        ([2], [2], {"graph": GraphBounds(1, 9, 9)}, "max_query_len of a graph is 9, expected 1 to 8"),
    ],
)
def test_what_cannot_be_planned(queries: list[int], contexts: list[int], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionPlanner(SHAPE, H200_SMS).plan(np.array(queries), np.array(contexts), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 12}, "num_heads is 12 and num_kv_heads 8"),
        ({"num_heads": 136}, "num_heads is 136 and num_kv_heads 8"),
        ({"head_dim": 80}, "head_dim is 80"),
        ({"block_size": 48}, "block_size is 48"),
        ({"block_size": 8}, "block_size is 8"),
        ({"dtype": torch.float64}, "dtype is torch.float64"),
    ],
)
def test_shapes_without_a_kernel(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SHAPE, **change)


def test_configurations_by_queries() -> None:
    assert [choose_tiles(SHAPE, queries).block_m for queries in (1, 8, 9, 32, 33, 9999)] == [16, 16, 64, 64, 128, 128]
