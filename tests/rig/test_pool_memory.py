"""A KV pool whose memory comes from elsewhere: tensors over it, and an executor whose graphs were captured before it.

The rig's own driver has no virtual memory; the calls go to `tests/support/fake_cuda.py`, which tells the rig what is
mapped. Kernels compute nothing, so no test sees what they would touch.
"""

import gc
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from common.errors import BatonError
from executor_svc.devices import gpu_attention
from executor_svc.devices.choose_platform import choose_platform
from executor_svc.devices.cuda_mapping import CudaMapping
from executor_svc.devices.cuda_memory import CudaMemory
from executor_svc.devices.cuda_weights import CudaWeights
from executor_svc.keeper.pool_memory import Span
from executor_svc.options import ExecutorOptions
from tests.executor import harness
from tests.executor.kept import Keeper, obtain
from tests.rig.drive import random_plans, serve
from tests.rig.mapped_memory import MappedForTheRig
from tests.rig.stand_in import StandIn
from tests.support.fake_cuda import READ, READ_WRITE

NUM_BLOCKS = 256
MIB = 2**20


def make_pool(rig: StandIn, num_bytes: int) -> tuple[MappedForTheRig, CudaMapping]:
    cuda = MappedForTheRig(rig.adopt)
    return cuda, CudaMapping(CudaMemory(0, cuda), num_bytes)


def test_a_tensor_is_the_memory_itself_and_keeps_it(rig: StandIn) -> None:
    cuda, pool = make_pool(rig, 4 * MIB)
    pool.create()
    tensor = pool.tensor()
    assert (tensor.device, tensor.dtype, tensor.shape) == (torch.device("cuda", 0), torch.uint8, (4 * MIB,))
    (address,) = cuda.mapped
    assert tensor.data_ptr() == address
    tensor.view(torch.bfloat16).view(2, -1, 64)[1, -1].copy_(torch.full((64,), 3.0, dtype=torch.bfloat16))
    assert bytes(cuda.bytes_at(address + 4 * MIB - 128, 128)) == b"\x40\x40" * 64
    part = tensor[5:].view(-1)[:1]
    del tensor
    gc.collect()
    with pytest.raises(BatonError, match="1 tensors over memory are left"):
        pool.close()
    del part
    gc.collect()
    pool.close()
    assert not cuda.mapped


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
def test_graphs_captured_over_scratch_memory_are_replayed_on_the_pool(
    rig: StandIn, small: Path, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[tuple[MappedForTheRig, CudaMapping]] = []

    def scratch_cache(shape: tuple[int, ...], dtype: torch.dtype, *_: object) -> torch.Tensor:
        """A standby's cache: memory is behind the last block of each layer's keys and values alone."""
        count = torch.Size(shape).numel()
        pools.append(made := make_pool(rig, count * dtype.itemsize))
        slab_bytes = count * dtype.itemsize // (shape[0] * shape[1])
        block_bytes = slab_bytes // shape[2]
        ends = [slab_bytes * (slab + 1) for slab in range(shape[0] * shape[1])]
        made[1].map_scratch([Span(end - block_bytes, block_bytes) for end in ends])
        return made[1].tensor()[: count * dtype.itemsize].view(dtype).view(shape)

    monkeypatch.setattr(gpu_attention, "new_cache", scratch_cache)
    runner, limits = harness.start(
        small,
        attention=attention,
        device="cuda",
        dtype="bfloat16",
        poison=False,
        max_model_len=2048,
        num_blocks=NUM_BLOCKS,
    )
    ((cuda, pool),) = pools
    assert runner._backend._cache.data_ptr() in cuda.mapped
    assert sum(num_bytes for num_bytes, _ in cuda.mapped.values()) < pool.num_bytes
    before = rig.count("graph_launch")
    pool.create()
    assert list(cuda.mapped.values()) == [(pool.num_bytes, READ_WRITE)]
    with rig.schedule("lazy"), rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), steps=100, window=2)
    assert rig.count("graph_launch") - before > 20
    assert rig.count("unmodelled_call") == 0


def test_weights_are_read_into_memory_that_the_next_executor_maps(rig: StandIn, small: Path) -> None:
    cuda, keeper, device = MappedForTheRig(rig.adopt), Keeper(), torch.device("cuda", 0)
    memories = CudaWeights(CudaMemory(0, cuda))
    loaded = [obtain(small, keeper, memories=memories, device=device) for _ in range(2)]
    assert [each.kept for each in loaded] == [False, True]
    assert list(cuda.mapped.values()) == [(memories.num_bytes // 2, READ)] * 2
    alone = obtain(small, None)
    for each in loaded:
        assert each.fingerprint == alone.fingerprint
        for name, tensor in each.weights.tensors.items():
            assert tensor.device == device
            assert torch.equal(tensor.cpu(), alone.weights.tensors[name]), name
    del loaded, each, tensor
    gc.collect()
    assert not cuda.mapped


def test_a_pool_is_smaller_by_weights_that_torch_does_not_know_of(
    rig: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor_svc.devices.cuda_memory.load_driver", lambda: MappedForTheRig(rig.adopt))
    platform = choose_platform(ExecutorOptions(device="cuda"))
    before = platform.default_pool_bytes(0, lambda: None)
    weights = platform.weight_memories().create(64 * MIB)
    assert platform.default_pool_bytes(0, lambda: None) == before - 64 * MIB
    del weights


PROOF = """
import sys
sys.path[:0] = ["tools", "."]
import gpu_keeper_proof
from tests.rig import build
from tests.rig.stand_in import StandIn
from tests.rig.mapped_memory import MappedForTheRig
def driver():
    return MappedForTheRig(StandIn(build.libraries() / "librig.so").adopt)
gpu_keeper_proof.ROUNDS = 1
sys.exit(gpu_keeper_proof.main(driver))
"""


def test_the_proof_for_the_first_gpu_runs_with_torchs_cuda_build() -> None:
    """All of its code; what kernels should have written is not there."""
    done = subprocess.run([sys.executable, "-c", PROOF], check=False, capture_output=True, text=True, timeout=200)
    found = {line["statement"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert {name: line["outcome"] for name, line in found.items()} == {
        "outlives": "proven",
        "freed": "proven",
        "silent": "failed",
        "guarded": "failed",
        "remapped": "refuted",
    }, done.stdout + done.stderr
    assert found["guarded"]["error"] == "a kernel writes nothing, so its refusal says nothing"
    assert found["silent"]["error"] == "the writer writes nothing, so its end says nothing"
    assert found["remapped"]["create_and_remap_ms"] > 0
