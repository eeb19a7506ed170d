"""Whether the KV memory of an executor suffices for the running sequences and another one. Pure.

Admission that looks only at the blocks that are free now fills memory with sequences that all still have to grow, and
then takes blocks away from some of them again. Where lengths are certain, because answers have no stop token, the worst
moment to come is known, and it counts (the idea of the Past-Future scheduler: Gong et al., ASPLOS 2025). Where they are
not, a part of the pool stays free, as with vLLM's watermark: nothing that was learnt of lengths did better.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

MARK = 0.05  # of the blocks: stays free while a sequence of unknown length runs
EXACT_MOMENTS = 24  # ends of sequences that are looked at


class Growing(NamedTuple):
    """Sequences that grow by one token a step; a column for each fact, [sequences].

    Attributes:
        sizes: tokens now, but for those in blocks that are counted for other sequences.
        remaining: tokens until `max_tokens`, at least 1.
        can_stop: bool, whether they have a stop token, and so may end before.
    """

    sizes: FloatArray
    remaining: FloatArray
    can_stop: BoolArray


class Forecast:
    """The blocks that will be held, as sequences are added to those that run.

    A sequence holds blocks until it ends, and its last token is never stored. The most blocks are held just before one
    of the ends.

    Args:
        running: the sequences that run.
        block_size: positions in a block.
    """

    def __init__(self, running: Growing, block_size: int) -> None:
        self._block_size = block_size
        is_certain = ~running.can_stop
        self._sizes, self._remaining = running.sizes[is_certain], running.remaining[is_certain]  # of certain lengths
        self._uncertain = float(np.ceil(running.sizes[running.can_stop] / block_size).sum())
        self._bound = float((self._sizes + self._remaining).sum()) / block_size + len(self._sizes)
        self._until = np.inf

    def add(self, size: float, remaining: float, *, can_stop: bool) -> None:
        """Let another sequence join: the newcomer, which `exceeds` asks about."""
        if can_stop:
            self._uncertain += np.ceil(size / self._block_size)
            self._until = np.inf
        else:
            self._sizes, self._remaining = np.append(self._sizes, size), np.append(self._remaining, remaining)
            self._bound += (size + remaining) / self._block_size + 1
            self._until = remaining

    def exceeds(self, num_blocks: int) -> bool:
        """Tell whether more blocks would be held than there are, at a moment when the newcomer is still there: what
        comes after its end is not its fault."""
        free = num_blocks - self._uncertain - (MARK * num_blocks if self._uncertain else 0.0)
        return free < 0 or (self._bound > free and self.peak_blocks() > free)

    def peak_blocks(self) -> float:
        """Return the most blocks that sequences of certain length will hold while the newcomer is there."""
        order = np.argsort(-self._remaining, kind="stable")
        sizes, remaining = self._sizes[order], self._remaining[order]
        counts = np.arange(1, len(order) + 1)
        # What last blocks leave empty differs from moment to moment; count it where the peak can be.
        tokens = np.cumsum(sizes) + counts * (remaining + self._block_size / 2)
        moments = remaining[np.argsort(-np.where(remaining <= self._until, tokens, 0.0))[:EXACT_MOMENTS]]
        held = np.ceil((sizes[:, None] + (moments - 1)) / self._block_size)
        held[remaining[:, None] < moments] = 0
        return float(held.sum(axis=0)[moments <= self._until].max(initial=0.0))
