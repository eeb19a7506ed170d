"""Plans on their way: what has to be remembered of one until its answer lands. Pure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.wire import IntArray
from scheduler_svc.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class InflightPlan:
    """A plan that was sent and not answered yet. Columns have an entry for each sampled row; `unsampled` are the
    sequences whose row does not reach their last token."""

    step: int
    lanes: IntArray
    serials: npt.NDArray[np.int64]
    sequences: list[Sequence]
    unsampled: list[Sequence]

    @property
    def everyone(self) -> list[Sequence]:
        """All sequences that have a row in the plan."""
        return [*self.sequences, *self.unsampled]


@dataclass(frozen=True, slots=True)
class Landed:
    """What an answer brought.

    Attributes:
        sequences, tokens: those that got a token, and the token; a sequence that had ended gets none.
        firsts: those whose first token this is.
        stopped, exhausted: those that end with it, by a stop token or because they have `max_tokens`.
    """

    sequences: list[Sequence]
    tokens: list[int]
    firsts: list[Sequence]
    stopped: list[Sequence]
    exhausted: list[Sequence]
