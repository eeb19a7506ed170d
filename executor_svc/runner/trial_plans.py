"""Plans that no scheduler sent: to warm up, to measure memory, to capture graphs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common import messages as m
from common.constraints import StartedLane
from common.plan import PlanColumns
from common.pooled_rows import PooledRows
from common.prompt_targets import PromptTargets
from common.sampling_columns import SAMPLING_COLUMNS, SamplingColumns


def trial_plan(
    query_lens: Sequence[int], block_size: int, computed: Sequence[int] | int = 0, block: int = 0
) -> PlanColumns:
    """Prompts of these lengths, each sampled with every filter, all in one block: their tokens mean nothing.

    Prompts longer than a block write its slots several times. Before each come its `computed` positions.
    """
    rows = len(query_lens)
    lens = np.array(query_lens, dtype=np.int32)
    contexts = lens + np.asarray(computed, dtype=np.int32)
    ends = zip(contexts.tolist(), query_lens, strict=True)
    positions = np.concatenate([np.arange(end - length, end, dtype=np.int32) for end, length in ends])
    counts = -(-contexts // block_size)
    return PlanColumns(
        lanes=np.arange(rows, dtype=np.int32),
        query_lens=lens,
        context_lens=contexts,
        token_ids=np.zeros(len(positions), dtype=np.int32),
        positions=positions,
        slot_mapping=block * np.int32(block_size) + positions % np.int32(block_size),
        block_counts=counts,
        block_ids=np.full(int(counts.sum()), block, dtype=np.int32),
        sample_rows=np.arange(rows, dtype=np.int32),
        sampling=SamplingColumns(
            **{name: np.full(rows, parameter.trial, parameter.dtype) for name, parameter in SAMPLING_COLUMNS.items()}
        ),
    )


def asking(columns: PlanColumns, num_plain: int, vocab_size: int) -> PlanColumns:
    """A trial plan of which all rows but the first `num_plain` ask for whatever can be asked, grammars aside."""
    rows = columns.num_rows
    one = np.zeros(1, "<i4").tobytes()
    everything = m.Constraints(
        presence_penalty=1.0,
        frequency_penalty=1.0,
        repetition_penalty=2.0,
        bias_token_ids=one,
        biases=np.ones(1, "<f4").tobytes(),
        bad_words=(one,),
        allowed_token_ids=one,
    )
    starts = [
        m.LaneStart(lane=lane, num_prompt=1, tokens=bytes(4 * length), constraints=everything)
        for lane, length in zip(columns.lanes.tolist(), columns.context_lens.tolist(), strict=True)
    ]
    counts = np.full(rows, min(m.MAX_LOGPROBS, 1 + vocab_size), np.int32)
    counts[:num_plain] = 0
    return replace(
        columns,
        constrained=np.arange(num_plain, rows, dtype=np.int32),
        lane_starts=tuple(map(StartedLane.of, starts[num_plain:])),
        logprob_counts=counts,
    )


def asking_of_prompts(columns: PlanColumns, num_logprobs: int) -> PlanColumns:
    """A trial plan of whose tokens all, or as many as a plan may have, come with so many log-probabilities."""
    num_targets = min(len(columns.token_ids), m.MAX_PLAN_PROMPT_LOGPROBS // num_logprobs)
    tokens = np.arange(num_targets, dtype=np.int32)
    targets = PromptTargets(tokens, np.zeros_like(tokens), np.full_like(tokens, num_logprobs))
    return replace(columns, prompt_targets=targets)


def pooling(columns: PlanColumns, count: int, hidden_size: int) -> PlanColumns:
    """A trial plan whose rows give logits of so many tokens, or hidden states with 0, instead of tokens."""
    rows, nothing = columns.num_rows, np.zeros(0, np.int32)
    counts, token_ids = np.full(rows, count, np.int32), np.zeros(rows * count, np.int32)
    pooled = PooledRows(np.arange(rows, dtype=np.int32), counts, token_ids, hidden_size)
    return replace(columns, sample_rows=nothing, sampling=None, pooled=pooled)
