"""The GPU's kernels and attention backend under the whole executor, in Triton's interpreter on the CPU: what a GPU adds
to this is streams and graphs."""

import numpy as np
import pytest
import torch

from common.plan import ExecutorLimits
from executor_svc.model.attention import KVGeometry
from executor_svc.model.config import read_config
from executor_svc.model.model import Qwen3
from executor_svc.model.sharding import Shard
from executor_svc.model.weights import Checkpoint, load_weights
from executor_svc.runner.runner import Runner
from tests.executor import harness
from tests.executor.conftest import Make
from tests.support.effort import combinations

BLOCK_SIZE = 16
PROMPTS = [[5, 9, 2], [7] * 40, [3, 1, 4, 1, 5, 9, 2, 6] * 3, [11]]
NEW_TOKENS = 4
OPTIONS = {"num_blocks": 24, "block_size": BLOCK_SIZE, "max_num_seqs": 4, "max_model_len": 64, "max_batch_tokens": 64}


def start_on_gpu_kernels(folder: str, decode_sizes: list[int]) -> tuple[Runner, ExecutorLimits]:
    from executor_svc.devices.gpu import GpuKernels
    from executor_svc.devices.attention_choice import TRITON
    from executor_svc.devices.gpu_attention import make_backend

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = read_config(folder)
    shard = Shard.of(config)
    limits = ExecutorLimits(vocab_size=config.vocab_size, **OPTIONS)
    with Checkpoint(folder) as checkpoint:
        weights, _ = load_weights(checkpoint, config, torch.float32, device)
    geometry = KVGeometry(config.num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE, torch.float32)
    kernels = GpuKernels(config, shard, limits, torch.float32, device)
    backend = make_backend(TRITON, config.num_heads, geometry, limits, device, num_sms=4)
    lengths = {name: OPTIONS[name] for name in ("max_model_len", "max_batch_tokens", "max_num_seqs")}
    model = Qwen3(config, weights, kernels, backend, **lengths)
    runner = Runner(model, kernels, backend, limits, device, decode_sizes)
    harness.poison_cache(runner)
    return runner, limits


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log:RuntimeWarning")  # min_p = 0 cuts at -inf
@pytest.mark.parametrize(
    ("sampling", "experts", "decode_sizes"),
    combinations(
        {"sampled": {"temperature": 0.8, "top_p": 0.9, "seed": 3}, "greedy": {}},
        {"dense": False, "experts": True},
        {"padded": [2, 4], "as they come": []},
        together=0,
    ),
)
def test_tokens_are_those_of_the_torch_path(
    checkpoint: Make, decode_sizes: list[int], experts: bool, sampling: dict[str, float]
) -> None:
    folder = checkpoint(preset="tiny", head_dim=64, num_layers=2, experts=experts, tied=False)
    expected = harness.Driver(*harness.start(folder, **OPTIONS), chunk=16).generate(PROMPTS, NEW_TOKENS, **sampling)
    runner, limits = start_on_gpu_kernels(folder, decode_sizes)
    assert harness.Driver(runner, limits, chunk=16).generate(PROMPTS, NEW_TOKENS, **sampling) == expected
    padding_ran = np.isfinite(runner._backend._cache[:, :, limits.num_blocks, :, 0].cpu().numpy()).all()
    assert padding_ran == bool(decode_sizes)
