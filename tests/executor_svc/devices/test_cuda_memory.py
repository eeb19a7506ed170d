"""A KV pool's memory on a GPU, with a driver that keeps books (`tests/support/fake_cuda.py`)."""

import enum
import gc
import inspect
import itertools
import os
import sys
from types import SimpleNamespace

import pytest

from common.errors import BatonError
from executor_svc.devices.cuda_mapping import CudaMapping, granules
from executor_svc.devices.cuda_memory import CudaError, CudaMemory, load_driver
from executor_svc.devices.memfd_pool import MemfdPool
from executor_svc.devices.tensor_memory import TensorMemory
from executor_svc.keeper.pool_memory import PoolMemory, Span
from tests.executor_svc.driver_rules import check_memory_counts_once, check_what_is_refused
from tests.support.fake_cuda import FakeCuda, bytes_of_all_processes

GRANULE = 2**16
_numbers = itertools.count()


def driver(**options):
    return FakeCuda(granularity=GRANULE, name=f"fake_cuda_{os.getpid()}_{next(_numbers)}", **options)


def address_of(pool):
    return pool.view().__cuda_array_interface__["data"][0]


def fill(cuda, pool, byte):
    cuda.bytes_at(address_of(pool), pool.num_bytes)[:] = [byte] * pool.num_bytes


def content(cuda, pool):
    return set(cuda.bytes_at(address_of(pool), pool.num_bytes))


def test_what_the_driver_refuses():
    check_what_is_refused(CudaMemory(0, cuda := driver()))
    assert cuda.books == {"context": 1}


def test_memory_counts_once_while_anything_of_it_is_left():
    check_memory_counts_once(CudaMemory(0, driver()))


def test_one_process_makes_memory_and_the_next_one_finds_it():
    first, second = driver(), driver()
    second.name = first.name
    maker = CudaMapping(CudaMemory(0, first), 3 * GRANULE - 100)
    maker.create()
    assert maker.num_bytes == 3 * GRANULE
    fill(first, maker, 7)
    kept = os.dup(maker.descriptor)  # what a keeper has
    maker.close()
    assert +first.books == {"context": 1}  # its `CudaMemory` is still there
    heir = CudaMapping(CudaMemory(0, second), 3 * GRANULE)
    heir.map(kept)
    os.close(kept)
    assert content(second, heir) == {7}
    assert not second.handles  # the mapping keeps the memory
    os.fstat(heir.descriptor)  # a keeper that starts again gets it
    heir.close()
    assert bytes_of_all_processes(first.name) == 0


def test_calls_in_their_order():
    cuda = driver()
    memory = CudaMemory(0, cuda)
    pool = CudaMapping(memory, GRANULE)
    assert cuda.calls == [
        "cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetAttribute", "cuDeviceGetUuid",
        "cuMemGetAllocationGranularity", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAddressReserve",
    ]  # fmt: skip
    cuda.calls.clear()
    pool.map_scratch([])
    assert cuda.calls == ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemRelease"]
    cuda.calls.clear()
    pool.create()
    assert cuda.calls == [
        "cuCtxSynchronize", "cuMemUnmap", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemMap", "cuMemSetAccess",
        "cuMemsetD8", "cuCtxSynchronize", "cuMemRelease",
    ]  # fmt: skip
    cuda.calls.clear()
    pool.map(pool.descriptor)
    assert cuda.calls == [
        "cuMemImportFromShareableHandle", "cuCtxSynchronize", "cuMemUnmap", "cuMemMap", "cuMemSetAccess",
        "cuMemRelease",
    ]  # fmt: skip
    cuda.calls.clear()
    pool.close()
    memory.close()
    assert cuda.calls == ["cuMemUnmap", "cuMemAddressFree", "cuDevicePrimaryCtxRelease"]
    assert not cuda.books
    assert bytes_of_all_processes(cuda.name) == 0


def test_a_standby_takes_little_memory_until_the_pool_comes_to_its_addresses():
    cuda = driver()
    other = CudaMapping(CudaMemory(0, cuda), 40 * GRANULE)
    other.create()
    fill(cuda, other, 5)
    before = bytes_of_all_processes(cuda.name)
    standby = CudaMapping(CudaMemory(0, cuda), 40 * GRANULE)
    padding = [Span(9 * GRANULE + 100, 50), Span(20 * GRANULE - 8, 16), Span(39 * GRANULE, GRANULE)]
    standby.map_scratch(padding)
    address = address_of(standby)
    assert bytes_of_all_processes(cuda.name) - before == 2 * GRANULE  # as the longest of them, on two granules
    for span in padding:
        cuda.bytes_at(address + span.start, span.num_bytes)[:] = [9] * span.num_bytes
    with pytest.raises(AssertionError, match="nothing that may be touched"):
        cuda.bytes_at(address + GRANULE, 1)
    assert standby.descriptor is None
    standby.map(other.descriptor)
    assert address_of(standby) == address
    assert content(cuda, standby) == {5}
    assert bytes_of_all_processes(cuda.name) == before  # the scratch is gone
    fill(cuda, standby, 6)
    assert content(cuda, other) == {6}
    standby.close()
    other.close()
    assert bytes_of_all_processes(cuda.name) == 0


