"""Weights in a GPU's memory, with a driver that keeps books and whose memory is the host's."""

import inspect
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from executor_svc.devices.cuda_memory import CudaMemory
from executor_svc.devices.cuda_weights import CudaWeights, NewCudaMemory
from executor_svc.devices.memfd_weights import MemfdWeights, NewMemfd
from executor_svc.model.weight_memory import NewMemory, WeightMemories
from tests.executor_svc.fake_keeper import FakeKeeper
from tests.executor_svc.obtaining import assert_equal, file_of, obtain
from tests.support.fake_cuda import READ, CUresult, FakeCuda, bytes_of_all_processes
from tests.support.logged import Log

GRANULE = 2**16
_numbers = itertools.count()


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda(granularity=GRANULE, name=f"cuda_weights_{os.getpid()}_{next(_numbers)}")


def weights_of(cuda: FakeCuda) -> CudaWeights:
    return CudaWeights(CudaMemory(0, cuda, cuda.as_tensor))


def test_a_gpu_has_one_copy_which_no_executor_can_write(folder: Path, cuda: FakeCuda) -> None:
    keeper, executors = FakeKeeper(), [weights_of(cuda) for _ in range(3)]
    loaded = [obtain(folder, keeper, memories=memories) for memories in executors]
    assert [each.kept for each in loaded] == [False, True, True]
    (kept,) = keeper.weights
    assert kept.kind.device == executors[0].device == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert bytes_of_all_processes(cuda.name) == kept.num_bytes
    assert [each.num_bytes for each in executors] == [kept.num_bytes] * 3
    assert list(cuda.mapped.values()) == [(kept.num_bytes, READ)] * 3
    assert not cuda.handles, "mappings keep the memory"
    for each in loaded:
        assert_equal(each, obtain(folder, None))


