"""Memory that a GPU copies from and to by itself. Torch keeps what was given back, for later requests of its size."""

from collections.abc import Iterable

import torch


def take_pinned_memory(most: Iterable[int], in_flight: int) -> None:
    """Make torch's cache hold enough for a step's copies, so that no step waits for the driver to pin memory.

    The cache rounds up to powers of two, and never cuts a larger piece: it has to hold each power.

    Args:
        most: bytes that each copy of a step takes at most.
        in_flight: steps whose memory is in use at the same time.
    """
    pieces = [1 << power for num_bytes in most for power in range(max(num_bytes - 1, 0).bit_length() + 1)]
    held = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in pieces * in_flight]
    del held  # all at once: a piece given back earlier would be the next one