def test_parts_that_are_mapped_are_whole_granules():
    assert granules([Span(0, 1)], 10) == [Span(0, 10)]
    assert granules([Span(35, 1), Span(0, 1), Span(9, 2)], 10) == [Span(0, 20), Span(30, 10)]
    assert granules([Span(5, 30), Span(12, 3)], 10) == [Span(0, 40)]


def life(cuda, fd, made):
    """All that a process may do with a pool, to the end; noted in `made` as it comes."""
    made.append(CudaMemory(0, cuda))
    made.append(pool := CudaMapping(made[0], 4 * GRANULE))
    pool.map_scratch([Span(3 * GRANULE, 8)])
    pool.map(fd)
    pool.create()
    end(made)


def end(made):
    for each in reversed(made):
        each.close()


def number_of_calls():
    cuda = driver()
    keeper = CudaMapping(CudaMemory(0, cuda), 4 * GRANULE)
    keeper.create()
    cuda.calls.clear()
    life(cuda, keeper.descriptor, [])
    seen = [f"{name}:{cuda.calls[: at + 1].count(name)}" for at, name in enumerate(cuda.calls)]
    keeper.close()
    return seen


@pytest.mark.parametrize("place", number_of_calls())
def test_each_call_fails_once_and_nothing_is_left(place):
    name = place.split(":")[0]
    maker, cuda = driver(), driver(fail=place)
    cuda.name = maker.name
    keeper = CudaMapping(CudaMemory(0, maker), 4 * GRANULE)
    keeper.create()
    made = []
    with pytest.raises(CudaError, match=f"{name} failed: CUDA_ERROR_UNKNOWN") as failed:
        life(cuda, keeper.descriptor, made)
    assert (failed.value.call, failed.value.result) == (name, "CUDA_ERROR_UNKNOWN")
    end([each for each in made if isinstance(each, CudaMapping)])  # what could not be given back is, the second time
    if cuda.contexts:
        made[0].close()
    assert not cuda.books
    keeper.close()
    assert bytes_of_all_processes(cuda.name) == 0


@pytest.mark.parametrize(
    ("fd_of", "result"),
    [
        (lambda: os.memfd_create("no_memory_of_a_gpu"), "cuMemImportFromShareableHandle failed: CUDA_ERROR_INVALID"),
        (None, "cuMemMap failed: CUDA_ERROR_INVALID_VALUE"),
    ],
)
def test_a_descriptor_of_something_else_or_of_less_memory(fd_of, result):
    cuda = driver()
    smaller = CudaMapping(CudaMemory(0, cuda), GRANULE)
    smaller.create()
    fd = fd_of() if fd_of else os.dup(smaller.descriptor)
    pool = CudaMapping(CudaMemory(0, cuda), 2 * GRANULE)
    with pytest.raises(CudaError, match=result):
        pool.map(fd)
    os.close(fd)
    pool.close()
    smaller.close()
    assert bytes_of_all_processes(cuda.name) == 0


def test_more_memory_than_there_is():
    cuda = driver()
    pool = CudaMapping(CudaMemory(0, cuda), 2**37)
    with pytest.raises(CudaError, match="cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY"):
        pool.create()
    pool.close()
    assert set(cuda.books) == {"context"}


def test_a_pool_is_not_closed_under_a_tensor():
    cuda = driver()
    pool = CudaMapping(CudaMemory(0, cuda), GRANULE)
    pool.create()
    view = pool.view()
    with pytest.raises(BatonError, match="1 tensors over memory are left"):
        pool.close()
    del view
    gc.collect()
    pool.close()
    assert set(cuda.books) == {"context"}


