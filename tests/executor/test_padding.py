"""Decode plans padded to the sizes that graphs are captured for: the same tokens, and nothing else touched."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.plan import ExecutorLimits, PlanColumns
from executor_svc.runner.graphs import decode_sizes
from executor_svc.runner.trial_plans import trial_plan
from executor_svc.staging.arena import Arena, packed_size
from executor_svc.staging.batch import Planned, arena_size, pad_decode, stage
from tests.executor import harness
from tests.executor.conftest import Make

PROMPTS = [[5, 9, 2], [7] * 20, [1], [3, 1, 4, 1, 5, 9, 2, 6], [8, 8], [40, 41, 42]]


@pytest.mark.parametrize("sizes", [[1, 2, 4, 8], [8], [3]])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_k": 20, "seed": 3}], ids=["greedy", "sampled"])
def test_padded_steps_give_the_same_tokens(checkpoint: Make, sizes: list[int], sampling: dict[str, float]) -> None:
    options = {"num_blocks": 24, "block_size": 4, "max_num_seqs": 8, "max_model_len": 40}
    runner, limits = harness.start(checkpoint(preset="tiny"), **options)
    expected = harness.Driver(runner, limits).generate(PROMPTS, 8, **sampling)
    padded, _ = harness.start(checkpoint(preset="tiny"), **options)
    padded._decode_sizes = np.array(sizes)
    assert harness.Driver(padded, limits).generate(PROMPTS, 8, **sampling) == expected
    assert padded._backend._cache[:, :, limits.num_blocks, :, 0].isfinite().all()  # padding rows were there


def decode_plan(rows: int, *, block_size: int = 4, sampled: bool = True) -> PlanColumns:
    plan = trial_plan([1] * rows, block_size)
    return plan if sampled else replace(plan, sample_rows=plan.sample_rows[:0], sampling=None)


def test_only_plans_of_sampled_single_tokens_are_padded(checkpoint: Make) -> None:
    runner, _ = harness.start(checkpoint(preset="tiny"), num_blocks=8, max_num_seqs=8)
    runner._decode_sizes = np.array([2, 4])
    assert [runner._decode_size(decode_plan(rows)) for rows in (1, 2, 3, 4, 5)] == [2, 2, 4, 4, None]
    assert runner._decode_size(trial_plan([2], 16)) is None
    assert runner._decode_size(trial_plan([1, 2], 16)) is None
    assert runner._decode_size(decode_plan(2, sampled=False)) is None


def test_staged_tensors_stand_where_those_of_the_last_plan_stood() -> None:
    limits = ExecutorLimits(
        num_blocks=9, block_size=4, max_num_seqs=8, max_batch_tokens=8, max_model_len=40, vocab_size=99
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
            tensors = [*list(vars(batch).values())[:5], *vars(batch.sampling).values(), *batch.attention]
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


def test_largest_step_and_warm_up_fit_the_smallest_pool(checkpoint: Make) -> None:
    runner, _ = harness.start(
        checkpoint(preset="tiny"), num_blocks=1, block_size=4, max_num_seqs=5, max_batch_tokens=23, max_model_len=4
    )
    with torch.inference_mode():
        runner._backend._cache.fill_(float("nan"))
    runner.run_largest_step()
    assert runner._backend._cache[:, :, 0].isfinite().all()
    assert not runner._backend._cache[:, :, 1].isfinite().any()
