"""A pool over the memory of a CPU, and over that of a GPU whose driver keeps books (`tests/support/fake_cuda.py`)."""

import itertools
import os
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import torch

from common.errors import BatonError, TryAgainError
from executor_svc.devices.cpu import CpuPlatform
from executor_svc.devices.cuda_mapping import CudaMapping
from executor_svc.devices.cuda_memory import CudaMemory
from executor_svc.devices.kept_cache import KeptCache
from executor_svc.devices.memfd_pool import MemfdPool
from executor_svc.devices.tensor_memory import TensorMemory
from executor_svc.keeper.held import HeldPool
from executor_svc.keeper.kept_pool import KeptPool
from executor_svc.keeper.memory import create_memory
from executor_svc.keeper.pool_memory import Span
from executor_svc.model.rank_group import SINGLE_RANK
from executor_svc.options import ExecutorOptions
from executor_svc.service.step_loop import QueuedPlan, StepLoop
from executor_svc.startup import start_executor
from tests.executor_svc.fake_keeper import FakeKeeper, FakeLink
from tests.executor_svc.pools import GEOMETRY, KIND, NUM_BLOCKS
from tests.support.fake_cuda import FakeCuda, bytes_of_all_processes
from tests.support.logged import Log

GRANULE = 2**16
NUM_BYTES = 3 * GRANULE
_numbers = itertools.count()


@dataclass
class Device:
    """Makes memory of one kind. Each process has a driver of its own."""

    name: str
    cudas: list[FakeCuda] = field(default_factory=list)
    number: int = field(default_factory=lambda: next(_numbers))  # not `id`: another test's device may have had the same

    def memory(self, num_bytes: int = NUM_BYTES) -> TensorMemory:
        if self.name == "cpu":
            return MemfdPool(num_bytes)
        self.cudas.append(FakeCuda(granularity=GRANULE, name=f"fake_cuda_pool_{os.getpid()}_{self.number}"))
        return CudaMapping(CudaMemory(0, self.cudas[-1]), num_bytes)

    def address(self, memory: Any) -> int:
        if self.name == "cpu":
            return int(memory.mapping.address)
        return int(memory.view().__cuda_array_interface__["data"][0])

    def bytes_at(self, memory: Any) -> Any:
        if self.name == "cpu":
            return memory.mapping.buffer()
        address = self.address(memory)
        return next(cuda for cuda in self.cudas if address in cuda.mapped).bytes_at(address, memory.num_bytes)

    def pool(self, keeper: FakeKeeper, memory: TensorMemory) -> KeptPool:
        kind = msgspec.structs.replace(KIND, device=memory.device)
        return KeptPool(FakeLink(keeper), kind, NUM_BLOCKS, memory, SINGLE_RANK)  # type: ignore[arg-type]


@pytest.fixture(params=["cpu", "gpu"])
def device(request: pytest.FixtureRequest) -> Device:
    return Device(request.param)


def left_pool(device: Device, keeper: FakeKeeper) -> None:
    """An executor has written a pool under epoch 7, and is gone."""
    memory = device.memory()
    pool = device.pool(keeper, memory)
    assert pool.take()
    assert pool.is_new
    assert pool.tag is not None
    assert not any(device.bytes_at(memory)), "new memory is empty"
    pool.tag.epoch = 7
    device.bytes_at(memory)[NUM_BYTES - 1] = 9
    memory.close()


def test_the_next_executor_goes_on_with_what_the_last_one_wrote(device: Device) -> None:
    left_pool(device, keeper := FakeKeeper())
    memory = device.memory()
    pool = device.pool(keeper, memory)
    assert pool.take()
    assert not pool.is_new
    assert device.bytes_at(memory)[NUM_BYTES - 1] == 9
    assert (pool.named.pool, pool.named.lease, pool.named.epoch) == (keeper.pools[0].pool, 2, 7)


