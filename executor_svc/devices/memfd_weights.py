"""Memory for weights on a CPU: see `WeightMemories`. It is a file without a name, sealed once it is written."""

import os
import weakref
from mmap import PAGESIZE

import torch
from torch import Tensor

from common.errors import KeeperError
from executor_svc.keeper.memory import Mapping, check_memory, create_memory, seal_read_only


class NewMemfd:
    """See `NewMemory`.

    Args:
        num_bytes: of the memory.

    Raises:
        KeeperError: it cannot be had.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = -(-num_bytes // PAGESIZE) * PAGESIZE
        self.descriptor = create_memory("baton-weights", self.num_bytes, to_be_read_only=True)
        try:
            self._mapping = _mapped(self.descriptor, self.num_bytes)
        except KeeperError:
            self.close()
            raise
        self._tensor = _tensor(self._mapping)
        self._mapping.collapse()  # while it is empty, which is when that is cheap

    def tensor(self) -> Tensor:
        """See `NewMemory.tensor`."""
        return self._tensor

    def seal(self) -> None:
        """See `NewMemory.seal`. No other process can write it either, and one that tries ends.

        Raises:
            KeeperError: it cannot be sealed.
        """
        self._mapping.map(self.descriptor, read_only=True)  # at the same addresses: the tensors stay where they are
        seal_read_only(self.descriptor)

    def close(self) -> None:
        """See `NewMemory.close`."""
        os.close(self.descriptor)


class MemfdWeights:
    """See `WeightMemories`."""

    device = "cpu"

    def create(self, num_bytes: int) -> NewMemfd:
        """See `WeightMemories.create`."""
        return NewMemfd(num_bytes)

    def map(self, fd: int, num_bytes: int) -> Tensor:
        """See `WeightMemories.map`.

        Raises:
            KeeperError: it is no memory file, has another size, can be cut short, or can be written.
        """
        check_memory(fd, num_bytes, read_only=True)
        return _tensor(_mapped(fd, num_bytes, read_only=True))


def _mapped(fd: int, num_bytes: int, *, read_only: bool = False) -> Mapping:
    mapping = Mapping(num_bytes)
    try:
        mapping.map(fd, read_only=read_only)
    except KeeperError:
        mapping.unmap()
        raise
    return mapping


def _tensor(mapping: Mapping) -> Tensor:
    """A mapping's bytes; it lasts as long as they or a view of them."""
    buffer = mapping.buffer()
    weakref.finalize(buffer, mapping.unmap).atexit = False
    return torch.frombuffer(buffer, dtype=torch.uint8)
