"""The interface of memory for prepared weights that outlives the process: written by one process, read by many.

`devices/memfd_weights.py` is that of a CPU, `devices/cuda_weights.py` that of a GPU. A keeper keeps the memory by its
descriptor (`common/messages/keeper.py`).
"""

from typing import Protocol

from torch import Tensor

from common.errors import BatonError


class NoRoom(BatonError):
    """The device has too little memory left."""


class NewMemory(Protocol):
    """Memory that this process has made and may write until it is sealed."""

    num_bytes: int
    """What was asked for, rounded up."""
    descriptor: int
    """A file descriptor of the memory, open until `close`. A keeper gets the memory by it."""

    def tensor(self) -> Tensor:
        """All bytes, as uint8, without a copy: zeros at first. The memory stays as long as it or a view of it lives."""
        ...

    def seal(self) -> None:
        """Write no more: this process can only read the tensors from now on.

        Raises:
            BatonError: it cannot be sealed; the tensors are good.
        """
        ...

    def close(self) -> None:
        """Close the descriptor."""
        ...


class WeightMemories(Protocol):
    """Makes and maps memory for weights on one device."""

    device: str
    """As `WeightsKind.device` says: memory of one device is of no use to another."""

    def create(self, num_bytes: int) -> NewMemory:
        """New memory of so many bytes, or somewhat more.

        Raises:
            NoRoom: there is too little memory left.
            BatonError: it cannot be had.
        """
        ...

    def map(self, fd: int, num_bytes: int) -> Tensor:
        """Map sealed memory for reading. `fd` stays the caller's.

        Args:
            num_bytes: that it has to have, as `NewMemory.num_bytes` said.

        Returns:
            All bytes, uint8. The memory stays as long as the tensor or a view of it lives.

        Raises:
            BatonError: it is no such memory, is shorter, or belongs to another device.
        """
        ...
