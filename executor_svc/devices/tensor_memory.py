"""What a KV cache needs of a pool's memory besides `PoolMemory`, which needs no torch."""

from typing import Protocol

from torch import Tensor

from executor_svc.keeper.pool_memory import PoolMemory


class TensorMemory(PoolMemory, Protocol):
    """A pool's memory as a tensor."""

    def tensor(self) -> Tensor:
        """All bytes, as uint8, without a copy. Memory has to be there; `close` wants no such tensor to be left."""
        ...

    def collapse(self, start: int, num_bytes: int) -> bool:
        """Ask for this part in huge pages before it is written for the first time. False if the system gives none."""
        ...
