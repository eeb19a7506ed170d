"""The interface of a KV pool's memory: addresses that stay, and memory behind them that outlives the process.

`devices/memfd_pool.py` is that of a CPU, `devices/cuda_mapping.py` that of a GPU. A keeper keeps the memory by its
descriptor (`common/messages/keeper.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Span:
    """A part of a pool.

    Attributes:
        start: bytes from the pool's beginning.
        num_bytes: how long the part is.
    """

    start: int
    num_bytes: int


class PoolMemory(Protocol):
    """Addresses for a pool. No memory is behind them at first.

    The addresses stay until `close`: tensors over them, and CUDA graphs that were captured with them, stay valid when
    other memory comes behind them. After `map` has raised, `clear` or `create` may be called; after another method has,
    only `close` may.
    """

    num_bytes: int
    """How many bytes the addresses cover: what was asked for, rounded up."""
    device: str
    """Where the memory is, as `PoolKind.device` says: memory of one device is of no use to another."""
    descriptor: int | None
    """A file descriptor of the memory that `create` or `map` has put behind the addresses, open until `close`. A keeper
    gets the memory by it."""

    def map_scratch(self, spans: Sequence[Span]) -> None:
        """Put some little memory behind parts of the addresses, for a standby to warm up and capture graphs with.

        What is written to one part may appear in another. Other addresses must not be touched.

        Raises:
            BatonError: it cannot be had.
        """
        ...

    def clear(self) -> None:
        """Take away what is behind the addresses, once the device has done all that it was asked for: nothing that this
        process runs reaches that memory any more, and it keeps none of it.

        Raises:
            BatonError: something could not be taken away.
        """
        ...

    def create(self) -> None:
        """Put new memory behind all addresses, in place of what is there. It is full of zeros.

        Raises:
            BatonError: it cannot be had.
        """
        ...

    def map(self, fd: int) -> None:
        """Put the memory of a descriptor behind all addresses, in place of what is there. `fd` stays the caller's.

        Raises:
            BatonError: it is no such memory, has another size, or belongs to another device.
        """
        ...

    def close(self) -> None:
        """Give addresses and memory back. The memory lives on if a keeper has its descriptor.

        Raises:
            BatonError: a tensor is left, or something could not be given back. What could, was; the next call goes on.
        """
        ...
