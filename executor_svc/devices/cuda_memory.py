"""GPU memory that can be handed to another process: CUDA's virtual memory calls, each of them checked.

Memory (an allocation, by its handle) and addresses (a reservation) are made apart from each other and joined by a
mapping. An allocation lives while a handle, a mapping or a file descriptor of it is left, in whatever process: that is
what CUDA documents of cuMemRelease and cuMemExportToShareableHandle, and what `tools/gpu_keeper_proof.py` has yet to
prove for a descriptor in a process without CUDA. **None of this has run on a GPU.**
"""

import importlib
import os
import uuid
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from common.errors import BatonError
from common.installation import install_command


class CudaError(BatonError):
    """A call of CUDA's driver failed.

    Args:
        call: its name.
        result: the name of its result, or why it could not be called.
    """

    def __init__(self, call: str, result: str) -> None:
        super().__init__(f"{call} failed: {result}")
        self.call = call
        self.result = result


def load_driver() -> Any:
    """NVIDIA's bindings of the driver, which come with torch's CUDA builds.

    Raises:
        BatonError: they are not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise BatonError(
            "GPU memory that outlives its process needs NVIDIA's package cuda-bindings "
            f"({install_command('gpu')}), or --no-keep: {error}"
        ) from error


class CudaMemory:
    """The virtual memory calls for one GPU, in the context that torch uses, too.

    Args:
        index: of the GPU among those that this process sees, as torch counts.
        driver: the bindings; by default NVIDIA's.
        as_tensor: makes a tensor of what has a CUDA array interface; by default torch does.

    Raises:
        CudaError: there is no such GPU, or no driver.
        BatonError: the GPU's memory cannot be handed on, or the bindings are missing.
    """

    granularity: int
    """Sizes and addresses are multiples of this many bytes."""
    device: str
    """The GPU's unique id, the same in every process; of a MIG instance, that of the instance."""

    def __init__(self, index: int, driver: Any = None, as_tensor: Callable[..., Tensor] = torch.as_tensor) -> None:
        self._driver = driver or load_driver()
        self._as_tensor = as_tensor
        self.index = index
        self.call("cuInit", 0)
        self._ordinal = self.call("cuDeviceGet", index)
        attributes = self._driver.CUdevice_attribute
        for attribute in (
            attributes.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            attributes.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        ):
            if not self.call("cuDeviceGetAttribute", attribute, self._ordinal):
                raise BatonError(f"GPU {index} cannot hand memory to other processes: {attribute.name} is 0")
        # Before CUDA 13 the call without a version gives the instances of a GPU (MIG) one id.
        get_uuid = "cuDeviceGetUuid_v2" if hasattr(self._driver, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        self.device = f"GPU-{uuid.UUID(bytes=bytes(self.call(get_uuid, self._ordinal).bytes))}"
        recommended = self._driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        self.granularity = int(self.call("cuMemGetAllocationGranularity", self._properties(), recommended))
        context = self.call("cuDevicePrimaryCtxRetain", self._ordinal)
        try:
            self.call("cuCtxSetCurrent", context)
        except CudaError:
            self.close()
            raise

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver. Returns what it gives besides the result.

        Raises:
            CudaError: the result is not success.
        """
        try:
            result, *values = getattr(self._driver, name)(*arguments)
        except RuntimeError as error:  # the bindings do not find the driver, or the driver is older than the function
            raise CudaError(name, str(error)) from error
        if result != self._driver.CUresult.CUDA_SUCCESS:
            raise CudaError(name, str(getattr(result, "name", result)))
        return values[0] if len(values) == 1 else tuple(values)

    def rounded(self, num_bytes: int) -> int:
        """The next size that can be allocated and mapped."""
        return -(-num_bytes // self.granularity) * self.granularity

    # --- memory ---

    def allocate(self, num_bytes: int) -> int:
        """New memory that can be exported. Returns its handle. Its content is undefined."""
        return int(self.call("cuMemCreate", num_bytes, self._properties(), 0))

    def export(self, handle: int) -> int:
        """A new file descriptor of the memory, which belongs to the caller."""
        fd = int(self.call("cuMemExportToShareableHandle", handle, self._fd_type, 0))
        os.set_inheritable(fd, False)  # in a child of this process it would keep the memory
        return fd

    def import_(self, fd: int) -> int:
        """A handle of the memory that a descriptor stands for. The descriptor stays the caller's, and may be closed."""
        return int(self.call("cuMemImportFromShareableHandle", fd, self._fd_type))

    def release(self, handle: int) -> None:
        """Give a handle back. Mappings and descriptors of the memory keep it."""
        self.call("cuMemRelease", handle)

    def tensor(self, view: object) -> Tensor:
        """The bytes of what has a CUDA array interface. It keeps that object as long as it or a view of it lives."""
        return self._as_tensor(view, device=torch.device("cuda", self.index))

    # --- addresses ---

    def reserve(self, num_bytes: int) -> int:
        """Take addresses without memory. Returns the first one."""
        return int(self.call("cuMemAddressReserve", num_bytes, self.granularity, 0, 0))

    def free(self, address: int, num_bytes: int) -> None:
        """Give addresses of `reserve` back. No memory may be behind them."""
        self.call("cuMemAddressFree", address, num_bytes)

    def map(self, address: int, num_bytes: int, handle: int) -> None:
        """Put an allocation's first bytes behind addresses that have no memory. Next comes `allow_access`."""
        self.call("cuMemMap", address, num_bytes, 0, handle, 0)

    def allow_access(self, address: int, num_bytes: int, *, read_only: bool = False) -> None:
        """Let this GPU read what was mapped, and write it unless it is `read_only`. It may be called again."""
        access = self._driver.CUmemAccessDesc()
        access.location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self.index
        flags = self._driver.CUmemAccess_flags
        access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READ if read_only else flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self.call("cuMemSetAccess", address, num_bytes, [access], 1)

    def unmap(self, address: int, num_bytes: int) -> None:
        """Undo one `map`, as a whole. The addresses stay reserved; what runs on the GPU must not touch them."""
        self.call("cuMemUnmap", address, num_bytes)

    def clear(self, address: int, num_bytes: int) -> None:
        """Fill memory with zeros, before anything else uses it."""
        self.call("cuMemsetD8", address, 0, num_bytes)
        self.synchronize()  # streams of torch's do not wait for the one that fills

    def synchronize(self) -> None:
        """Wait until the GPU has done all that this process has asked for."""
        self.call("cuCtxSynchronize")

    def close(self) -> None:
        """Give the context back; torch keeps it for itself."""
        self.call("cuDevicePrimaryCtxRelease", self._ordinal)

    @property
    def _fd_type(self) -> Any:
        return self._driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def _properties(self) -> Any:
        """Of memory on this GPU that can be exported as a file descriptor."""
        properties = self._driver.CUmemAllocationProp()
        properties.type = self._driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self.index
        properties.requestedHandleTypes = self._fd_type
        return properties