def test_a_standby_has_the_pool_at_the_addresses_of_its_scratch_memory(device: Device, never: int) -> None:
    left_pool(device, keeper := FakeKeeper())
    memory = device.memory()
    pool = device.pool(keeper, memory)
    memory.map_scratch([Span(2 * GRANULE, 16)])
    address = device.address(memory)
    assert pool.tag is None
    assert pool.wait(never)
    assert device.address(memory) == address
    assert device.bytes_at(memory)[NUM_BYTES - 1] == 9


KEEPERS_OWN = [(0, 1), (0, 1)]  # descriptors of the pool and of its tag page


def test_a_lease_is_released_when_this_process_can_reach_nothing_of_the_pool(device: Device, log: Log) -> None:
    left_pool(device, keeper := FakeKeeper())
    memory = device.memory()
    pool = device.pool(keeper, memory)
    assert pool.take()
    over = memory.view() if isinstance(memory, CudaMapping) else memory.tensor()  # as CUDA graphs are: never used again
    tag = pool.tag  # likewise
    device.bytes_at(memory)[NUM_BYTES - 2] = 8
    pool.release()
    assert keeper.released == [KEEPERS_OWN]
    assert pool.tag is None
    pool.distrust()  # of a failed step, which would be too late
    if device.name == "gpu":
        assert device.cudas[-1].calls[-2:] == ["cuCtxSynchronize", "cuMemUnmap"]
    next_memory = device.memory()
    next_one = device.pool(keeper, next_memory)
    assert next_one.take()
    assert next_one.named.epoch == 7
    assert list(device.bytes_at(next_memory)[NUM_BYTES - 2 :]) == [8, 9]
    del over, tag
    assert log.events == ["holds a pool", "holds a pool", "lease released", "holds a pool"]


@pytest.mark.parametrize("fail", ["cuCtxSynchronize", "cuMemUnmap"])
def test_a_lease_that_cannot_be_released_ends_with_the_process(fail: str, log: Log) -> None:
    device = Device("gpu")
    pool = device.pool(keeper := FakeKeeper(), device.memory())
    assert pool.take()
    device.cudas[-1].calls.clear()
    device.cudas[-1].fail = fail
    pool.release()
    assert keeper.released == []
    assert log.lines[-1] == ("the lease ends with the process", {"reason": f"{fail} failed: CUDA_ERROR_UNKNOWN"})


def other_file(held: HeldPool) -> dict[str, Any]:
    return {"memory_fd": os.memfd_create("no_pool")}


def other_size(held: HeldPool) -> dict[str, Any]:
    return {"num_bytes": held.num_bytes + GRANULE}


def other_tag(held: HeldPool) -> dict[str, Any]:
    return {"tag_fd": create_memory("no_tag", 4096)}


@pytest.mark.parametrize("fault", [other_file, other_size, other_tag])
@pytest.mark.parametrize("is_standby", [False, True])
def test_a_pool_that_cannot_be_used_is_replaced(
    device: Device, fault: Callable[[HeldPool], dict[str, Any]], is_standby: bool, log: Log, never: int
) -> None:
    left_pool(device, keeper := FakeKeeper())
    left = keeper.pools.pop()
    keeper.pools.append(HeldPool(**{**vars(left), **fault(left)}))
    memory = device.memory()
    pool = device.pool(keeper, memory)
    if is_standby:
        memory.map_scratch([Span(0, 1)])
    assert pool.wait(never) if is_standby else pool.take()
    assert pool.is_new
    (kept,) = keeper.pools
    assert (pool.named.pool, pool.named.epoch) == (kept.pool, 0)
    assert not any(device.bytes_at(memory))
    assert log.events == ["holds a pool", "a kept pool is not used", "holds a pool"]


def test_without_room_at_the_keeper_nothing_is_taken(device: Device, log: Log) -> None:
    memory = device.memory()
    assert not device.pool(FakeKeeper(refuses=True), memory).take()
    ((event, facts),) = log.lines
    assert event == "no pool is kept for this executor"
    assert facts["reason"].endswith("it is full")
    if device.name == "gpu":
        assert set(device.cudas[-1].books) == {"context"}
        assert bytes_of_all_processes(device.cudas[-1].name) == 0


