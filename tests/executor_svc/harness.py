"""Plans by hand: a stand-in for the scheduler that hands out scattered blocks and speaks through the real codec."""

import random
import shutil
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from common import messages as m
from common.plan import ExecutorLimits, PlanColumns, parse_plan
from common.sampling_columns import SAMPLING_COLUMNS
from common.wire import Codec, IntArray
from executor_svc.model.checkpoint import SINGLE_FILE
from executor_svc.options import ExecutorOptions
from executor_svc.runner.runner import Runner
from executor_svc.staging.batch import stage
from executor_svc.startup import start_executor
from kernels.cpu.isa import ISAS, processor_flags

RUNNABLE_ISAS = [isa.name for isa in ISAS if processor_flags().issuperset(isa.needs)]
needs_cpp = pytest.mark.skipif(not RUNNABLE_ISAS, reason="needs a processor with AVX2 or more")


def start(model_dir: Path | None, *, poison: bool = True, **options: Any) -> tuple[Runner[Any], ExecutorLimits]:
    """A runner on `model_dir` whose KV cache is full of NaN, so that reading an unwritten slot shows."""
    model = None if model_dir is None else str(model_dir)
    started = start_executor(ExecutorOptions(**{"model": model, "dtype": "float32", "threads": 1, **options}))
    if poison:
        poison_cache(started.runner)
    return started.runner, ExecutorLimits.of(started.hello)


def with_last_norm(folder: Path, to: Path, value: float) -> Path:
    """A copy of a checkpoint whose hidden states are all `value` times what they would be normed to."""
    shutil.copytree(folder, to)
    tensors = load_file(to / SINGLE_FILE)
    tensors["model.norm.weight"].fill_(value)
    save_file(tensors, to / SINGLE_FILE)
    return to


def cache_of(runner: Runner[Any]) -> torch.Tensor:
    """A runner's KV cache [layers, 2, blocks and the padding block, ...], which only its backend knows how to read."""
    cache: torch.Tensor = runner._backend._cache
    return cache


def poison_cache(runner: Runner[Any], value: float = torch.nan) -> None:
    with torch.inference_mode():
        cache_of(runner).fill_(value)


@dataclass
class Row:
    """One sequence's part of a plan; what is not given follows from the sequence."""

    lane: int
    token_ids: list[int]  # of this row's query; [-1] reads the lane
    context_len: int
    table: list[int]
    unstored: int = 0  # leading query tokens whose slot is -1
    sampled: bool = True
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    targets: tuple[tuple[int, int, int], ...] = ()  # a token of the query, the prompt's next one, log-probabilities
    pooled: tuple[int, ...] | None = None  # tokens whose logits are the row's result; () for its hidden state


@dataclass
class Pool:
    """Block ids in a shuffled order, so that neighbours in a sequence are not neighbours in memory."""

    num_blocks: int
    block_size: int
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = list(range(self.num_blocks))
        random.Random(self.num_blocks).shuffle(self.free)

    def grow(self, table: list[int], context_len: int) -> list[int]:
        """Append blocks to `table` until it holds `context_len` positions."""
        while len(table) * self.block_size < context_len:
            table.append(self.free.pop())
        return table


