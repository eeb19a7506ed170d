"""A KV pool's memory on a CPU: see `PoolMemory`. It is a file without a name, mapped."""

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from executor_svc.keeper.memory import Mapping, check_memory, create_memory
from executor_svc.keeper.pool_memory import Span


class MemfdPool:
    """Addresses on the host, and the memory behind them.

    Args:
        num_bytes: of the pool.

    Attributes:
        mapping: the addresses.

    Raises:
        KeeperError: so many addresses cannot be had.
    """

    def __init__(self, num_bytes: int) -> None:
        self.mapping = Mapping(num_bytes)
        self.num_bytes = self.mapping.num_bytes
        self.device = "cpu"
        self.descriptor: int | None = None

    def tensor(self) -> Tensor:
        """See `TensorMemory.tensor`."""
        return torch.frombuffer(self.mapping.buffer(), dtype=torch.uint8)

    def collapse(self, start: int, num_bytes: int) -> bool:
        """See `TensorMemory.collapse`, and `Mapping.collapse`."""
        return self.mapping.collapse(start, num_bytes)

    def map_scratch(self, spans: Sequence[Span]) -> None:
        """See `PoolMemory.map_scratch`. All addresses get memory: where it is not touched, it costs nothing."""
        self.mapping.map_scratch()
        self._close_descriptor()

    def clear(self) -> None:
        """See `PoolMemory.clear`."""
        self.map_scratch([])

    def create(self) -> None:
        """See `PoolMemory.create`.

        Raises:
            KeeperError: it cannot be had.
        """
        self._map(create_memory("baton-pool", self.num_bytes))

    def map(self, fd: int) -> None:
        """See `PoolMemory.map`.

        Raises:
            KeeperError: it is no memory file, has another size, can be cut short, or cannot be written.
        """
        check_memory(fd, self.num_bytes, read_only=False)
        self._map(os.dup(fd))

    def close(self) -> None:
        """See `PoolMemory.close`. No tensor over it may be used any more."""
        self._close_descriptor()
        self.mapping.unmap()

    def _map(self, descriptor: int) -> None:
        self._close_descriptor()
        self.descriptor = descriptor
        self.mapping.map(descriptor)
        self.mapping.advise_huge_pages()

    def _close_descriptor(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
