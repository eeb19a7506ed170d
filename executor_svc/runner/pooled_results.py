"""Pooled results: hidden states, or logits of given tokens, after the last positions of a step's pooled rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common import messages as m
from common.plan import ExecutorLimits, PlanColumns
from common.pooled_rows import PooledRows
from common.sampling_columns import FloatArray
from executor_svc.model.model import Decoder
from executor_svc.staging.arena import Arena, packed_size


@dataclass(frozen=True)
class StagedResults:
    """A plan's pooled rows on the device. First come those that want hidden states.

    Attributes:
        tokens: int32 [rows that want hidden states], last tokens of the rows among the step's.
        scored_tokens: int32 [scores], likewise, one for each token that is asked about.
        token_ids: int32 [scores], these tokens.
        out: float32, where the values go: hidden states, then scores.
    """

    tokens: Tensor
    scored_tokens: Tensor
    token_ids: Tensor
    out: Tensor


class PooledResults:
    """Has room for a step's, of the tasks that are taken, and computes them.

    Args:
        limits: of the executor.
        device: where steps run.
    """

    def __init__(self, limits: ExecutorLimits, device: torch.device) -> None:
        self._rows = rows = limits.max_num_seqs
        self._hidden_size = limits.hidden_size
        states = rows if "embed" in limits.tasks else 0
        scores = rows * m.MAX_POOLED_TOKEN_IDS if "score" in limits.tasks else 0
        most = min(max(states * limits.hidden_size, scores), m.MAX_PLAN_POOLED_FLOATS)
        self._arena = Arena(packed_size([states, scores, scores]), device)
        self._out = torch.zeros(most, dtype=torch.float32, device=device)

    def stage(self, columns: PlanColumns, pooled: PooledRows) -> StagedResults:
        """Bring a plan's pooled rows to the device; the tensors are valid until the next call."""
        last = (np.cumsum(columns.query_lens, dtype=np.int32) - 1)[pooled.rows]
        arrays = [last[pooled.counts == 0], np.repeat(last, pooled.counts), pooled.token_ids]
        tokens, scored_tokens, token_ids = self._arena.upload(arrays)
        return StagedResults(tokens, scored_tokens, token_ids, self._out[: int(pooled.sizes.sum())])

    def compute(self, staged: StagedResults, hidden_states: Tensor, model: Decoder[Any]) -> None:
        """Fill `staged.out` from a step's hidden states [tokens, hidden]."""
        num_values = len(staged.tokens) * self._hidden_size
        if num_values:
            states = staged.out[:num_values].view(-1, self._hidden_size)
            model.copy_hidden_states(hidden_states, staged.tokens, states)
        scores = staged.out[num_values:]
        for first in range(0, len(scores), self._rows):
            some = slice(first, first + self._rows)
            model.compute_picked_logits(hidden_states, staged.scored_tokens[some], staged.token_ids[some], scores[some])

    def copied_bytes(self) -> list[int]:
        """Bytes that each copy to the device and back takes at most."""
        return [self._arena.num_bytes, self._out.nbytes]


def in_order(pooled: PooledRows, values: FloatArray) -> FloatArray:
    """What `PooledResults` found, in the order of the plan's rows.

    Args:
        values: hidden states, then scores.
    """
    is_hidden = pooled.counts == 0
    if is_hidden.all() or not is_hidden.any():
        return values
    order = np.argsort(~is_hidden, kind="stable")
    parts = np.split(values, np.cumsum(pooled.sizes[order])[:-1])
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return np.concatenate([parts[place] for place in places])
