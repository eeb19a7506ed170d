"""Memory that a GPU copies from and to by itself. Torch keeps what was given back, for later requests of its size."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from common.wire import IntArray


def copy_to_device(arrays: Sequence[IntArray], places: Sequence[Tensor]) -> None:
    """Copy int32 arrays to tensors of their sizes, through one piece of pinned memory if these are on a GPU.

    The copies go into the current stream, after the steps that read what is there.
    """
    lengths = [array.size for array in arrays]
    host = torch.empty(sum(lengths), dtype=torch.int32, pin_memory=places[0].is_cuda)
    np.concatenate([array.reshape(-1) for array in arrays], out=host.numpy())
    for place, part in zip(places, host.split_with_sizes(lengths), strict=True):
        place.copy_(part.view(place.shape), non_blocking=True)


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
