"""How a step's small arrays reach the device: packed into one pinned buffer, and carried over in one copy."""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNED_WORDS = 4  # 16 bytes; vector loads need it, and Triton's kernels are compiled for it

Column = npt.NDArray[np.int32] | npt.NDArray[np.float32]


def packed_size(lengths: Sequence[int]) -> int:
    """Bytes that arrays of these lengths, of 4-byte elements, take in an arena."""
    return 4 * sum(length + -length % _ALIGNED_WORDS for length in lengths)


class Arena:
    """A buffer on the device that every step's arrays are packed into.

    Arrays of the same sizes get the same addresses in every step, which is what a CUDA graph needs of its inputs (the
    last array of a step may be shorter or longer). A step that is too large for the buffer gets a buffer of its own.

    Args:
        num_bytes: size of the buffer, see `packed_size`.
        device: where the arrays go.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._buffer = torch.empty(num_bytes // 4, dtype=torch.int32, device=device)

    @property
    def num_bytes(self) -> int:
        """Size of the buffer."""
        return self._buffer.nbytes

    def upload(self, arrays: Sequence[Column], *, fixed: bool = False) -> list[Tensor]:
        """Carry int32 and float32 arrays over; the tensors, in the arrays' shapes, are valid until the next upload.

        On a GPU the copy goes into the current stream, behind the steps that read what was there before.

        Raises:
            ValueError: the arrays are for a graph (`fixed`), which reads this arena's buffer, and they do not fit it.
        """
        lengths = [array.size for array in arrays]
        spans = list(itertools.chain.from_iterable((length, -length % _ALIGNED_WORDS) for length in lengths))
        num_words = sum(spans)
        if fixed and num_words > len(self._buffer):
            raise ValueError(f"a fixed plan takes {4 * num_words} bytes, the arena has {4 * len(self._buffer)}")
        buffer = self._buffer if num_words <= len(self._buffer) else self._buffer.new_empty(num_words)
        on_gpu = buffer.is_cuda
        # Torch's cache of pinned memory hands out none of it again before its copy is done.
        host = torch.empty(num_words, dtype=torch.int32, pin_memory=True) if on_gpu else buffer
        packed, start = host.numpy(), 0
        for array, length, padding in zip(arrays, lengths, spans[1::2], strict=True):
            packed[start : start + length] = array if _is_plain(array) else array.reshape(-1).view(np.int32)
            start += length + padding
        device = buffer[:num_words]
        if on_gpu:
            device.copy_(host, non_blocking=True)
        # Cut in one call: a step has twenty arrays.
        pieces = device.split_with_sizes(spans)[::2]
        return [_as(piece, array) for piece, array in zip(pieces, arrays, strict=True)]

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor of an upload stands in the arena's own buffer."""
        return tensor.untyped_storage().data_ptr() == self._buffer.untyped_storage().data_ptr()


def _as(words: Tensor, array: Column) -> Tensor:
    """32-bit words with the dtype and the shape of an array."""
    if _is_plain(array):
        return words
    return words.view(torch.int32 if array.dtype == np.int32 else torch.float32).view(array.shape)


def _is_plain(array: Column) -> bool:
    return array.dtype == np.int32 and array.ndim == 1
