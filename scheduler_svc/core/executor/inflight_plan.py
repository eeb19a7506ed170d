"""What is kept of a plan for its answer. Pure."""

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from common.wire import IntArray
from scheduler_svc.core.executor.pooled_results import AskedResults
from scheduler_svc.core.executor.prompt_logprobs import AskedPrompts
from scheduler_svc.core.sequence import Sequence


class Completed(NamedTuple):
    """A sequence whose last token, or pooled result, is in flight.

    Attributes:
        ids: of the table that it has given back.
        spared: see `BlockManager.spare`.
    """

    sequence: Sequence
    ids: "array[int]"
    spared: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class InflightPlan:
    """A plan that was sent and not answered yet. Columns have an entry for each sampled row.

    Attributes:
        lanes, serials: of the sampled rows; `sequences` are those that held them.
        num_decodes: how many of the sampled rows decode; they come first.
        returning: sequences of the other sampled rows that have tokens from before they last waited.
        unsampled: sequences whose row does not reach their last token, and the position after the row.
        logprob_counts: of the sampled rows; empty if none wants any.
        slot_mapping: its slots, int32 [tokens], -1 where it writes none.
        asked_prompts: what it asks of prompts; None if nothing.
        asked_results: the pooled results that it brings; None if it brings none.
        completed: sequences whose last token or result it brings, if their pool outlives the executor.
    """

    step: int
    lanes: IntArray
    serials: npt.NDArray[np.int64]
    sequences: list[Sequence]
    num_decodes: int
    returning: list[Sequence]
    unsampled: list[tuple[Sequence, int]]
    logprob_counts: IntArray
    slot_mapping: bytes
    asked_prompts: AskedPrompts | None = None
    asked_results: AskedResults | None = None
    completed: list[Completed] = field(default_factory=list)

    @property
    def everyone(self) -> list[Sequence]:
        """All sequences that have a row in the plan."""
        pooled = [] if self.asked_results is None else self.asked_results.sequences
        return [*self.sequences, *pooled, *(sequence for sequence, _ in self.unsampled)]
