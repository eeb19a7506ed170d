"""A position's K, V and scores are the same to the last bit however it is computed.

In a prompt, in any part of one, or decoded, and beside whatever other rows: an executor that computes again what was
lost gets what there was.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from executor_svc.devices.cpu_kernels import CppBackend
from executor_svc.runner.runner import Runner
from executor_svc.staging.batch import stage
from kernels.cpu import ISA_VARIABLE
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import (
    RUNNABLE_ISAS,
    Pool,
    Row,
    cache_of,
    logits,
    make_plan,
    needs_cpp,
    start,
    through_the_wire,
)
from tests.support.checkpoints import VOCAB_SIZE
from tests.support.effort import examples

LENGTH = 270  # more than a chunk of attention
NUM_BLOCKS = 64
BLOCK_SIZE = 16

pytestmark = needs_cpp


@dataclass(frozen=True)
class Computed:
    """What a sequence's tokens became: K and V in the cache, and scores."""

    keys_and_values: Tensor
    scores: Tensor

    def is_same(self, other: "Computed") -> bool:
        return all(
            torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
            for ours, theirs in zip(vars(self).values(), vars(other).values(), strict=True)
        )


@dataclass(frozen=True)
class Executor:
    """An executor, and what it makes of one sequence that is a prompt of its own."""

    runner: Runner[Any]
    limits: Any
    tokens: list[int]

    def compute(self, cuts: list[int], neighbours: list[int]) -> Computed:
        """The sequence in parts that end at `cuts`, each beside prompts of so many tokens, before and after."""
        pool = Pool(NUM_BLOCKS, BLOCK_SIZE)
        table, pieces = pool.grow([], LENGTH), []
        others = [
            Row(lane, self.tokens[:length], length, pool.grow([], length)) for lane, length in enumerate(neighbours, 1)
        ]
        for first, end in itertools.pairwise([0, *cuts]):
            before = others[: len(others) // 2]
            rows = [*before, Row(0, self.tokens[first:end], end, table), *others[len(before) :]]
            at = sum(len(row.token_ids) for row in before)
            pieces.append(logits(self.runner, rows, self.limits)[at : at + end - first])
        cache = cache_of(self.runner)[:, :, table].transpose(3, 4)  # (layer, 2, block, offset, head, ...)
        return Computed(cache.flatten(2, 3)[:, :, :LENGTH].clone(), torch.cat(pieces).bfloat16())


def _params() -> Iterator[Any]:
    for isa, quantization in itertools.product(RUNNABLE_ISAS, ["none", "int8"]):
        slow = [pytest.mark.slow] if isa == "amx-emulated" else []
        yield pytest.param((isa, quantization), id=f"{isa}-{quantization}", marks=slow)


@pytest.fixture(scope="module", params=_params())
def executor(request: pytest.FixtureRequest, checkpoint: Make) -> Executor:
    isa, quantization = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ISA_VARIABLE, isa)
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}  # for two threads, and an emulation is slow
        folder = checkpoint(preset="0.6B", dtype=torch.bfloat16, num_layers=2, **heads)
        options = {"dtype": "bfloat16", "quantization": quantization, "threads": 2, "block_size": BLOCK_SIZE}
        runner, limits = start(folder, num_blocks=NUM_BLOCKS, **options)
    assert isinstance(runner._backend, CppBackend)
    return Executor(runner, limits, random.Random(0).choices(range(VOCAB_SIZE), k=LENGTH))


@pytest.fixture(scope="module")
def whole(executor: Executor) -> Computed:
    """The sequence as one prompt, alone."""
    return executor.compute([LENGTH], [])


@settings(max_examples=examples(24))
@given(
    cuts=st.sets(st.integers(1, LENGTH - 1), max_size=6),
    decoded=st.integers(0, 12),
    neighbours=st.lists(st.integers(1, 30), max_size=4),
)
def test_in_any_parts_and_beside_any_rows(
    executor: Executor, whole: Computed, cuts: set[int], decoded: int, neighbours: list[int]
) -> None:
    """The last tokens are decoded one by one, the others come in parts."""
    ends = sorted({cut for cut in cuts if cut < LENGTH - decoded} | set(range(LENGTH - decoded, LENGTH + 1)))
    assert executor.compute(ends, neighbours).is_same(whole)


def test_decoded_where_attention_begins_another_chunk(executor: Executor, whole: Computed) -> None:
    """Also the first tokens, of which there is no prompt."""
    ends = [*range(1, 20), 250, *range(251, LENGTH + 1)]
    assert executor.compute(ends, []).is_same(whole)


def test_last_tokens_alone_have_the_bits_that_they_have_among_all(executor: Executor) -> None:
    """What a step leaves out in the last layer changes nothing of what is read."""
    runner, limits, tokens = executor.runner, executor.limits, executor.tokens
    pool, lengths = Pool(NUM_BLOCKS, BLOCK_SIZE), [1, 40, 17, 2, 1]
    rows = [Row(lane, tokens[lane:][:n], n, pool.grow([], n)) for lane, n in enumerate(lengths)]
    batch = stage(through_the_wire(make_plan(rows, BLOCK_SIZE), limits), runner._arena, runner._backend)
    ends = torch.tensor(lengths).cumsum(0) - 1
    with torch.inference_mode():
        every = runner._model.hidden_states(batch, runner._lanes.last_tokens).clone()
        runner._model._activations.normed.fill_(torch.nan)
        read = runner._model.hidden_states(batch, runner._lanes.last_tokens, ends_alone=True).view(torch.int16)
    assert torch.equal(read[ends], every[ends].view(torch.int16))
    assert not torch.equal(read, every.view(torch.int16)), "nothing was left out"
