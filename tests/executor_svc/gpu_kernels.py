"""Runners of the GPU's kernels: on a GPU, or in Triton's interpreter where there is none."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from common.plan import ExecutorLimits
from executor_svc.model.attention import CacheMemory, KVGeometry
from executor_svc.model.checkpoint import Checkpoint
from executor_svc.model.draw import WholeDraw
from executor_svc.model.families import read_config
from executor_svc.model.model import Decoder
from executor_svc.model.sharding import Shard
from executor_svc.model.weights import load_weights
from executor_svc.runner.runner import Runner
from tests.executor_svc import harness
from tests.executor_svc.recorded import BLOCK_SIZE, OPTIONS, RecordedStep, replay
from tests.support.quick_interpreter import quicken


class CalledAgain:
    """In place of `StepGraphs`: a replay calls what was captured, and whatever lies in its tensors by then.

    Attributes:
        sizes: rows of each decode step that was replayed.
        replays: how many decode steps were replayed to their end, and how many other steps.
    """

    def __init__(self) -> None:
        self.halves: dict[int, tuple[Callable[[], object], Callable[[], object]]] = {}
        self.recorded_parts: dict[int, Sequence[Callable[[], object]]] = {}
        self.replays = [0, 0]
        self.sizes: list[int] = []

    def capture_decode(self, num_rows: int, forward: Callable[[], object], sample: Callable[[], object]) -> None:
        self.halves[num_rows] = (forward, sample)

    def capture_parts(self, num_tokens: int, parts: Sequence[Callable[[], object]]) -> None:
        self.recorded_parts[num_tokens] = parts

    def replay_forward(self, num_rows: int) -> bool:
        if num_rows not in self.halves:
            return False
        self.sizes.append(num_rows)
        self.halves[num_rows][0]()
        return True

    def replay_sampling(self, num_rows: int) -> bool:
        if num_rows not in self.halves:
            return False
        self.halves[num_rows][1]()
        self.replays[0] += 1
        return True

    def parts(self, num_tokens: int) -> Sequence[Callable[[], object]] | None:
        self.replays[1] += num_tokens in self.recorded_parts
        return self.recorded_parts.get(num_tokens)


def start_on_gpu_kernels(
    folder: Path,
    decode_sizes: list[int],
    token_sizes: list[int],
    memory: CacheMemory | None = None,
    graphs: Any = None,
) -> tuple[Runner[Any], ExecutorLimits]:
    """A runner of the Triton kernels, in float32, on a GPU or in the interpreter; its cache is full of NaN, or in the
    given memory."""
    from executor_svc.devices.attention_choice import TRITON
    from executor_svc.devices.gpu import GpuKernels
    from executor_svc.devices.gpu_attention import make_backend

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        quicken()
    config = read_config(folder)
    shard = Shard.of(config)
    sizes = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size}
    limits = ExecutorLimits(**sizes, **OPTIONS, tasks=("generate", "embed", "score"))
    with Checkpoint(folder) as checkpoint:
        weights, _ = load_weights(checkpoint, config, torch.float32, device)
    geometry = KVGeometry(config.num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE, torch.float32)
    kernels = GpuKernels(config, shard, limits, torch.float32, device)
    backend = make_backend(TRITON, config.num_heads, geometry, limits, device, num_sms=4, memory=memory)
    lengths = {name: OPTIONS[name] for name in ("max_model_len", "max_batch_tokens", "max_num_seqs")}
    model = Decoder(weights, kernels, backend, **lengths)
    draw = WholeDraw(kernels, limits.max_num_seqs, limits.vocab_size, device)
    runner = Runner(model, draw, backend, limits, device, decode_sizes, token_sizes, graphs=graphs)
    if memory is None:
        harness.poison_cache(runner)
    return runner, limits


def assert_same_tokens(runner: Runner[Any], limits: ExecutorLimits, steps: list[RecordedStep]) -> None:
    for number, (step, tokens) in enumerate(zip(steps, replay(runner, limits, steps), strict=True)):
        assert tokens.tolist() == step.tokens.tolist(), f"step {number}"