WRITE = """
import os, sys, pathlib
from executor_svc.devices.cuda_memory import CudaMemory
from executor_svc.devices.cuda_weights import CudaWeights
from tests.executor_svc.fake_keeper import FakeKeeper
from tests.executor_svc.obtaining import obtain
from tests.support.fake_cuda import FakeCuda
cuda = FakeCuda(granularity=2**16)
keeper, memories = FakeKeeper(), CudaWeights(CudaMemory(0, cuda, cuda.as_tensor))
loaded = [obtain(pathlib.Path(sys.argv[1]), keeper, memories=memories) for _ in range(2)]
for each in loaded:
    if (pid := os.fork()) == 0:
        each.weights.tensors["embedding"].zero_()
        print("survived", flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def test_a_stray_write_ends_its_own_process(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITE, str(folder)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"-11\n-11\n"), done.stderr


def test_memory_is_given_back_with_its_last_tensor(folder: Path, cuda: FakeCuda) -> None:
    keeper, memories = FakeKeeper(), weights_of(cuda)
    first, second = obtain(folder, keeper, memories=memories), obtain(folder, keeper, memories=memories)
    norm = second.weights.tensors["layers.0.q_norm"]
    value = norm.clone()
    keeper.close()
    del first, second
    assert cuda.books == {"context": 1, "reservation": 1, "mapping": 1}
    assert torch.equal(norm, value)
    assert memories.num_bytes > 0
    del norm
    assert cuda.books == {"context": 1}
    assert memories.num_bytes == bytes_of_all_processes(cuda.name) == 0


def test_weights_that_turn_out_to_be_kept_are_not_there_twice(folder: Path, cuda: FakeCuda) -> None:
    keeper = FakeKeeper()
    first = obtain(folder, keeper, memories=weights_of(cuda))
    second = obtain(folder, keeper, memories=weights_of(cuda), verify=True)
    assert file_of(first) == file_of(second)
    assert len(cuda.mapped) == 2
    assert bytes_of_all_processes(cuda.name) == keeper.weights[0].num_bytes


CALLS = [
    "cuMemAddressReserve:1", "cuMemCreate:1", "cuMemExportToShareableHandle:1", "cuMemMap:1", "cuMemSetAccess:1",
    "cuMemsetD8:1", "cuCtxSynchronize:1", "cuMemRelease:1", "cuCtxSynchronize:2", "cuMemSetAccess:2",
    "cuMemAddressReserve:2", "cuMemImportFromShareableHandle:1", "cuMemMap:2", "cuMemSetAccess:3", "cuMemRelease:2",
]  # fmt: skip


def test_calls_in_their_order(folder: Path, cuda: FakeCuda) -> None:
    keeper, memories = FakeKeeper(), weights_of(cuda)
    cuda.calls.clear()
    found = [obtain(folder, keeper, memories=memories) for _ in range(2)]
    seen = [f"{name}:{cuda.calls[: at + 1].count(name)}" for at, name in enumerate(cuda.calls)]
    assert seen == CALLS
    del found


@pytest.mark.parametrize("place", CALLS)
def test_each_call_fails_once_and_the_weights_are_there_in_spite_of_it(
    folder: Path, cuda: FakeCuda, log: Log, place: str
) -> None:
    keeper, memories = FakeKeeper(), weights_of(cuda)
    cuda.calls.clear()
    cuda.fail = place
    alone = obtain(folder, None)
    loaded = [obtain(folder, keeper, memories=memories) for _ in range(2)]
    for each in loaded:
        assert_equal(each, alone)
    del loaded, each
    assert cuda.fail == ""
    name = place.split(":", maxsplit=1)[0]
    ((event, fields),) = log.lines
    assert event in ("weights cannot be shared", "weights not deposited", "kept weights not used")
    assert fields == {"reason": f"{name} failed: CUDA_ERROR_UNKNOWN"}
    keeper.close()
    assert set(cuda.books) == {"context"}, "nothing is left"
    assert bytes_of_all_processes(cuda.name) == 0


@pytest.mark.parametrize("num_full", [0, 1, 2, 3])
def test_weights_that_no_executor_uses_make_room_and_pools_if_that_is_not_enough(
    folder: Path, cuda: FakeCuda, log: Log, monkeypatch: pytest.MonkeyPatch, num_full: int
) -> None:
    keeper, memories, create = FakeKeeper(), weights_of(cuda), FakeCuda.cuMemCreate

    def is_full(*arguments: object) -> object:
        if cuda.calls.count("cuMemCreate") < num_full:
            cuda.calls.append("cuMemCreate")
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
        return create(*arguments)

    monkeypatch.setattr(FakeCuda, "cuMemCreate", is_full)
    loaded = obtain(folder, keeper, memories=memories)
    assert_equal(loaded, obtain(folder, None))
    room = [f"drop {what} on {memories.device}" for what in ("weights", "pools")][:num_full]
    if num_full < 3:
        assert keeper.calls == ["find source", *room, "find fingerprint", "deposit"]
        assert log.lines == []
    else:
        assert keeper.calls == ["find source", *room, "reads for itself"]
        reason = "cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY"
        assert log.lines == [("weights cannot be shared", {"reason": reason})]


@pytest.mark.parametrize("what", ["a file", "less"])
def test_a_descriptor_of_something_else(folder: Path, cuda: FakeCuda, log: Log, what: str) -> None:
    keeper, memories = FakeKeeper(), weights_of(cuda)
    good = obtain(folder, keeper, memories=memories)
    (kept,) = keeper.weights
    less = memories.create(GRANULE)
    kept.memory = os.memfd_create("file") if what == "a file" else os.dup(less.descriptor)
    again = obtain(folder, keeper, memories=memories)
    assert_equal(good, again)
    call = "cuMemImportFromShareableHandle" if what == "a file" else "cuMemMap"
    assert log.lines == [("kept weights not used", {"reason": f"{call} failed: CUDA_ERROR_INVALID_VALUE"})] * 2


def test_memory_that_cannot_be_given_back_is_said(cuda: FakeCuda, log: Log) -> None:
    new = weights_of(cuda).create(1)
    new.close()
    cuda.fail = "cuMemUnmap"
    del new
    assert log.lines == [("weights not given back", {"reason": "cuMemUnmap failed: CUDA_ERROR_UNKNOWN"})]


@pytest.mark.parametrize(
    ("interface", "kinds"), [(WeightMemories, (CudaWeights, MemfdWeights)), (NewMemory, (NewCudaMemory, NewMemfd))]
)
def test_both_devices_have_the_interface(interface: type, kinds: tuple[type, ...]) -> None:
    def takes(memories: WeightMemories) -> NewMemory:
        return memories.create(1)

    assert takes(MemfdWeights()).num_bytes == 4096
    members = [(name, member) for name, member in vars(interface).items() if inspect.isfunction(member)]
    for name, member in members:
        for kind in kinds if name[0] != "_" else ():
            given = inspect.signature(getattr(kind, name))
            assert list(given.parameters) == list(inspect.signature(member).parameters)
