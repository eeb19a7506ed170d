"""A plan's columns as numpy arrays, checked against each other and against the executor's limits.

The executor stages what `parse_plan` returns and nothing else, so a plan that contradicts itself can never reach
a kernel as an out-of-bounds index.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common import messages as m
from common.constraints import StartedLane
from common.errors import WireError
from common.pooled_rows import PooledRows
from common.prompt_targets import PromptTargets
from common.sampling_columns import SAMPLING_COLUMNS, SamplingColumns
from common.wire import IntArray, array_from, check_range, int32_array


@dataclass(frozen=True)
class ExecutorLimits:
    """What an executor can take, as its Hello said. Counts, not bytes."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_batch_tokens: int
    max_model_len: int
    vocab_size: int
    hidden_size: int
    tasks: tuple[m.Task, ...] = ("generate",)

    @classmethod
    def of(cls, hello: m.Hello) -> "ExecutorLimits":
        """The limits in a Hello."""
        return cls(
            num_blocks=hello.num_blocks,
            block_size=hello.block_size,
            max_num_seqs=hello.max_num_seqs,
            max_batch_tokens=hello.max_batch_tokens,
            max_model_len=hello.max_model_len,
            vocab_size=hello.vocab_size,
            hidden_size=hello.hidden_size,
            tasks=hello.tasks,
        )

    @property
    def room(self) -> str:
        """How many sequences of the greatest length the pool holds at once: `23 sequences of 4,096 tokens`."""
        count = self.num_blocks // -(-self.max_model_len // self.block_size)
        return f"{count:,} {'sequence' if count == 1 else 'sequences'} of {self.max_model_len:,} tokens"


_NONE: IntArray = np.zeros(0, np.int32)


@dataclass(frozen=True)
class PlanColumns:
    """A checked plan. Fields as in `common.messages.Plan`; `positions` int32 [tokens] follows from the lengths.

    `sampling` has one entry for each of the `sample_rows`; it is None if all of them are greedy. `prompt_targets` are
    None where no row wants its prompt's log-probabilities, and `pooled` where none has a pooled result. `epoch` is 0 in
    plans that no scheduler sent.
    """

    lanes: IntArray
    query_lens: IntArray
    context_lens: IntArray
    token_ids: IntArray
    positions: IntArray
    slot_mapping: IntArray
    block_counts: IntArray
    block_ids: IntArray
    sample_rows: IntArray
    sampling: SamplingColumns | None
    constrained: IntArray = field(default_factory=lambda: _NONE)
    logprob_counts: IntArray = field(default_factory=lambda: _NONE)
    lane_starts: tuple[StartedLane, ...] = ()
    prompt_targets: PromptTargets | None = None
    pooled: PooledRows | None = None
    epoch: int = 0

    @property
    def num_rows(self) -> int:
        """Sequences in the plan."""
        return len(self.lanes)


