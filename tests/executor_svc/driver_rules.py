"""What CUDA's driver refuses of virtual memory calls: rules that both stand-ins for it keep, and that a GPU is to keep.

`devices/test_cuda_memory.py` asks them of `tests/support/fake_cuda.py`, `tests/rig/test_virtual_memory.py` of the
pretended GPU, which NVIDIA's bindings call.
"""

import os
from collections.abc import Callable, Sequence

import pytest

from executor_svc.devices.cuda_mapping import CudaMapping
from executor_svc.devices.cuda_memory import CudaError, CudaMemory


def assert_refused(calls: Sequence[tuple[str, Callable[[], object]]]) -> None:
    for name, call in calls:
        with pytest.raises(CudaError, match=f"{name} failed: CUDA_ERROR_INVALID_VALUE"):
            call()


def check_what_is_refused(memory: CudaMemory) -> None:
    """Sizes, addresses and handles that do not fit, and memory without the access that a copy needs."""
    granule = memory.granularity
    handle, address = memory.allocate(2 * granule), memory.reserve(4 * granule)

    def copy() -> None:
        memory.call("cuMemcpyHtoD", address, b"bytes", 5)

    assert_refused(
        [
            ("cuMemCreate", lambda: memory.allocate(granule // 2)),
            ("cuMemMap", lambda: memory.map(address, 4 * granule, handle)),  # more than there is
            ("cuMemMap", lambda: memory.map(address + granule // 2, granule, handle)),
            ("cuMemMap", lambda: memory.map(address + 3 * granule, 2 * granule, handle)),  # beyond what is reserved
            ("cuMemMap", lambda: memory.map(address, 2 * granule, handle + 1)),
            ("cuMemAddressFree", lambda: memory.free(address, 2 * granule)),
            ("cuMemcpyHtoD", copy),  # nothing is there
        ]
    )
    memory.map(address, 2 * granule, handle)
    assert_refused(
        [
            ("cuMemMap", lambda: memory.map(address + granule, 2 * granule, handle)),  # something is mapped there
            ("cuMemUnmap", lambda: memory.unmap(address, granule)),  # a part
            ("cuMemAddressFree", lambda: memory.free(address, 4 * granule)),
            ("cuMemcpyHtoD", copy),  # no access is allowed yet
        ]
    )
    memory.allow_access(address, 2 * granule, read_only=True)
    assert_refused([("cuMemcpyHtoD", copy)])
    memory.release(handle)
    assert_refused([("cuMemRelease", lambda: memory.release(handle))])
    with open(os.devnull) as other, pytest.raises(CudaError, match="cuMemImportFromShareableHandle failed"):
        memory.import_(other.fileno())
    memory.unmap(address, 2 * granule)
    memory.free(address, 4 * granule)


def check_memory_counts_once(memory: CudaMemory) -> None:
    """While a descriptor or a mapping of it is left."""
    num_bytes = 4 * memory.granularity

    def free() -> int:
        return int(memory.call("cuMemGetInfo")[0])

    before = free()
    pool, heir = CudaMapping(memory, num_bytes), CudaMapping(memory, num_bytes)
    pool.create()
    assert pool.descriptor is not None
    kept = os.dup(pool.descriptor)
    heir.map(kept)
    assert before - free() == num_bytes
    pool.close()
    heir.close()
    assert before - free() == num_bytes, "a descriptor keeps the memory"
    os.close(kept)
    assert free() == before