@pytest.mark.parametrize("call", ["cuMemImportFromShareableHandle", "cuCtxSynchronize", "cuMemUnmap", "cuMemMap"])
def test_after_a_pool_could_not_be_mapped_another_one_can_be_made(call):
    cuda = driver()
    maker, pool = CudaMapping(CudaMemory(0, cuda), 4 * GRANULE), CudaMapping(CudaMemory(0, cuda), 4 * GRANULE)
    maker.create()
    fill(cuda, maker, 3)
    pool.map_scratch([Span(2 * GRANULE, 8)])
    cuda.fail = call
    with pytest.raises(CudaError, match=f"{call} failed: CUDA_ERROR_UNKNOWN"):
        pool.map(maker.descriptor)
    pool.clear()
    assert bytes_of_all_processes(cuda.name) == 4 * GRANULE, "the GPU may have no room for both"
    pool.create()
    assert content(cuda, pool) == {0}
    assert content(cuda, maker) == {3}
    pool.close()
    maker.close()
    assert bytes_of_all_processes(cuda.name) == 0


def test_a_descriptor_is_not_inherited():
    cuda = driver()
    pool = CudaMapping(CudaMemory(0, cuda), GRANULE)
    pool.create()
    assert not os.get_inheritable(pool.descriptor)
    pool.map(pool.descriptor)
    assert not os.get_inheritable(pool.descriptor)
    pool.close()


def test_the_device_is_named_by_its_unique_id():
    memory = CudaMemory(0, driver())
    assert memory.device == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert CudaMapping(memory, 1).device == memory.device


def test_a_gpu_that_cannot_hand_memory_on():
    with pytest.raises(BatonError, match="GPU 0 cannot hand memory to other processes: CU_DEVICE_ATTRIBUTE_VIRTUAL"):
        CudaMemory(0, driver(supported=0))


def test_instances_of_a_gpu_have_ids_of_their_own():
    class Older(FakeCuda):
        """CUDA 12: the call without a version gives the GPU's id."""

        def cuDeviceGetUuid_v2(self, device):
            return (self.CUresult.CUDA_SUCCESS, SimpleNamespace(bytes=b"instance" * 2))

    assert CudaMemory(0, Older()).device == "GPU-696e7374-616e-6365-696e-7374616e6365"


def test_a_gpu_that_is_not_there():
    with pytest.raises(CudaError, match="cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE"):
        CudaMemory(1, driver())


def test_a_machine_without_a_driver():
    class NoDriver(FakeCuda):
        def cuInit(self, flags):
            raise RuntimeError('"cuda" is an NVIDIA driver library')

    with pytest.raises(CudaError, match=r"cuInit failed: .cuda. is an NVIDIA driver library"):
        CudaMemory(0, NoDriver())


def test_bindings_that_are_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(BatonError, match="needs NVIDIA's package cuda-bindings"):
        load_driver()


@pytest.mark.parametrize("kind", [CudaMapping, MemfdPool])
def test_the_pools_have_the_interface(kind):
    def takes(pool: TensorMemory) -> str:
        return pool.device

    pool = CudaMapping(CudaMemory(0, driver()), GRANULE) if kind is CudaMapping else MemfdPool(GRANULE)
    assert takes(pool)
    methods = [
        (name, member)
        for interface in (PoolMemory, TensorMemory)
        for name, member in vars(interface).items()
        if inspect.isfunction(member) and name[0] != "_"
    ]
    assert [name for name, _ in methods] == ["map_scratch", "clear", "create", "map", "close", "tensor", "collapse"]
    for name, member in methods:
        assert inspect.signature(getattr(kind, name)) == inspect.signature(member)


def documented_parameters(function):
    """How many parameters a function of the bindings has, by the first line of its text: Cython keeps no signature."""
    line = function.__doc__.splitlines()[0]
    depth, commas = 0, 0
    for character in line[line.index("(") : line.rindex(")")]:
        depth += {"[": 1, "]": -1}.get(character, 0)
        commas += character == "," and depth == 0
    return commas + 1 if "()" not in line else 0


def test_nvidias_bindings_have_what_is_called():
    real = pytest.importorskip("cuda.bindings.driver", reason="no cuda-bindings: `pip install cuda-bindings` gets them")
    functions = [name for name in vars(FakeCuda) if name.startswith("cu")]
    assert len(functions) > 15
    for name in functions:
        takes = len(inspect.signature(getattr(FakeCuda, name)).parameters) - 1
        assert documented_parameters(getattr(real, name)) == takes, getattr(real, name).__doc__.splitlines()[0]
    kinds = [kind for kind in vars(FakeCuda).values() if isinstance(kind, enum.EnumType)]
    assert len(kinds) == 7
    for kind in kinds:
        for member in kind:
            assert getattr(getattr(real, kind.__name__), member.name) == member.value
    memory = CudaMemory.__new__(CudaMemory)
    memory._driver, memory.index = real, 0
    assert "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR" in str(memory._properties())
    assert hasattr(real.CUmemAccessDesc().location, "id")
