"""A standby's trial steps through the GPU's kernels, with memory behind the padding blocks alone; then the pool comes.

Triton's interpreter runs the kernels on the host's memory, which `tests/support/fake_cuda.py` maps as CUDA's driver
would. Where nothing is mapped, an access ends this process (SIGSEGV), as it ends a kernel on a GPU.
"""

import os
from collections.abc import Callable, Sequence

import pytest
import torch

from executor_svc.devices.cuda_mapping import CudaMapping
from executor_svc.devices.cuda_memory import CudaMemory
from executor_svc.devices.kept_memory import KeptMemory
from executor_svc.model.attention import KVGeometry
from tests.executor_svc import harness
from tests.executor_svc.conftest import Make
from tests.executor_svc.gpu_kernels import CalledAgain, assert_same_tokens, start_on_gpu_kernels
from tests.executor_svc.recorded import BLOCK_SIZE, OPTIONS, record
from tests.support.fake_cuda import FakeCuda

NUM_BLOCKS = int(OPTIONS["num_blocks"])
GEOMETRY = KVGeometry(num_layers=2, num_kv_heads=2, head_dim=64, block_size=BLOCK_SIZE, dtype=torch.float32)
PAGE = 4096  # two in each block of a layer's keys


class CalledOnceBefore(CalledAgain):
    """Runs what it captures, as a capture does."""

    def capture_decode(self, num_rows: int, forward: Callable[[], object], sample: Callable[[], object]) -> None:
        super().capture_decode(num_rows, forward, sample)
        forward()
        sample()

    def capture_parts(self, num_tokens: int, parts: Sequence[Callable[[], object]]) -> None:
        super().capture_parts(num_tokens, parts)
        for part in parts:
            part()


def make_pool(cuda: FakeCuda) -> CudaMapping:
    return CudaMapping(CudaMemory(0, cuda, cuda.as_tensor), (NUM_BLOCKS + 1) * GEOMETRY.block_bytes)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU")
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")  # of logits left out
def test_trial_steps_touch_the_padding_block_alone_and_their_graphs_go_on_with_the_pool(checkpoint: Make) -> None:
    folder = checkpoint(preset="tiny", head_dim=GEOMETRY.head_dim, num_layers=GEOMETRY.num_layers)
    steps = record(folder)
    cuda = FakeCuda(granularity=PAGE, name=f"fake_cuda_{os.getpid()}_standby")
    maker, standby = make_pool(cuda), make_pool(cuda)
    maker.create()
    assert not maker.tensor().any(), "new memory is empty"
    memory = KeptMemory(None, standby, GEOMETRY, NUM_BLOCKS)  # type: ignore[arg-type]
    memory.map_scratch()
    block_bytes = GEOMETRY.block_bytes // (2 * GEOMETRY.num_layers)
    num_mapped = sum(size for size, _ in cuda.mapped.values()) - maker.num_bytes
    assert num_mapped == PAGE + 2 * GEOMETRY.num_layers * block_bytes, "the first page, and the padding blocks"

    graphs = CalledOnceBefore()
    runner, limits = start_on_gpu_kernels(folder, [1, 2, 4], [8, 16, 24], memory, graphs)
    runner.warm_up()
    runner.record_steps()
    for columns in [*runner.largest_plans(), *list(runner.asking_plans())[::3]]:
        runner.run(columns)

    assert maker.descriptor is not None
    standby.map(maker.descriptor)
    harness.poison_cache(runner)
    assert_same_tokens(runner, limits, steps)
    assert min(graphs.replays) >= 2
    assert maker.tensor().any(), "both are the same memory"
