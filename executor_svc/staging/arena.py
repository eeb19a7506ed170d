"""How a step's small arrays reach the device: packed into one pinned buffer, and carried over in one copy."""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes; vector loads need it, and Triton's kernels are compiled for it
_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.float32): torch.float32}

Column = npt.NDArray[np.int32] | npt.NDArray[np.float32]


def packed_size(lengths: Sequence[int]) -> int:
    """Bytes that arrays of these lengths, of 4-byte elements, take in an arena."""
    return sum(_aligned(4 * length) for length in lengths)


class Arena:
    """A buffer on the device that every step's arrays are packed into.

    Arrays of the same sizes get the same addresses in every step, which is what a CUDA graph needs of its inputs (the
    last array of a step may be shorter or longer). A step that is too large for the buffer gets a buffer of its own.

    Args:
        num_bytes: size of the buffer, see `packed_size`.
        device: where the arrays go.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def upload(self, arrays: Sequence[Column], *, fixed: bool = False) -> list[Tensor]:
        """Carry int32 and float32 arrays over; the tensors, in the arrays' shapes, are valid until the next upload.

        On a GPU the copy goes into the current stream, behind the steps that read what was there before.

        Raises:
            ValueError: the arrays are for a graph (`fixed`), which reads this arena's buffer, and they do not fit it.
        """
        ends = list(itertools.accumulate(_aligned(array.nbytes) for array in arrays))
        starts = [0, *ends[:-1]]
        if fixed and ends[-1] > len(self._buffer):
            raise ValueError(f"a fixed plan takes {ends[-1]} bytes, the arena has {len(self._buffer)}")
        buffer = self._buffer if ends[-1] <= len(self._buffer) else self._buffer.new_empty(ends[-1])
        on_gpu = buffer.is_cuda
        # Torch's cache of pinned memory hands out none of it again before its copy is done.
        host = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True) if on_gpu else buffer
        packed = host.numpy()
        for start, array in zip(starts, arrays, strict=True):
            packed[start : start + array.nbytes].view(array.dtype)[:] = array.reshape(-1)
        if on_gpu:
            buffer[: ends[-1]].copy_(host, non_blocking=True)
        return [
            buffer[start : start + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor of an upload stands in the arena's own buffer."""
        return tensor.untyped_storage().data_ptr() == self._buffer.untyped_storage().data_ptr()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