def make_plan(rows: list[Row], block_size: int, *, epoch: int = 1, step: int = 0) -> m.Plan:
    slots, block_ids, block_counts = [], [], []
    for row in rows:
        first = row.context_len - len(row.token_ids)
        for index, position in enumerate(range(first, row.context_len)):
            slot = row.table[position // block_size] * block_size + position % block_size
            slots.append(-1 if index < row.unstored else slot)
        count = -(-row.context_len // block_size)
        block_counts.append(count)
        block_ids.extend(row.table[:count])
    sampled = [row for row in rows if row.sampled]
    fields: dict[str, bytes] = {}
    if any(row.temperature for row in sampled):
        fields = {
            name: np.array([getattr(row, parameter.name) for row in sampled], parameter.dtype).tobytes()
            for name, parameter in SAMPLING_COLUMNS.items()
        }
    starts = accumulate((len(row.token_ids) for row in rows), initial=0)
    targets = [(start + at, *rest) for start, row in zip(starts, rows, strict=False) for at, *rest in row.targets]
    names = ("prompt_logprob_tokens", "prompt_logprob_targets", "prompt_logprob_counts")
    fields |= {name: int32(list(column)) for name, column in zip(names, zip(*targets, strict=True), strict=False)}
    pooled = [(index, row.pooled) for index, row in enumerate(rows) if row.pooled is not None]
    fields |= {
        "pooled_rows": int32([index for index, _ in pooled]),
        "pooled_counts": int32([len(ids) for _, ids in pooled]),
        "pooled_token_ids": int32([token for _, ids in pooled for token in ids]),
    }
    return m.Plan(
        epoch=epoch,
        step=step,
        lanes=int32([row.lane for row in rows]),
        query_lens=int32([len(row.token_ids) for row in rows]),
        context_lens=int32([row.context_len for row in rows]),
        token_ids=int32([token for row in rows for token in row.token_ids]),
        slot_mapping=int32(slots),
        block_counts=int32(block_counts),
        block_ids=int32(block_ids),
        sample_rows=int32([index for index, row in enumerate(rows) if row.sampled]),
        **fields,
    )


def through_the_wire(plan: m.Plan, limits: ExecutorLimits) -> PlanColumns:
    """Encode, decode and check a plan as the two services do."""
    frames = Codec[Any](m.ExecutorToScheduler).encode(plan)
    return parse_plan(Codec[m.Plan](m.SchedulerToExecutor).decode(frames), limits)


def run(runner: Runner[Any], rows: list[Row], limits: ExecutorLimits) -> IntArray:
    return runner.run(through_the_wire(make_plan(rows, limits.block_size), limits))


@dataclass
class Driver:
    """Runs sequences together to the end: prompts in chunks first, then one token a step, each from its lane."""

    runner: Runner[Any]
    limits: ExecutorLimits
    chunk: int = 10**9
    read_lanes: bool = True

    def generate(self, prompts: list[list[int]], max_new_tokens: int, **sampling: Any) -> list[list[int]]:
        """New tokens of every prompt. Sequences join one step after another, so that steps mix all kinds of rows."""
        pool = Pool(self.limits.num_blocks, self.limits.block_size)
        tables: list[list[int]] = [[] for _ in prompts]
        computed = [0] * len(prompts)
        outputs: list[list[int]] = [[] for _ in prompts]
        step = 0
        while any(len(output) < max_new_tokens for output in outputs):
            rows, owners = [], []
            for index, prompt in enumerate(prompts):
                if index > 2 * step or len(outputs[index]) >= max_new_tokens:
                    continue
                if computed[index] < len(prompt):
                    query = prompt[computed[index] : computed[index] + self.chunk]
                else:
                    query = [-1 if self.read_lanes else outputs[index][-1]]
                end = computed[index] + len(query)
                row = Row(index, query, end, pool.grow(tables[index], end), sampled=end >= len(prompt), **sampling)
                rows.append(row)
                owners.append(index)
                computed[index] = end
            tokens = iter(run(self.runner, rows, self.limits).tolist())
            for row, index in zip(rows, owners, strict=True):
                if row.sampled:
                    outputs[index].append(next(tokens))
            step += 1
        return outputs


def int32(values: list[int]) -> bytes:
    return np.array(values, dtype="<i4").tobytes()


@torch.inference_mode()
def logits(runner: Runner[Any], rows: list[Row], limits: ExecutorLimits) -> torch.Tensor:
    """Run a plan and return the scores after every one of its tokens, float32 [tokens, vocab]."""
    batch = stage(through_the_wire(make_plan(rows, limits.block_size), limits), runner._arena, runner._backend)
    states = runner._model.hidden_states(batch, runner._lanes.last_tokens)
    found = []
    for piece in torch.arange(len(states), dtype=torch.int32, device=states.device).split(limits.max_num_seqs):
        runner._model.compute_logits(states, piece)
        found.append(runner._model.logits(len(piece)).to(torch.float32, copy=True))
    return torch.cat(found)
