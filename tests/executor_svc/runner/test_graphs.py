"""Decode plans padded to the sizes that graphs are captured for: the same tokens, and nothing else touched."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.plan import ExecutorLimits, PlanColumns
from executor_svc.model.rank_group import SINGLE_RANK
from executor_svc.runner.graphs import _BREAK_EVEN_PRODUCTS, decode_sizes, token_sizes
from executor_svc.runner.trial_plans import trial_plan
from executor_svc.staging.arena import Arena, packed_size
from executor_svc.staging.batch import Planned, arena_size, pad_decode, stage
from tests.executor_svc import harness
from tests.executor_svc.conftest import Make
from tests.executor_svc.gpu_kernels import CalledAgain
from tests.executor_svc.ranks import start_rank

SMALL = {"num_blocks": 24, "block_size": 4, "max_num_seqs": 8, "max_model_len": 40}
PROMPTS = [[5, 9, 2], [7] * 20, [1], [3, 1, 4, 1, 5, 9, 2, 6], [8, 8], [40, 41, 42]]


@pytest.mark.parametrize("sizes", [[1, 2, 4, 8], [8], [3]])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_k": 20, "seed": 3}], ids=["greedy", "sampled"])
def test_padded_steps_give_the_same_tokens(checkpoint: Make, sizes: list[int], sampling: dict[str, float]) -> None:
    folder = checkpoint(preset="tiny")
    runner, limits = start_rank(folder, SINGLE_RANK, **SMALL)
    expected = harness.Driver(runner, limits).generate(PROMPTS, 8, **sampling)
    padded, _ = start_rank(folder, SINGLE_RANK, **SMALL, decode_sizes=sizes)
    assert harness.Driver(padded, limits).generate(PROMPTS, 8, **sampling) == expected
    assert harness.cache_of(padded)[:, :, limits.num_blocks, :, 0].isfinite().all()  # padding rows were there


@pytest.mark.parametrize("sizes", [[1, 2, 4, 8, 16, 24], [100], [3, 7]])
@pytest.mark.parametrize("experts", [False, True])
def test_steps_with_tokens_of_no_row_give_the_same_tokens(checkpoint: Make, sizes: list[int], experts: bool) -> None:
    folder = checkpoint(preset="tiny", experts=experts)
    runner, limits = start_rank(folder, SINGLE_RANK, **SMALL)
    expected = harness.Driver(runner, limits, chunk=5).generate(PROMPTS, 8, temperature=0.8, top_k=20, seed=3)
    padded, _ = start_rank(folder, SINGLE_RANK, **SMALL, token_sizes=sizes)
    seen = set()
    attend = padded._backend.attend

    def attend_and_count(layer: int, query: torch.Tensor, *rest: Any) -> None:
        seen.add(len(query))
        attend(layer, query, *rest)

    padded._backend.attend = attend_and_count
    assert harness.Driver(padded, limits, chunk=5).generate(PROMPTS, 8, temperature=0.8, top_k=20, seed=3) == expected
    assert len(seen) > 2  # rows attend for themselves alone
    assert not harness.cache_of(padded)[:, :, limits.num_blocks].isfinite().any()  # tokens of no row are stored nowhere


def decode_plan(rows: int, *, block_size: int = 4) -> PlanColumns:
    return trial_plan([1] * rows, block_size)


def test_only_plans_of_sampled_single_tokens_are_padded(checkpoint: Make) -> None:
    graphs = CalledAgain()
    runner, _ = start_rank(checkpoint(preset="tiny"), SINGLE_RANK, **SMALL, decode_sizes=[2, 4], graphs=graphs)
    runner.record_steps()
    for rows in (1, 2, 3, 4):
        runner.run(decode_plan(rows))
    assert graphs.sizes == [2, 2, 4, 4]
    not_sampled = replace(decode_plan(2), sample_rows=decode_plan(2).sample_rows[:0], sampling=None)
    for plan in (decode_plan(5), trial_plan([2], 4), trial_plan([1, 2], 4), not_sampled):
        runner.run(plan)
    assert graphs.sizes == [2, 2, 4, 4]


def test_staged_tensors_stand_where_those_of_the_last_plan_stood() -> None:
    limits = ExecutorLimits(
        num_blocks=9, block_size=4, max_num_seqs=8, max_batch_tokens=8, max_model_len=40, vocab_size=99, hidden_size=4
    )
    arena = Arena(arena_size(limits, [8, 80]), torch.device("cpu"))

    class Tables:
        def plan(self, columns: PlanColumns, *, fixed: bool) -> Planned[list[torch.Tensor]]:
            assert fixed
            return [columns.context_lens, columns.block_ids], list

    seen = set()
    for rows in (1, 3, 8):
        plan = decode_plan(rows)
        longer = replace(plan, context_lens=plan.context_lens + 4, block_counts=plan.block_counts + 1)
        longer = replace(longer, block_ids=np.zeros(2 * rows, dtype=np.int32))
        for columns in (plan, longer):
            batch = stage(pad_decode(columns, 8, 8, 9, 4), arena, Tables(), fixed=True)
            tensors = [*list(vars(batch).values())[1:6], *vars(batch.sampling).values(), *batch.attention]
            seen.add(tuple(tensor.data_ptr() for tensor in tensors))
            assert batch.token_lanes.tolist() == [*range(rows), *[8] * (8 - rows)]
            assert batch.attention[1][-(8 - rows) :].tolist() == [9] * (8 - rows) or rows == 8
    assert len(seen) == 1


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), too_small=st.booleans())
def test_arena_keeps_what_is_put_into_it(sizes: list[int], too_small: bool) -> None:
    arrays = [np.arange(size, dtype=(np.int32, np.float32)[index % 2]) + index for index, size in enumerate(sizes)]
    tensors = Arena(8 if too_small else packed_size(sizes), torch.device("cpu")).upload(arrays)
    for array, tensor in zip(arrays, tensors, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert (tensor.numpy() == array).all()
        assert tensor.data_ptr() % 16 == 0 or not len(array)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 7, 8, 100, 256, 1000])
def test_graph_sizes_cover_every_batch_with_little_padding(max_num_seqs: int) -> None:
    sizes = decode_sizes(max_num_seqs)
    assert sizes[-1] == max_num_seqs
    assert sizes == sorted(set(sizes))
    for rows in range(1, max_num_seqs + 1):
        padded = next(size for size in sizes if size >= rows)
        assert padded - rows <= max(3, rows // 8)
    assert len(sizes) <= 50


@pytest.mark.parametrize("max_tokens", [1, 9, 16, 100, 1000, 8192])
@pytest.mark.parametrize("layer_products", [10**3, 15_700_000, 193_000_000, _BREAK_EVEN_PRODUCTS])
def test_token_sizes_end_where_the_host_is_no_limit(max_tokens: int, layer_products: int) -> None:
    sizes = token_sizes(layer_products, max_tokens)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(max_tokens, _BREAK_EVEN_PRODUCTS // layer_products)
    for tokens in range(1, sizes[-1] + 1):
        most = min(max(63, tokens // 4), 255)
        assert next(size for size in sizes if size >= tokens) - tokens <= most
    assert len(sizes) <= 44
    assert {16 << power for power in range(10)} & set(range(sizes[-1] + 1)) <= set(sizes)


@pytest.mark.parametrize(
    ("layer_products", "longest", "count"),
    [(1024 * 15_360, 4096, 28), (4096 * 47_104, 333, 10), (2048 * 27_648, 1137, 17)],
    ids=["0.6B", "8B", "30B-A3B"],
)
def test_token_sizes_of_known_models(layer_products: int, longest: int, count: int) -> None:
    sizes = token_sizes(layer_products, 8192)
    assert (sizes[-1], len(sizes)) == (longest, count)


def test_no_size_pays_where_one_token_keeps_the_gpu_busy() -> None:
    assert token_sizes(_BREAK_EVEN_PRODUCTS + 1, 8192) == []


def test_a_step_that_the_arena_does_not_hold_is_run_as_it_is(checkpoint: Make) -> None:
    """Its tensors stand elsewhere, so that recordings of its parts would read another step's."""
    graphs = CalledAgain()
    runner, limits = start_rank(checkpoint(preset="tiny"), SINGLE_RANK, token_sizes=[16], graphs=graphs)
    runner.record_steps()
    runner.run(trial_plan([3, 4], limits.block_size))
    assert graphs.replays == [0, 1]
    runner._arena = Arena(16, torch.device("cpu"))  # no plan that keeps to the limits is too large for a runner's own
    assert len(runner.run(trial_plan([3, 4], limits.block_size))) == 2
    assert graphs.replays == [0, 1]


def test_largest_step_and_warm_up_fit_the_smallest_pool(checkpoint: Make) -> None:
    runner, _ = harness.start(
        checkpoint(preset="tiny"), num_blocks=1, block_size=4, max_num_seqs=5, max_batch_tokens=23, max_model_len=4
    )
    harness.poison_cache(runner)
    runner.run_largest_step()
    runner.warm_up()
    cache = harness.cache_of(runner)
    assert cache[:, :, 1].isfinite().all(), "the padding block is written"
    assert not cache[:, :, 0].isfinite().any(), "another executor may still own what is in the others"
