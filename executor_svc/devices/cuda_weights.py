"""Memory for weights on a GPU: see `WeightMemories`. **It has not run on a GPU.**

CUDA's memory has no seals. In place of them every process, also the one that has written the weights, maps them for
reading alone: a stray kernel ends its own process and harms no other one. (Dynamo's GPU memory service does the same.)
A process of the same user that maps them otherwise can write them; no executor does.
"""

import contextlib
import weakref
from collections.abc import Callable

from torch import Tensor

from common.errors import BatonError
from common.logging import get_logger
from executor_svc.devices.cuda_mapping import CudaMapping
from executor_svc.devices.cuda_memory import CudaError, CudaMemory
from executor_svc.model.weight_memory import NoRoom

log = get_logger("executor")


class NewCudaMemory:
    """See `NewMemory`.

    Args:
        memory: the GPU's.
        mapping: of new memory.
    """

    def __init__(self, memory: CudaMemory, mapping: CudaMapping) -> None:
        assert mapping.descriptor is not None
        self.num_bytes = mapping.num_bytes
        self.descriptor = mapping.descriptor
        self._mapping = mapping
        self._tensor = _tensor(memory, mapping)

    def tensor(self) -> Tensor:
        """See `NewMemory.tensor`."""
        return self._tensor

    def seal(self) -> None:
        """See `NewMemory.seal`.

        Raises:
            CudaError: a call failed.
        """
        self._mapping.protect()

    def close(self) -> None:
        """See `NewMemory.close`."""
        self._mapping.close_descriptor()


class CudaWeights:
    """See `WeightMemories`.

    Args:
        memory: the GPU's.
    """

    def __init__(self, memory: CudaMemory) -> None:
        self.device = memory.device
        self._memory = memory
        self._mapped: weakref.WeakSet[CudaMapping] = weakref.WeakSet()

    @property
    def num_bytes(self) -> int:
        """Of all weights that this process has mapped. torch does not know of them."""
        return sum(mapping.num_bytes for mapping in self._mapped)

    def create(self, num_bytes: int) -> NewCudaMemory:
        """See `WeightMemories.create`.

        Raises:
            NoRoom: the GPU has too little memory left.
            CudaError: a call failed.
        """
        try:
            mapping = self._mapping(num_bytes, CudaMapping.create)
        except CudaError as error:
            if error.result == "CUDA_ERROR_OUT_OF_MEMORY":
                raise NoRoom(str(error)) from error
            raise
        return NewCudaMemory(self._memory, mapping)

    def map(self, fd: int, num_bytes: int) -> Tensor:
        """See `WeightMemories.map`. Memory that is longer is not noticed.

        Raises:
            CudaError: a call failed: it is no memory of this GPU, or is shorter.
        """
        mapping = self._mapping(num_bytes, lambda mapping: mapping.map_read_only(fd))
        mapping.close_descriptor()
        return _tensor(self._memory, mapping)

    def _mapping(self, num_bytes: int, fill: Callable[[CudaMapping], None]) -> CudaMapping:
        """Addresses, with what `fill` puts behind them."""
        mapping = CudaMapping(self._memory, num_bytes)
        try:
            fill(mapping)
        except BatonError:
            _close(mapping)
            raise
        self._mapped.add(mapping)
        return mapping


def _tensor(memory: CudaMemory, mapping: CudaMapping) -> Tensor:
    """A mapping's bytes; it lasts as long as they or a view of them."""
    view = mapping.view()
    weakref.finalize(view, _give_back, memory, mapping).atexit = False
    return memory.tensor(view)


def _give_back(memory: CudaMemory, mapping: CudaMapping) -> None:
    with contextlib.suppress(BatonError):
        memory.synchronize()  # what runs on the GPU may still read them
    _close(mapping)


def _close(mapping: CudaMapping) -> None:
    try:
        mapping.close()
    except BatonError as error:
        log.warning("weights not given back", reason=str(error))
