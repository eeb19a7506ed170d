"""A KV pool whose memory comes from elsewhere: tensors over it, and an executor whose graphs were captured before it.

The calls go by NVIDIA's bindings to the rig's libcuda. Kernels compute nothing, so no test sees what they would touch.
"""

import gc
import random
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
from tests.executor_svc import harness
from tests.executor_svc.fake_keeper import FakeKeeper
from tests.executor_svc.obtaining import obtain
from tests.rig.drive import random_plans, serve
from tests.rig.stand_in import StandIn

NUM_BLOCKS = 256
MIB = 2**20


def make_pool(num_bytes: int) -> CudaMapping:
    return CudaMapping(CudaMemory(0), num_bytes)


def test_a_tensor_is_the_memory_itself_and_keeps_it(rig: StandIn) -> None:
    pool = make_pool(4 * MIB)
    pool.create()
    tensor = pool.tensor()
    assert (tensor.device, tensor.dtype, tensor.shape) == (torch.device("cuda", 0), torch.uint8, (4 * MIB,))
    (mapping,) = rig.mappings()
    assert tensor.data_ptr() == mapping.address
    tensor.view(torch.bfloat16).view(2, -1, 64)[1, -1].copy_(torch.full((64,), 3.0, dtype=torch.bfloat16))
    assert mapping.content()[-128:] == b"\x40\x40" * 64
    part = tensor[5:].view(-1)[:1]
    del tensor
    gc.collect()
    with pytest.raises(BatonError, match="1 tensors over memory are left"):
        pool.close()
    del part
    gc.collect()
    pool.close()
    assert not rig.mappings()


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
def test_graphs_captured_over_scratch_memory_are_replayed_on_the_pool(
    rig: StandIn, small: Path, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[CudaMapping] = []

    def scratch_cache(shape: tuple[int, ...], dtype: torch.dtype, *_: object) -> torch.Tensor:
        """A standby's cache: memory is behind the last block of each layer's keys and values alone."""
        count = torch.Size(shape).numel()
        pools.append(made := make_pool(count * dtype.itemsize))
        slab_bytes = count * dtype.itemsize // (shape[0] * shape[1])
        block_bytes = slab_bytes // shape[2]
        ends = [slab_bytes * (slab + 1) for slab in range(shape[0] * shape[1])]
        made.map_scratch([Span(end - block_bytes, block_bytes) for end in ends])
        return made.tensor()[: count * dtype.itemsize].view(dtype).view(shape)

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
    (pool,) = pools
    assert runner._backend._cache.data_ptr() == rig.mappings()[0].address
    assert sum(each.num_bytes for each in rig.mappings()) < pool.num_bytes
    before = rig.count("graph_launch")
    pool.create()
    assert [(each.num_bytes, each.is_writable) for each in rig.mappings()] == [(pool.num_bytes, True)]
    with rig.schedule("lazy"), rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), steps=100, window=2)
    assert rig.count("graph_launch") - before > 20
    assert rig.count("unmodelled_call") == 0
    runner.close()
    del runner
    gc.collect()
    pool.close()


def test_weights_are_read_into_memory_that_the_next_executor_maps(rig: StandIn, small: Path) -> None:
    keeper, device = FakeKeeper(), torch.device("cuda", 0)
    memories = CudaWeights(CudaMemory(0))
    loaded = [obtain(small, keeper, memories=memories, device=device) for _ in range(2)]
    assert [each.kept for each in loaded] == [False, True]
    assert [(each.num_bytes, each.is_writable) for each in rig.mappings()] == [(memories.num_bytes // 2, False)] * 2
    alone = obtain(small, None)
    for each in loaded:
        assert each.fingerprint == alone.fingerprint
        for name, tensor in each.weights.tensors.items():
            assert tensor.device == device
            assert torch.equal(tensor.cpu(), alone.weights.tensors[name]), name
    del loaded, each, tensor
    gc.collect()
    assert not rig.mappings()


def test_a_pool_is_smaller_by_weights_that_torch_does_not_know_of(rig: StandIn) -> None:
    platform = choose_platform(ExecutorOptions(device="cuda"))
    before = platform.default_pool_bytes(0, lambda: None)
    weights = platform.weight_memories().create(64 * MIB)
    assert platform.default_pool_bytes(0, lambda: None) == before - 64 * MIB
    del weights
