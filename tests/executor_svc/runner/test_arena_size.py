"""The arena has room for every plan that a graph may replay, whatever the limits: an overflow would go unnoticed, as
the graph would read the arena while the step's inputs lie elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common import messages as m
from common.constraints import StartedLane
from common.plan import ExecutorLimits, PlanColumns
from common.sampling_columns import SAMPLING_COLUMNS, SamplingColumns
from executor_svc.devices.gpu_attention import GpuBackend
from executor_svc.devices.torch_kernels import TorchBackend
from executor_svc.model.attention import KVGeometry
from executor_svc.runner.graphs import decode_sizes
from executor_svc.staging.arena import Arena
from executor_svc.staging.asked import AskedStager, SampleOrder
from executor_svc.staging.batch import Planned, arena_size, pad_decode, stage
from executor_svc.staging.constrained_lanes import ConstrainedLane
from kernels.gpu.attention import flash_attention
from kernels.gpu.attention.flash_attention import FlashAttention
from kernels.gpu.attention.paged_attention import PagedAttention
from kernels.gpu.attention.plan import AttentionShape

CPU = torch.device("cpu")


class Unbound:
    """A backend whose arrays are staged and not bound, which would launch a kernel."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def plan(self, columns: PlanColumns, *, fixed: bool) -> Planned[Sequence[torch.Tensor]]:
        return self.backend.plan(columns, fixed=fixed)[0], list


def make_backend(name: str, limits: ExecutorLimits) -> Any:
    geometry = KVGeometry(1, 2, 64, limits.block_size, torch.bfloat16)
    if name == "torch":
        return TorchBackend(geometry, limits, CPU)
    shape = AttentionShape(4, 2, 64, limits.block_size, torch.bfloat16)
    flash = name == "flash_attn"
    kernels: Any = FlashAttention(shape, 4) if flash else PagedAttention(shape, 4, CPU)
    return GpuBackend(kernels, geometry, limits, CPU, heads_side_by_side=flash)


def longest_decode_plan(limits: ExecutorLimits, rows: int) -> PlanColumns:
    contexts = np.full(rows, limits.max_model_len, np.int32)
    counts = -(-contexts // limits.block_size)
    return PlanColumns(
        lanes=np.arange(rows, dtype=np.int32),
        query_lens=np.ones(rows, np.int32),
        context_lens=contexts,
        token_ids=np.zeros(rows, np.int32),
        positions=contexts - 1,
        slot_mapping=np.zeros(rows, np.int32),
        block_counts=counts,
        block_ids=np.zeros(int(counts.sum()), np.int32),
        sample_rows=np.arange(rows, dtype=np.int32),
        sampling=SamplingColumns(**{name: np.ones(rows, each.dtype) for name, each in SAMPLING_COLUMNS.items()}),
    )


@pytest.mark.parametrize("name", ["triton", "flash_attn", "torch"])
@given(
    max_num_seqs=st.integers(1, 70),
    max_batch_tokens=st.integers(1, 70),
    max_model_len=st.integers(1, 2000),
    blocks_of_16=st.integers(1, 2),
)
def test_the_largest_plan_of_each_graph_fits(
    name: str, max_num_seqs: int, max_batch_tokens: int, max_model_len: int, blocks_of_16: int
) -> None:
    limits = ExecutorLimits(
        num_blocks=1,
        block_size=256 * blocks_of_16 if name == "flash_attn" else 16 * blocks_of_16,
        max_num_seqs=max_num_seqs,
        max_batch_tokens=max_batch_tokens,
        max_model_len=max_model_len,
        vocab_size=9,
        hidden_size=8,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flash_attention, "load_flash_attn", lambda: ModuleType("flash_attn"))
        backend = make_backend(name, limits)
    arena = Arena(arena_size(limits, backend.max_planned), CPU)
    for size in decode_sizes(min(max_num_seqs, max_batch_tokens)):
        padded = pad_decode(longest_decode_plan(limits, size), size, max_num_seqs, 1, limits.block_size)
        stage(padded, arena, Unbound(backend), fixed=True)  # raises where there is no room


@given(
    vocab_size=st.integers(m.MAX_BIASES, 3000),
    num_rows=st.integers(1, 9),
    num_words=st.integers(0, 64),
    spare=st.booleans(),
)
def test_what_is_usually_asked_of_a_step_fits(vocab_size: int, num_rows: int, num_words: int, spare: bool) -> None:
    """As many biases as there may be, and 64 bad words of four tokens, of each row."""
    limits = ExecutorLimits(
        1, 16, max_num_seqs=num_rows + spare, max_batch_tokens=9, max_model_len=9, vocab_size=vocab_size, hidden_size=8
    )
    asked = m.Constraints(
        bias_token_ids=np.arange(m.MAX_BIASES, dtype="<i4").tobytes(),
        biases=bytes(4 * m.MAX_BIASES),
        bad_words=(bytes(16),) * num_words,
        allowed_token_ids=bytes(4),
    )
    starts = [
        StartedLane.of(m.LaneStart(lane=lane, num_prompt=1, tokens=bytes(4), constraints=asked))
        for lane in range(num_rows)
    ]
    columns = longest_decode_plan(limits, num_rows)
    columns = replace(columns, constrained=np.arange(num_rows, dtype=np.int32))
    lanes = [ConstrainedLane.started(start, vocab_size) for start in starts]
    stager = AskedStager(limits, CPU)
    step = stager.stage(columns, lanes, SampleOrder.of(columns), None)
    assert step.adjustments is not None
    assert stager._lists.holds(step.adjustments.word_tokens)
    assert stager._columns.holds(step.adjustments.lengths)


def test_a_fixed_plan_that_does_not_fit_is_refused() -> None:
    arena = Arena(64, CPU)
    too_large = [np.zeros(17, np.int32)]
    with pytest.raises(ValueError, match="takes 80 bytes, the arena has 64"):
        arena.upload(too_large, fixed=True)
    assert len(arena.upload(too_large)[0]) == 17
