"""A graph replays what was captured: the kernels of a real step, launched one by one, must be the same ones, with the
same grids and strides, on the same inputs at the same addresses."""

import random
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.plan import ExecutorLimits, PlanColumns
from common.sampling_columns import SAMPLING_COLUMNS, SamplingColumns
from executor_svc.runner.runner import Runner
from executor_svc.runner.trial_plans import trial_plan
from executor_svc.staging.batch import stage
from tests.executor_svc import harness
from tests.rig.graph_memory import in_graph_pools, not_held
from tests.rig.stand_in import Launch, StandIn, read_launches

LIMITS: list[dict[str, Any]] = [
    {"max_model_len": 2048},
    {"max_model_len": 2048, "max_num_seqs": 64, "max_batch_tokens": 64},
    {"max_model_len": 1000, "max_num_seqs": 7, "max_batch_tokens": 7},
    {"max_model_len": 300, "max_num_seqs": 300, "max_batch_tokens": 512},
    {"max_model_len": 33, "max_num_seqs": 1, "max_batch_tokens": 9},
]


def decode_plan(rows: int, context_lens: list[int], limits: ExecutorLimits, *, greedy: bool) -> PlanColumns:
    """One token for each row; all blocks are block 0."""
    contexts = np.array(context_lens, np.int32)
    counts = -(-contexts // limits.block_size)
    trial = {name: np.full(rows, each.trial, each.dtype) for name, each in SAMPLING_COLUMNS.items()}
    return PlanColumns(
        lanes=np.arange(rows, dtype=np.int32),
        query_lens=np.ones(rows, np.int32),
        context_lens=contexts,
        token_ids=np.zeros(rows, np.int32),
        positions=contexts - 1,
        slot_mapping=(contexts - 1) % limits.block_size,
        block_counts=counts,
        block_ids=np.zeros(int(counts.sum()), np.int32),
        sample_rows=np.arange(rows, dtype=np.int32),
        sampling=None if greedy else SamplingColumns(**trial),
    )


def of_all_lengths(size: int, smaller: int, limits: ExecutorLimits, rng: random.Random) -> list[PlanColumns]:
    """Plans that a graph of `size` rows replays: full tables, the fewest rows, and some at random."""
    longest = limits.max_model_len
    plans = [decode_plan(size, [longest] * size, limits, greedy=False)]
    plans.append(decode_plan(smaller + 1, [longest] * (smaller + 1), limits, greedy=True))
    for rows in (rng.randint(smaller + 1, size), size):
        lens = [rng.randint(1, longest) for _ in range(rows)]
        plans.append(decode_plan(rows, lens, limits, greedy=rng.random() < 0.5))
    return plans


def staged(batch: Any) -> list[Any]:
    """All that a step's forward pass is given, but for the content of tensors."""
    if isinstance(batch, torch.Tensor):
        return [batch.data_ptr(), tuple(batch.shape), batch.stride()]
    if is_dataclass(batch):
        return [staged(getattr(batch, field.name)) for field in fields(batch)]
    if isinstance(batch, tuple):
        return [staged(each) for each in batch]
    return ["an array"] if isinstance(batch, np.ndarray) else [batch]


def difference(captured: list[Launch], launched: list[Launch], pools: list[range]) -> str:
    """The first difference that a replay would not follow; empty if there is none."""
    if [each.name for each in captured] != [each.name for each in launched]:
        return f"{len(captured)} captured, {len(launched)} launched"
    for ours, theirs in zip(captured, launched, strict=True):
        if ours.shape != theirs.shape:
            return f"{ours.name}: grid and block {ours.shape}, then {theirs.shape}"
        for number, (before, after) in enumerate(zip(ours.params, theirs.params, strict=True)):
            temporary = before[2] and any(before[1] in pool for pool in pools)
            if before != after and not temporary:
                return f"{ours.name}: parameter {number} was {before}, then {after}"
    return ""


def start_recorded(rig: StandIn, file: Path, folder: Path, **options: Any) -> tuple[Runner[Any], ExecutorLimits]:
    with rig.recording(file):
        return harness.start(folder, device="cuda", dtype="bfloat16", poison=False, **options)


def captures(rig: StandIn, file: Path, folder: Path, **options: Any) -> tuple[Any, ExecutorLimits, dict, dict]:
    """A runner, its limits, and what was captured for each number of tokens and for each number of rows."""
    runner, limits = start_recorded(rig, file, folder, **options)
    launches = read_launches(file)
    assert not not_held(launches)
    by_capture: dict[int, list[Launch]] = {}
    for launch in launches:
        if launch.capture:
            by_capture.setdefault(launch.capture, []).append(launch)
    in_order, parts = iter(by_capture.values()), len(runner._model._layers) + 1
    of_tokens = {
        size: [launch for _ in range(parts) for launch in next(in_order)] for size in runner._token_sizes[::-1].tolist()
    }
    of_rows = {size: [*next(in_order), *next(in_order)] for size in runner._decode_sizes[::-1].tolist()}
    assert next(in_order, None) is None
    return runner, limits, of_tokens, of_rows


def prompts(tokens: int, limits: ExecutorLimits, rng: random.Random) -> PlanColumns:
    """Rows of so many tokens together, of one token or of many."""
    lens: list[int] = []
    while tokens:
        most = min(tokens, limits.max_model_len)
        spread = tokens <= (limits.max_num_seqs - len(lens) - 1) * limits.max_model_len
        lens.append(rng.randint(1, most) if spread and rng.random() < 0.7 else most)
        tokens -= lens[-1]
    return trial_plan(lens, limits.block_size)


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
@pytest.mark.parametrize("given", LIMITS, ids=lambda given: "-".join(map(str, given.values())))
def test_a_step_is_what_was_captured(
    rig: StandIn, small: Path, tmp_path: Path, attention: str, given: dict[str, Any]
) -> None:
    rng = random.Random(1)
    blocks = -(-given["max_model_len"] // 256) * (256 if attention == "flash_attn" else 16)
    runner, limits, of_tokens, of_rows = captures(
        rig, tmp_path / "captured", small, attention=attention, num_blocks=blocks, **given
    )
    pools = in_graph_pools()

    def check(forward: Callable[[], object], captured: list[Launch], about: str) -> None:
        with rig.recording(tmp_path / "launched"):
            forward()
        assert not (found := difference(captured, read_launches(tmp_path / "launched"), pools)), f"{about}: {found}"

    def both_halves(batch: Any) -> None:
        runner._forward(batch)
        runner._sample(batch, None)

    with torch.inference_mode():
        for smaller, size in pairwise([0, *runner._decode_sizes.tolist()]):
            first = staged(runner._stage_padded(decode_plan(1, [1], limits, greedy=True), size))
            for number, columns in enumerate(of_all_lengths(size, smaller, limits, rng)):
                batch = runner._stage_padded(columns, size)
                assert staged(batch) == first
                check(partial(both_halves, batch), of_rows[size], f"{size} rows, {number}")
        for smaller, size in pairwise([0, *runner._token_sizes.tolist()]):
            for tokens in (smaller + 1, rng.randint(smaller + 1, size), size):
                columns = prompts(tokens, limits, rng)
                batch = stage(columns, runner._arena, runner._backend, padded_tokens=size)
                assert runner._arena.holds(batch.token_ids)
                parts = runner._model.parts(batch, runner._lanes.last_tokens)
                check(lambda parts=parts: [part() for part in parts], of_tokens[size], f"{tokens} of {size} tokens")
