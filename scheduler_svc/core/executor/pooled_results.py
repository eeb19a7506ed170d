"""Pooled results: which rows of a plan give one, and what becomes of the answer. Pure.

A sequence that wants one is completing from the plan on that computes the last of its prompt: it holds no lane, is not
preempted, and waits for this answer only.
"""

from collections.abc import Sequence as Lists
from typing import NamedTuple

import numpy as np

from common.pooled_rows import PooledRows
from common.sampling_columns import FloatArray
from scheduler_svc.core.executor.plan_builder import PromptRow
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.step_output import SequenceEnd


class AskedResults(NamedTuple):
    """The pooled results that a plan brings.

    Attributes:
        pooled: as the plan has them.
        sequences: of its rows.
    """

    pooled: PooledRows
    sequences: list[Sequence]


def ask_results(rows: Lists[PromptRow], first_row: int, hidden_size: int) -> AskedResults | None:
    """The results that a plan brings; None if none.

    Args:
        rows: the plan's prompt rows.
        first_row: the plan's row that they begin with.
        hidden_size: of the executor.
    """
    asked = [(first_row + i, row.sequence) for i, row in enumerate(rows) if row.is_pooled]
    if not asked:
        return None
    sequences = [sequence for _, sequence in asked]
    tokens = [sequence.params.pooled_token_ids for sequence in sequences]
    pooled = PooledRows(
        np.array([row for row, _ in asked], np.int32),
        np.array([len(ids) for ids in tokens], np.int32),
        np.array([token for ids in tokens for token in ids], np.int32),
        hidden_size,
    )
    return AskedResults(pooled, sequences)


def take_results(asked: AskedResults, values: FloatArray) -> tuple[list[SequenceEnd], list[Sequence]]:
    """Give each sequence its result, with which it ends. One that has ended gets none.

    Args:
        values: float32 [sum of the results' sizes].

    Returns:
        The ends, and the sequences whose results are no numbers.
    """
    ends, numberless, last = [], [], 0
    for sequence, size in zip(asked.sequences, asked.pooled.sizes.tolist(), strict=True):
        first, last = last, last + size
        if sequence.state is State.FINISHED:
            continue
        assert sequence.state is State.COMPLETING, "a sequence waits for a result, and runs again"
        sequence.num_inflight -= 1
        if np.isfinite(values[first:last]).all():
            sequence.pooled = values[first:last].tobytes()
            ends.append(SequenceEnd(sequence, "stop"))
        else:
            numberless.append(sequence)
    return ends, numberless
