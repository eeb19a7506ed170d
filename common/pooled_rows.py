"""Which rows of a plan give a pooled result instead of a token, as checked columns."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import numpy as np

from common import messages as m
from common.errors import WireError
from common.wire import IntArray, check_range, int32_array


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Rows whose last position gives a result: its hidden state, or the logits of some tokens.

    Attributes:
        rows: int32 [pooled], ascending; none of them is sampled.
        counts: int32 [pooled], tokens whose logits are the result; 0 for the hidden state.
        token_ids: int32 [sum(counts)], these tokens, row by row.
        hidden_size: floats of a hidden state.
    """

    rows: IntArray
    counts: IntArray
    token_ids: IntArray
    hidden_size: int

    @property
    def sizes(self) -> IntArray:
        """Floats of each result, int32 [pooled]."""
        return np.where(self.counts > 0, self.counts, np.int32(self.hidden_size))

    def columns(self) -> dict[str, bytes]:
        """As a plan has them."""
        return {
            "pooled_rows": self.rows.tobytes(),
            "pooled_counts": self.counts.tobytes(),
            "pooled_token_ids": self.token_ids.tobytes(),
        }

    @classmethod
    def of_plan(
        cls,
        plan: m.Plan,
        sample_rows: IntArray,
        num_rows: int,
        hidden_size: int,
        vocab_size: int,
        tasks: Collection[m.Task],
    ) -> Self | None:
        """A plan's, checked against its rows; None if it has none.

        Args:
            sample_rows, num_rows: of the plan.
            hidden_size, vocab_size, tasks: of the executor.

        Raises:
            WireError: columns of different lengths, rows or ids that are out of range, a row that is sampled too,
                results of a task that the executor does not take, or too many of them.
        """
        if not (plan.pooled_rows or plan.pooled_counts or plan.pooled_token_ids):
            return None
        rows = int32_array("pooled_rows", plan.pooled_rows)
        counts = int32_array("pooled_counts", plan.pooled_counts)
        token_ids = int32_array("pooled_token_ids", plan.pooled_token_ids)
        if len(rows) != len(counts):
            raise WireError(f"pooled_counts has {len(counts)} entries for {len(rows)} pooled_rows")
        check_range("pooled_rows", rows, 0, num_rows - 1)
        if (np.diff(rows) <= 0).any():
            raise WireError("pooled_rows are not strictly ascending")
        if np.isin(rows, sample_rows, assume_unique=True).any():
            raise WireError("a row is sampled and pooled")
        check_range("pooled_counts", counts, 0, m.MAX_POOLED_TOKEN_IDS)
        if len(token_ids) != (num_ids := int(counts.sum(dtype=np.int64))):
            raise WireError(f"pooled_token_ids has {len(token_ids)} entries, pooled_counts add up to {num_ids}")
        check_range("pooled_token_ids", token_ids, 0, vocab_size - 1)
        asked: set[m.Task] = {"score" if count else "embed" for count in counts.tolist()}
        if missing := asked.difference(tasks):
            raise WireError(f"the plan has rows of {', '.join(missing)}, and this executor takes {', '.join(tasks)}")
        pooled = cls(rows, counts, token_ids, hidden_size)
        if (num_values := int(pooled.sizes.sum(dtype=np.int64))) > m.MAX_PLAN_POOLED_FLOATS:
            raise WireError(f"the plan asks for {num_values} pooled values, the limit is {m.MAX_PLAN_POOLED_FLOATS}")
        return pooled
