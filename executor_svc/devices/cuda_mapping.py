"""Addresses on a GPU, and the memory behind them just now: of a KV pool (see `PoolMemory`), or of weights.

**It has not run on a GPU.**

Memory is changed behind the same addresses by cuMemUnmap and cuMemMap. CUDA documents that the addresses stay reserved
and may be mapped again, with access to be set anew; it says nothing about graphs. A captured kernel holds addresses as
plain numbers, so graphs in which kernels alone touch the pool replay on whatever is mapped (vLLM's sleep mode and
Dynamo's memory service rely on it). Nodes that copy or set memory are another matter: CUDA checks where their operands
lie, so no captured step may have such a node for the pool.

A standby takes one allocation as large as its longest part for all parts: each part maps it anew. The parts are
few (the padding block of each layer's keys and values), because each costs a call when the pool comes: with graphs in
memory these calls are slow (2 s became 6 to 9 s for all of a 32B model's memory, vLLM pull request 45648).
"""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from common.errors import BatonError
from executor_svc.devices.cuda_memory import CudaMemory
from executor_svc.keeper.pool_memory import Span


class MappedBytes:
    """The bytes behind addresses, for torch and others (CUDA array interface).

    Args:
        address: of the first one.
    """

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class CudaMapping:
    """Addresses, and the memory behind them. No memory is behind them at first.

    Args:
        memory: the GPU's.
        num_bytes: how many; they are rounded up to what can be mapped.

    Raises:
        CudaError: so many addresses cannot be had.
    """

    def __init__(self, memory: CudaMemory, num_bytes: int) -> None:
        self._memory = memory
        self.num_bytes = memory.rounded(num_bytes)
        self.device = memory.device
        self.descriptor: int | None = None
        # What has to be given back. Each is entered as soon as it is there, and leaves when it is given back.
        self._handles: list[int] = []
        self._mapped: list[Span] = []
        self._address: int | None = memory.reserve(self.num_bytes)
        self._views: weakref.WeakSet[MappedBytes] = weakref.WeakSet()

    def view(self) -> MappedBytes:
        """All bytes, which have to be mapped."""
        # torch asks the driver on which device the first address lies, and the driver says so of mapped ones alone.
        assert self._mapped
        assert self._mapped[0].start == 0
        view = MappedBytes(self._base, self.num_bytes)
        self._views.add(view)
        return view

    def tensor(self) -> Tensor:
        """See `TensorMemory.tensor`."""
        return self._memory.tensor(self.view())

    def collapse(self, start: int, num_bytes: int) -> bool:
        """See `TensorMemory.collapse`: a GPU's memory comes in large pages, so there is nothing to ask for."""
        return True

    def map_scratch(self, spans: Sequence[Span]) -> None:
        """See `PoolMemory.map_scratch`. It takes as much memory as the longest part, and the first addresses get some.

        Raises:
            CudaError: a call failed.
        """
        parts = granules([Span(0, 1), *spans], self._memory.granularity)
        assert parts[-1].start + parts[-1].num_bytes <= self.num_bytes
        with self._handle(lambda: self._memory.allocate(max(part.num_bytes for part in parts))) as handle:
            self._replace(handle, parts)
        self.close_descriptor()

    def clear(self) -> None:
        """See `PoolMemory.clear`.

        Raises:
            CudaError: a call failed.
        """
        self.close_descriptor()
        self._take_away()

    def create(self) -> None:
        """See `PoolMemory.create`.

        Raises:
            CudaError: a call failed.
        """
        self.clear()  # before: the GPU may have no room for both
        with self._handle(lambda: self._memory.allocate(self.num_bytes)) as handle:
            self.descriptor = self._memory.export(handle)
            self._replace(handle, [Span(0, self.num_bytes)])
            # Nothing reads what was not written. But CUDA does not say that new memory is empty, and what another
            # process has left there has no business in memory that is handed on.
            self._memory.clear(self._base, self.num_bytes)

    def map(self, fd: int) -> None:
        """See `PoolMemory.map`.

        Raises:
            CudaError: a call failed.
        """
        self._import(fd)

    def map_read_only(self, fd: int) -> None:
        """The same for reading: a kernel of this process that writes there is an illegal access.

        Raises:
            CudaError: a call failed.
        """
        self._import(fd, read_only=True)

    def _import(self, fd: int, *, read_only: bool = False) -> None:
        # Imported before anything is taken away: most of what can be wrong with a descriptor shows here.
        with self._handle(lambda: self._memory.import_(fd)) as handle:
            kept = os.dup(fd)
            self.close_descriptor()
            self.descriptor = kept
            self._replace(handle, [Span(0, self.num_bytes)], read_only=read_only)

    def protect(self) -> None:
        """Let kernels of this process write no more, as with `map_read_only`.

        Raises:
            CudaError: a call failed.
        """
        self._memory.synchronize()
        for part in self._mapped:
            self._memory.allow_access(self._base + part.start, part.num_bytes, read_only=True)

    def close_descriptor(self) -> None:
        """Close the descriptor: who was given one of the memory keeps it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def close(self) -> None:
        """See `PoolMemory.close`."""
        if views := list(self._views):  # not the set: one that is being finalized still counts there
            raise BatonError(f"{len(views)} tensors over memory are left when it is given back")
        self.close_descriptor()
        errors: list[BatonError] = []
        for give_back in (self._unmap, self._release, self._free):
            try:
                give_back()
            except BatonError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    @property
    def _base(self) -> int:
        assert self._address is not None, "the addresses were given back"
        return self._address

    @contextlib.contextmanager
    def _handle(self, take: Callable[[], int]) -> Iterator[int]:
        """A handle for as long as it is mapped with: the mapping keeps the memory."""
        self._handles.append(take())
        try:
            yield self._handles[-1]
        finally:
            self._release()

    def _replace(self, handle: int, parts: Sequence[Span], *, read_only: bool = False) -> None:
        self._take_away()
        for part in parts:
            address = self._base + part.start
            self._memory.map(address, part.num_bytes, handle)
            self._mapped.append(part)
            self._memory.allow_access(address, part.num_bytes, read_only=read_only)

    def _take_away(self) -> None:
        if self._mapped:
            self._memory.synchronize()
            self._unmap()

    def _unmap(self) -> None:
        while self._mapped:
            part = self._mapped[-1]
            self._memory.unmap(self._base + part.start, part.num_bytes)
            self._mapped.pop()

    def _release(self) -> None:
        while self._handles:
            self._memory.release(self._handles[-1])
            self._handles.pop()

    def _free(self) -> None:
        if self._address is not None and not self._mapped:
            self._memory.free(self._address, self.num_bytes)
            self._address = None


def granules(spans: Sequence[Span], granularity: int) -> list[Span]:
    """The parts that can be mapped and hold all spans, in order; neighbours are one part."""
    numbers = sorted(
        {
            number
            for span in spans
            for number in range(span.start // granularity, -(-(span.start + span.num_bytes) // granularity))
        }
    )
    parts: list[Span] = []
    for number in numbers:
        if parts and parts[-1].start + parts[-1].num_bytes == number * granularity:
            parts[-1] = Span(parts[-1].start, parts[-1].num_bytes + granularity)
        else:
            parts.append(Span(number * granularity, granularity))
    return parts
