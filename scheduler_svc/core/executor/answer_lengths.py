"""How long answers get, learnt from those that have ended and from those that run. Pure.

An answer ends by itself (a stop token, a stop string that its frontend finds, a client that cancels) or because it has
its `max_tokens`. The second kind says only that it would have been longer: it is a censored observation, and so is an
answer that still runs. The estimate is the actuaries' life table for such data (Cutler and Ederer, 1958): of those that
reached a length, how many ended before the next.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

MAX_ENDS = 512.0  # counts are halved when there are more, so that new answers tell more than old ones
BINS_PER_OCTAVE = 4
PRIOR_MEDIAN = 128.0  # tokens of an answer with a stop token, while nothing is known: as in Azure's conversations
PRIOR_ANSWERS = 4.0  # what that guess counts for in each bin
CERTAIN_END = 1e-9  # so much is left of the answers in a bin that all ended in it

_OCTAVES = 24
_EDGES: FloatArray = np.unique(np.rint([0.0, *2 ** (np.arange(_OCTAVES * BINS_PER_OCTAVE) / BINS_PER_OCTAVE)]))
_NUM_BINS = len(_EDGES) - 1
# The longer an answer is, the longer it will be: half of those with n tokens get n + PRIOR_MEDIAN more.
_PRIOR_ENDS: FloatArray = 1.0 - (_EDGES[:-1] + PRIOR_MEDIAN) / (_EDGES[1:] + PRIOR_MEDIAN)


class AnswerLengths:
    """The lengths of one kind of answers.

    Args:
        can_stop: whether they have a stop token. Those that have none are taken to use up their `max_tokens` until
            some were seen to end before.
    """

    def __init__(self, *, can_stop: bool) -> None:
        self._ends = np.zeros(_NUM_BINS)
        self._cut = np.zeros(_NUM_BINS)  # by `max_tokens`
        self._prior = PRIOR_ANSWERS if can_stop else 0.0

    @property
    def is_certain(self) -> bool:
        """Whether answers always use up their `max_tokens`, as far as was seen."""
        return self._prior == 0.0 and not self._ends.any()

    def ended(self, num_output: int, *, by_itself: bool) -> None:
        """An answer has ended with so many tokens, by itself or by its `max_tokens`."""
        if num_output == 0:
            return
        counts = self._ends if by_itself else self._cut
        counts[np.searchsorted(_EDGES, num_output) - 1] += 1
        if by_itself and self._ends.sum() > MAX_ENDS:
            self._ends /= 2
            self._cut /= 2

    def survival(self, running: FloatArray) -> "Survival":
        """What is known now.

        Args:
            running: tokens that answers have that still run, [answers].
        """
        bins = np.searchsorted(_EDGES, running[running > 0]) - 1
        cut = self._cut + np.bincount(bins, minlength=_NUM_BINS)
        reached = np.cumsum((self._ends + cut)[::-1])[::-1]
        at_risk = reached - cut / 2 + self._prior  # those that were cut in a bin were there for half of it
        ends = self._ends + self._prior * _PRIOR_ENDS
        share = np.divide(ends, at_risk, out=np.zeros(_NUM_BINS), where=at_risk > 0)
        left = np.maximum(1.0 - share, CERTAIN_END)
        return Survival(np.concatenate([[0.0], np.cumsum(-np.log(left))]))


class Survival:
    """The chance to get from one length to another.

    Args:
        cumulative: the cumulative hazard at the edge of each bin: minus the logarithm of the chance to get there.
    """

    def __init__(self, cumulative: FloatArray) -> None:
        self._cumulative = cumulative

    def chance(self, lengths: FloatArray, steps: FloatArray) -> FloatArray:
        """Chances that answers which have `lengths` tokens get `steps` more, [answers, steps]."""
        now = np.interp(lengths, _EDGES, self._cumulative)
        later = np.interp(lengths[:, None] + steps, _EDGES, self._cumulative)
        chances: FloatArray = np.exp(now[:, None] - later)
        return chances