def parse_plan(plan: m.Plan, limits: ExecutorLimits) -> PlanColumns:
    """Check `plan` and return its columns.

    Raises:
        WireError: lengths that contradict each other, or an id or a length beyond `limits`.
    """
    lanes = int32_array("lanes", plan.lanes)
    query_lens = int32_array("query_lens", plan.query_lens)
    context_lens = int32_array("context_lens", plan.context_lens)
    token_ids = int32_array("token_ids", plan.token_ids)
    slot_mapping = int32_array("slot_mapping", plan.slot_mapping)
    block_counts = int32_array("block_counts", plan.block_counts)
    block_ids = int32_array("block_ids", plan.block_ids)
    sample_rows = int32_array("sample_rows", plan.sample_rows)

    rows = len(lanes)
    if not 1 <= rows <= limits.max_num_seqs:
        raise WireError(f"plan has {rows} rows, this executor takes 1 to {limits.max_num_seqs}")
    for name, column in (
        ("query_lens", query_lens),
        ("context_lens", context_lens),
        ("block_counts", block_counts),
    ):
        if len(column) != rows:
            raise WireError(f"{name} has {len(column)} entries for {rows} rows")
    check_range("lanes", lanes, 0, limits.max_num_seqs - 1)
    if len(np.unique(lanes)) != rows:
        raise WireError("two rows have the same lane")
    check_range("context_lens", context_lens, 1, limits.max_model_len)
    check_range("query_lens", query_lens, 1, limits.max_batch_tokens)
    if (query_lens > context_lens).any():
        raise WireError("a row's query_len is greater than its context_len")

    num_tokens = int(query_lens.sum(dtype=np.int64))
    if num_tokens > limits.max_batch_tokens:
        raise WireError(f"plan has {num_tokens} tokens, this executor takes {limits.max_batch_tokens}")
    for name, column in (("token_ids", token_ids), ("slot_mapping", slot_mapping)):
        if len(column) != num_tokens:
            raise WireError(f"{name} has {len(column)} entries, query_lens add up to {num_tokens}")
    check_range("token_ids", token_ids, -1, limits.vocab_size - 1)
    if (token_ids[np.repeat(query_lens > 1, query_lens)] < 0).any():
        raise WireError("token id -1 in a row of several tokens")

    if (block_counts != -(-context_lens // limits.block_size)).any():
        raise WireError(f"block_counts are not ceil(context_lens / {limits.block_size})")
    if len(block_ids) != int(block_counts.sum(dtype=np.int64)):
        raise WireError(f"block_ids has {len(block_ids)} entries, block_counts add up to {block_counts.sum()}")
    check_range("block_ids", block_ids, 0, limits.num_blocks - 1)

    positions = _positions(query_lens, context_lens)
    expected = _slots(positions, query_lens, block_counts, block_ids, limits.block_size)
    if ((slot_mapping != expected) & (slot_mapping != -1)).any():
        raise WireError("slot_mapping does not follow from the block tables")

    check_range("sample_rows", sample_rows, 0, rows - 1)
    if (np.diff(sample_rows) <= 0).any():
        raise WireError("sample_rows are not strictly ascending")
    if len(sample_rows) and "generate" not in limits.tasks:
        raise WireError(f"the plan samples rows, and this executor takes {', '.join(limits.tasks)}")
    return PlanColumns(
        lanes=lanes,
        query_lens=query_lens,
        context_lens=context_lens,
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slot_mapping,
        block_counts=block_counts,
        block_ids=block_ids,
        sample_rows=sample_rows,
        sampling=_parse_sampling(plan, len(sample_rows)),
        prompt_targets=PromptTargets.of_plan(plan, token_ids, limits.vocab_size),
        pooled=PooledRows.of_plan(plan, sample_rows, rows, limits.hidden_size, limits.vocab_size, limits.tasks),
        epoch=plan.epoch,
        **_parse_asked(plan, lanes[sample_rows], context_lens[sample_rows], limits.vocab_size),
    )


def _parse_asked(plan: m.Plan, lanes: IntArray, context_lens: IntArray, vocab_size: int) -> dict[str, Any]:
    """What the samples ask for beside tokens, as fields of PlanColumns; of most plans, nothing.

    Args:
        lanes, context_lens: int32 [samples].
    """
    if not (plan.constrained or plan.logprob_counts or plan.lane_starts):
        return {}
    constrained = int32_array("constrained", plan.constrained)
    check_range("constrained", constrained, 0, len(lanes) - 1)
    if (np.diff(constrained) <= 0).any():
        raise WireError("constrained is not strictly ascending")
    logprob_counts = int32_array("logprob_counts", plan.logprob_counts)
    if len(logprob_counts) not in (0, len(lanes)):
        raise WireError(f"logprob_counts has {len(logprob_counts)} entries for {len(lanes)} samples")
    check_range("logprob_counts", logprob_counts, 0, m.MAX_LOGPROBS)
    context_of = dict(zip(lanes[constrained].tolist(), context_lens[constrained].tolist(), strict=True))
    return {
        "constrained": constrained,
        "logprob_counts": logprob_counts,
        "lane_starts": _parse_starts(plan.lane_starts, context_of, vocab_size),
    }


def _parse_starts(
    starts: tuple[m.LaneStart, ...], context_of: dict[int, int], vocab_size: int
) -> tuple[StartedLane, ...]:
    """Starts of lanes that the plan samples with constraints; `context_of` has these lanes' context lengths."""
    if len({start.lane for start in starts}) != len(starts):
        raise WireError("a lane is started twice")
    started = tuple(StartedLane.of(start) for start in starts)
    for start, lane in zip(starts, started, strict=True):
        if len(lane.tokens) != context_of.get(start.lane):
            raise WireError(
                f"lane {start.lane} is started with {len(lane.tokens)} tokens; the context of the plan's constrained "
                f"row there is {context_of.get(start.lane)}"
            )
        if not 1 <= start.num_prompt <= len(lane.tokens):
            raise WireError(f"lane {start.lane} has {start.num_prompt} prompt tokens of {len(lane.tokens)}")
        check_range("tokens", lane.tokens, 0, vocab_size - 1)
        if lane.arrays.largest_token >= vocab_size:
            raise WireError(f"constraints name token {lane.arrays.largest_token}, the model has {vocab_size}")
    return started


def _parse_sampling(plan: m.Plan, num_samples: int) -> SamplingColumns | None:
    columns = SamplingColumns(
        **{name: array_from(name, getattr(plan, name), of.dtype) for name, of in SAMPLING_COLUMNS.items()}
    )
    lengths = {name: len(column) for name, column in vars(columns).items()}
    if not any(lengths.values()):
        return None
    for name, length in lengths.items():
        if length != num_samples:
            raise WireError(f"{name} has {length} entries for {num_samples} samples")
    for name, parameter in SAMPLING_COLUMNS.items():
        if parameter.allowed is not None:
            check_range(name, getattr(columns, name), *parameter.allowed)
    return columns


def _positions(query_lens: IntArray, context_lens: IntArray) -> IntArray:
    """Position of each token, int32 [tokens]: row by row, the last query_len positions of the context."""
    ends = np.cumsum(query_lens, dtype=np.int32)
    offsets = np.repeat(context_lens - ends, query_lens)
    return (np.arange(len(offsets), dtype=np.int32) + offsets).astype(np.int32, copy=False)


def _slots(
    positions: IntArray, query_lens: IntArray, block_counts: IntArray, block_ids: IntArray, block_size: int
) -> IntArray:
    """Slot of each token, int32 [tokens], from the ragged block tables."""
    table_starts = np.cumsum(block_counts, dtype=np.int64) - block_counts
    entries = np.repeat(table_starts, query_lens) + positions // block_size
    return (block_ids[entries] * np.int64(block_size) + positions % block_size).astype(np.int32)