@pytest.mark.parametrize("is_usable", [True, False])
def test_a_pool_is_distrusted_before_a_failed_step_can_end_the_process(
    device: Device, is_usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_pool(device, keeper := FakeKeeper())
    pool = device.pool(keeper, device.memory())
    assert pool.take()
    exits: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "_exit", lambda code: exits.append((code, pool.named.epoch)))
    assert pool.named.epoch == 7

    class Runner:
        def launch(self, columns: object) -> None:
            raise RuntimeError("an illegal memory access was encountered")

        def usable(self) -> bool:
            return is_usable

    steps: queue.SimpleQueue[Any] = queue.SimpleQueue()
    steps.put(QueuedPlan(7, 0, None))  # type: ignore[arg-type]
    steps.put(None)
    StepLoop(Runner(), steps, lambda: 7, lambda _: None, pool).run()  # type: ignore[arg-type]
    assert exits == ([] if is_usable else [(70, 0)])
    assert pool.named.epoch == 0


class Platform(CpuPlatform):
    """A platform whose memory cannot be handed on, or cannot be had."""

    fault = "its GPU shares no memory"

    def kept_device(self) -> str:
        raise BatonError(self.fault)

    def pool_memory(self, num_bytes: int) -> MemfdPool:
        raise BatonError(self.fault)


def cache_on(platform: CpuPlatform, *, is_standby: bool) -> object:
    link: Any = FakeLink(FakeKeeper())
    return KeptCache.on(platform, link, KIND, GEOMETRY, SINGLE_RANK, standby="always" if is_standby else "auto")


def memory_of(platform: CpuPlatform, *, is_standby: bool) -> object:
    link: Any = FakeLink(FakeKeeper())
    return KeptCache(platform, link, KIND, GEOMETRY, SINGLE_RANK, is_standby).memory(4)


@pytest.mark.parametrize("begin", [cache_on, memory_of])
def test_memory_that_cannot_be_kept_is_said_and_no_standby_starts(begin: Callable[..., object], log: Log) -> None:
    assert begin(Platform(1), is_standby=False) is None
    assert log.lines == [("KV memory is not kept", {"reason": Platform.fault})]
    with pytest.raises(BatonError, match=f"a standby needs KV memory that outlives its process: {Platform.fault}"):
        begin(Platform(1), is_standby=True)


@pytest.mark.parametrize(("num_found", "asked_for"), [(0, ["GPU-1"]), (9, [])])
def test_an_executor_that_finds_no_pool_gives_back_what_others_have_left_on_its_gpu(
    num_found: int, asked_for: list[str]
) -> None:
    class OnDevice(CpuPlatform):
        def kept_device(self) -> str:
            return "GPU-1"

    keeper = FakeKeeper(room=2**30)
    link: Any = FakeLink(keeper, found=num_found)
    cache = KeptCache.on(OnDevice(1), link, KIND, GEOMETRY, SINGLE_RANK, standby="never")
    assert cache is not None
    assert cache.find(0) == num_found
    assert keeper.calls == [f"drop pools on {device}" for device in asked_for]


@pytest.mark.parametrize("left", [0, 2**30])
def test_memory_that_runs_out_is_taken_from_what_no_executor_uses(left: int) -> None:
    """The process ends in either case, and its supervisor starts it again."""

    class RunsOut(FakeKeeper):
        def find_weights(self, *_: object, **__: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    keeper: Any = RunsOut(room=left)
    with pytest.raises(TryAgainError, match="memory runs out while the executor starts") as raised:
        start_executor(ExecutorOptions(device="cpu"), keeper, FakeLink(keeper))  # type: ignore[arg-type]
    assert keeper.calls == ["drop pools on cpu"]
    assert ("start again" in str(raised.value)) == bool(left)
