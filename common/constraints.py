"""A request's constraints as numpy arrays, checked; and what a lane's start says, likewise."""

from dataclasses import dataclass

import numpy as np

from common import messages as m
from common.errors import WireError
from common.sampling_columns import FloatArray
from common.wire import IntArray, array_from, int32_array

MAX_BIAS = 100.0


@dataclass(frozen=True)
class ConstraintArrays:
    """The lists of `common.messages.Constraints` as arrays; see there."""

    bias_token_ids: IntArray
    biases: FloatArray
    bad_words: tuple[IntArray, ...]
    allowed_token_ids: IntArray

    @property
    def largest_token(self) -> int:
        """The largest token id in them; -1 if there is none."""
        return max(int(ids.max(initial=-1)) for ids in (self.bias_token_ids, self.allowed_token_ids, *self.bad_words))


def constraint_arrays(constraints: m.Constraints) -> ConstraintArrays:
    """Check what one field says about another.

    Raises:
        WireError: lengths that do not fit, token ids that are negative or stand twice, a bias out of range.
    """
    bias_token_ids = int32_array("bias_token_ids", constraints.bias_token_ids)
    biases = array_from("biases", constraints.biases, "<f4")
    if len(biases) != len(bias_token_ids):
        raise WireError(f"{len(biases)} biases for {len(bias_token_ids)} tokens")
    if len(biases) > m.MAX_BIASES:
        raise WireError(f"{len(biases)} biases, the limit is {m.MAX_BIASES}")
    if len(biases) and not (np.abs(biases) <= MAX_BIAS).all():  # written so that a NaN is refused
        raise WireError(f"a bias is not between -{MAX_BIAS:g} and {MAX_BIAS:g}")
    bad_words = tuple(int32_array("bad_words", word) for word in constraints.bad_words)
    for word in bad_words:
        if not 1 <= len(word) <= m.MAX_BAD_WORD_TOKENS:
            raise WireError(f"a bad word has {len(word)} tokens, allowed are 1 to {m.MAX_BAD_WORD_TOKENS}")
    allowed_token_ids = int32_array("allowed_token_ids", constraints.allowed_token_ids)
    for name, ids in (("bias_token_ids", bias_token_ids), ("allowed_token_ids", allowed_token_ids)):
        if len(np.unique(ids)) != len(ids):
            raise WireError(f"a token stands twice in {name}")
    for ids in (bias_token_ids, allowed_token_ids, *bad_words):
        if len(ids) and ids.min() < 0:
            raise WireError(f"token id {ids.min()}; ids start at 0")
    return ConstraintArrays(bias_token_ids, biases, bad_words, allowed_token_ids)


@dataclass(frozen=True)
class StartedLane:
    """A checked `common.messages.LaneStart`.

    Attributes:
        message: what was sent.
        tokens: int32, all known tokens.
        stop_token_ids: int32, banned before the sequence has its `min_tokens`.
    """

    message: m.LaneStart
    tokens: IntArray
    stop_token_ids: IntArray
    arrays: ConstraintArrays

    @classmethod
    def of(cls, start: m.LaneStart) -> "StartedLane":
        """Its arrays. Raises WireError for constraints that contradict themselves."""
        stops = int32_array("stop_token_ids", start.stop_token_ids)
        return cls(start, int32_array("tokens", start.tokens), stops, constraint_arrays(start.constraints))
