"""How much KV memory the running sequences will take at their worst moment, if nothing joins them. Pure.

Admission that looks only at the blocks that are free now fills memory with sequences that all still have to grow,
and then takes blocks away from some of them again. Looking at the future peak is the idea of the Past-Future
scheduler (Gong et al., ASPLOS 2025, LightLLM); ours predicts the length of an answer as a fraction of its
`max_tokens`, which is exact where answers always use it up.
"""

from bisect import insort

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

HISTORY = 512  # ended answers that are remembered
MIN_HISTORY = 32  # with fewer, every answer is taken to use up its max_tokens
QUANTILE = 0.75  # of the lengths seen among answers that got at least as far
MOMENTS = 24  # that are looked at exactly


class OutputHistory:
    """What fraction of their `max_tokens` the last answers used."""

    def __init__(self) -> None:
        self._sorted: list[float] = []
        self._ring: list[float] = []
        self._next = 0
        self._array: FloatArray | None = None

    def add(self, num_output: int, max_tokens: int) -> None:
        """An answer has ended, by itself or by its length."""
        fraction = num_output / max_tokens
        if len(self._ring) < HISTORY:
            self._ring.append(fraction)
        else:
            self._sorted.remove(self._ring[self._next])
            self._ring[self._next] = fraction
        self._next = (self._next + 1) % HISTORY
        insort(self._sorted, fraction)
        self._array = None

    def remaining(self, num_output: FloatArray, max_tokens: FloatArray) -> FloatArray:
        """Tokens that answers are expected to have yet, given those they have; at least 1 each, [answers]."""
        if len(self._sorted) < MIN_HISTORY:
            return np.maximum(max_tokens - num_output, 1.0)
        if self._array is None:
            self._array = np.array(self._sorted)
        count = len(self._array)
        below = np.searchsorted(self._array, num_output / max_tokens, side="right")
        chosen = np.minimum(below + (QUANTILE * (count - below)).astype(np.int64), count - 1)
        fraction = np.where(below < count, self._array[chosen], 1.0)
        return np.maximum(np.ceil(fraction * max_tokens) - num_output, 1.0)

    def expected(self, num_output: int, max_tokens: int) -> float:
        """The same for one answer."""
        if len(self._sorted) < MIN_HISTORY:
            return max(max_tokens - num_output, 1.0)
        return float(self.remaining(np.array([float(num_output)]), np.array([float(max_tokens)]))[0])


class Forecast:
    """The peak of the blocks held, as sequences are added to those that run.

    Each sequence is `size` tokens long now, grows by one a step, and gives all back after `remaining` steps. Just
    before one of them ends, all that last at least as long are there and each has grown by that one's `remaining`:
    the peak is at one of those moments.

    Args:
        sizes, remaining: tokens, [sequences].
        block_size: positions in a block.
    """

    def __init__(self, sizes: FloatArray, remaining: FloatArray, block_size: int) -> None:
        self._block_size = block_size
        self._sizes = sizes
        self._remaining = remaining
        self._added: list[tuple[float, float]] = []
        self._bound = float((sizes + remaining).sum()) / block_size + len(sizes)

    def add(self, size: float, remaining: float) -> None:
        """Let another sequence join."""
        self._added.append((size, remaining))
        self._bound += (size + remaining) / self._block_size + 1

    def exceeds(self, num_blocks: int) -> bool:
        """Whether the peak is greater than so many blocks. Where all would fit at their full lengths, that is known
        without looking for it."""
        return self._bound > num_blocks and self.peak_blocks() > num_blocks

    def peak_blocks(self) -> float:
        """Blocks held at the worst moment to come."""
        if self._added:
            added = np.array(self._added)
            self._sizes = np.concatenate([self._sizes, added[:, 0]])
            self._remaining = np.concatenate([self._remaining, added[:, 1]])
            self._added = []
        order = np.argsort(-self._remaining, kind="stable")
        sizes, remaining = self._sizes[order], self._remaining[order]
        counts = np.arange(1, len(order) + 1)
        tokens = np.cumsum(sizes) + counts * remaining
        # What last blocks leave empty differs from moment to moment; count it where the peak can be.
        half_empty = tokens + counts * (self._block_size / 2)
        moments = np.argsort(-half_empty)[:MOMENTS]
        held = np.ceil((sizes[:, None] + remaining[moments] - 1) / self._block_size)  # the last token is never stored
        held[remaining[:, None] < remaining[moments]] = 0
        return float(held.sum(axis=0).max(initial=0.0))
