"""The rig's own rules for memory that outlives its process, by NVIDIA's bindings, as a program meets them."""

import concurrent.futures
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from executor_svc.devices.cuda_mapping import CudaMapping
from executor_svc.devices.cuda_memory import CudaError, CudaMemory
from tests.executor_svc.driver_rules import check_memory_counts_once, check_what_is_refused
from tests.rig.stand_in import StandIn

MIB = 2**20


@pytest.fixture
def pool(rig: StandIn) -> Any:
    made = CudaMapping(CudaMemory(0), 4 * MIB)
    made.create()
    yield made
    gc.collect()
    made.close()
    assert not rig.mappings()


def address_of(pool: CudaMapping) -> int:
    return int(pool.view().__cuda_array_interface__["data"][0])


def test_what_is_refused(rig: StandIn) -> None:
    check_what_is_refused(CudaMemory(0))


def test_memory_counts_once_while_anything_of_it_is_left(rig: StandIn) -> None:
    memory = CudaMemory(0)
    check_memory_counts_once(memory)
    assert memory.call("cuMemGetInfo")[0] == torch.cuda.mem_get_info()[0], "torch sees the same"


OTHER = """
import sys, torch
tensor = torch.zeros(64 * 2**20, dtype=torch.uint8, device="cuda")
print(torch.cuda.mem_get_info()[0], flush=True)
sys.stdin.read()
"""


def test_other_processes_take_of_the_same_gpu(rig: StandIn) -> None:
    before = torch.cuda.mem_get_info()[0]
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        seen = int(other.stdout.readline())
        assert torch.cuda.mem_get_info()[0] == seen == before - 664 * MIB, "its tensor and its context"
        other.kill()
    assert torch.cuda.mem_get_info()[0] == before


@pytest.mark.parametrize("give_back", [CudaMapping._take_away, CudaMapping.protect])
def test_memory_that_is_in_use_is_not_taken_away(rig: StandIn, pool: CudaMapping, give_back: Any) -> None:
    tensor, other = pool.tensor(), torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
    tensor.copy_(other)
    give_back(pool)
    assert not rig.hazards, "it has waited for the GPU"
    pool.create()
    with rig.schedule("lazy"):
        tensor.copy_(other)
        pool._memory.synchronize = lambda: None  # type: ignore[method-assign]
        give_back(pool)
    assert any("takes memory away that a copy on the device in stream 0" in each for each in rig.take_hazards())
    torch.cuda.synchronize()
    del tensor


def test_races_for_mapped_memory_are_found(rig: StandIn, pool: CudaMapping) -> None:
    tensor, other, second = pool.tensor(), torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    tensor.copy_(other)
    with torch.cuda.stream(second):
        tensor.copy_(other)
    assert any(each.startswith("race: ") for each in rig.take_hazards())
    torch.cuda.synchronize()
    del tensor


def test_a_graph_in_flight_uses_its_memory(rig: StandIn, pool: CudaMapping) -> None:
    tensor, other, graph = pool.tensor(), torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.copy_(other)
    graph.replay()
    pool._memory.unmap(address_of(pool), 4 * MIB)
    assert any("takes memory away that a graph" in each for each in rig.take_hazards())
    graph.replay()
    assert any("reads or writes memory that was given back" in each for each in rig.take_hazards())
    pool._mapped.clear()
    pool.create()
    torch.cuda.synchronize()
    del tensor, graph


def test_a_thread_has_a_context_of_its_own(rig: StandIn, pool: CudaMapping) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        with pytest.raises(CudaError, match="cuCtxSynchronize failed: CUDA_ERROR_INVALID_CONTEXT"):
            thread.submit(pool._memory.synchronize).result()
        with pytest.raises(CudaError, match="cuMemUnmap failed: CUDA_ERROR_INVALID_CONTEXT"):
            thread.submit(pool._memory.unmap, address_of(pool), 4 * MIB).result()


FORK = """
import os, torch
torch.zeros(1, device="cuda")
if not (child := os.fork()):
    from executor_svc.devices.cuda_memory import CudaMemory
    try:
        CudaMemory(0)
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_cuda_does_not_work_in_a_child_of_a_process_that_had_it() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "cuInit failed: CUDA_ERROR_NOT_INITIALIZED\n"


UNKNOWN = """
from executor_svc.devices.cuda_memory import CudaMemory
try:
    CudaMemory(0).call("cuCtxPopCurrent")
except Exception as error:
    print(error)
"""


def test_a_function_that_is_not_there_is_noted_when_it_is_called(tmp_path: Path) -> None:
    environment = {**os.environ, "RIG_HAZARDS": str(tmp_path)}
    command = [sys.executable, "-c", UNKNOWN]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout == "cuCtxPopCurrent failed: CUDA_ERROR_NOT_FOUND\n"
    (log,) = tmp_path.iterdir()
    assert log.read_text() == "cuCtxPopCurrent was called, which the rig does not know\n"


def test_devices_have_ids_and_memory_of_their_own() -> None:
    program = (
        "from executor_svc.devices.cuda_memory import CudaMemory\n"
        "first, second = (CudaMemory(index) for index in range(2))\n"
        "second.allocate(8 * 2**20)\n"
        "print(first.device[-2:], second.device[-2:], second.call('cuMemGetInfo')[0] // 2**20)\n"
        "second.call('cuCtxSetCurrent', first.call('cuDevicePrimaryCtxRetain', 0))\n"
        "print(first.call('cuMemGetInfo')[0] // 2**20)\n"
        "CudaMemory(2)\n"
    )
    environment = {**os.environ, "RIG_DEVICES": "2", "RIG_MEMORY": f"rig_{os.getpid()}_two", "RIG_MEMORY_MIB": "1000"}
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stdout.split() == ["0f", "10", "392", "400"], done.stderr
    assert "cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE" in done.stderr
