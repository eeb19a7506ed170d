"""What an executor remembers of lanes whose sequences have constraints. Pure.

All of it was said by a lane's last start in this epoch, or follows from the plans since; so the scheduler could say it
again at any time, to any executor.
"""

from dataclasses import dataclass, field

import numpy as np

from common.constraints import StartedLane
from common.errors import WireError
from common.plan import PlanColumns
from common.sampling_columns import FloatArray
from common.wire import IntArray

_MASK_BITS = 32


@dataclass(frozen=True)
class Biases:
    """What is added to tokens' scores: int32 and float32 [biases]."""

    ids: IntArray
    values: FloatArray


@dataclass(frozen=True, eq=False)
class ConstrainedLane:
    """Hold what a lane's start said, ready for use. Each start makes another one, which equals no other.

    Attributes:
        start: what the scheduler said.
        min_length: known tokens, the prompt among them, from which a sequence has its `min_tokens`.
        biases, early_biases: of a sequence that has its `min_tokens`, and of one that has not.
        mask: int32 [ceil(vocab / 32)], see `kernels.arguments.Adjustments`; None if every token is allowed.
    """

    start: StartedLane
    min_length: int
    biases: Biases
    early_biases: Biases
    mask: IntArray | None

    @classmethod
    def started(cls, start: StartedLane, vocab_size: int) -> "ConstrainedLane":
        """A lane that has just been started."""
        arrays = start.arrays
        stops = np.unique(start.stop_token_ids[(start.stop_token_ids >= 0) & (start.stop_token_ids < vocab_size)])
        others = ~np.isin(arrays.bias_token_ids, stops)
        return cls(
            start,
            start.message.num_prompt + start.message.constraints.min_tokens,
            Biases(arrays.bias_token_ids, arrays.biases),
            Biases(
                np.concatenate([arrays.bias_token_ids[others], stops]),
                np.concatenate([arrays.biases[others], np.full(len(stops), -np.inf, np.float32)]),
            ),
            packed_mask(arrays.allowed_token_ids, vocab_size) if len(arrays.allowed_token_ids) else None,
        )


@dataclass(frozen=True)
class LaneMasks:
    """Masks of the lanes that have a grammar: what the grammar allows of the tokens that the lane's list allows.

    Attributes:
        masks: int32 [lanes, ceil(vocab / 32)], each as in `kernels.arguments.Adjustments`.
        rows: each lane's row.
        without: lanes that have none, but zeros, and why: LATE or TOO_COMPLEX.
    """

    masks: IntArray
    rows: dict[int, int]
    without: dict[int, int] = field(default_factory=dict)


class ConstrainedLanes:
    """The lanes of one executor.

    Args:
        vocab_size: of the model.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._epoch = 0
        self._lanes: dict[int, ConstrainedLane] = {}
        self._lengths: dict[int, int] = {}  # tokens known: those of the start, and one for each plan since

    def take(self, columns: PlanColumns) -> list[ConstrainedLane]:
        """The lanes of a plan's constrained samples. The plan adds a token to each.

        Raises:
            WireError: a lane was not started in the plan's epoch, or has other tokens than the plan thinks.
        """
        if not len(columns.constrained):
            return []
        if columns.epoch != self._epoch:
            self._lanes.clear()
            self._lengths.clear()
            self._epoch = columns.epoch
        for start in columns.lane_starts:
            self._lanes[start.message.lane] = ConstrainedLane.started(start, self._vocab_size)
            self._lengths[start.message.lane] = len(start.tokens)
        rows = columns.sample_rows[columns.constrained]
        taken = []
        for lane, length in zip(columns.lanes[rows].tolist(), columns.context_lens[rows].tolist(), strict=True):
            known = self._lengths.get(lane)
            if known is None:
                raise WireError(f"lane {lane} has constraints, and was never started in epoch {self._epoch}")
            if known != length:
                raise WireError(f"lane {lane} has {known} tokens since its start, the plan says {length}")
            self._lengths[lane] = length + 1
            taken.append(self._lanes[lane])
        return taken


def packed_mask(token_ids: IntArray, vocab_size: int) -> IntArray:
    """A mask in which these tokens' bits are set, int32 [ceil(vocab / 32)], lowest first."""
    allowed = np.zeros(-(-vocab_size // _MASK_BITS) * _MASK_BITS, np.bool_)
    allowed[token_ids] = True
    return np.packbits(allowed, bitorder="little").view("<i4")


def allow(mask: IntArray, token_ids: IntArray, vocab_size: int) -> None:
    """Set these tokens' bits in a mask, int32 [ceil(vocab / 32)]; ids beyond the vocabulary are passed over."""
    known = token_ids[token_ids < vocab_size]
    bits = np.uint32(1) << (known % _MASK_BITS).astype(np.uint32)
    np.bitwise_or.at(mask, known // _MASK_BITS, bits.view(np.int32))
