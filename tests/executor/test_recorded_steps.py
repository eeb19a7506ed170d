"""Whole steps, as the scheduler plans them, through the GPU's kernels: the tokens are those of plain torch.

Here Triton's interpreter runs the kernels, and a graph's replay calls what was captured with what was staged then; on a
GPU they are the real ones.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.plan import ExecutorLimits
from executor_svc.model.attention import CacheMemory, KVGeometry
from executor_svc.model.checkpoint import Checkpoint
from executor_svc.model.config import read_config
from executor_svc.model.draw import WholeDraw
from executor_svc.model.model import Qwen3
from executor_svc.model.sharding import Shard
from executor_svc.model.weights import load_weights
from executor_svc.runner.runner import Runner
from tests.executor import harness
from tests.executor.conftest import Make
from tests.executor.recorded import BLOCK_SIZE, OPTIONS, RecordedStep, record, replay

DENSE = {"preset": "tiny", "num_layers": 2, "tied": False}


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="dense", marks=pytest.mark.slow), pytest.param(True, id="experts")],
)
def recorded(request: pytest.FixtureRequest, checkpoint: Make) -> tuple[Path, list[RecordedStep]]:
    folder = checkpoint(experts=request.param, **DENSE)
    return folder, record(folder)


class CalledAgain:
    """In place of CUDA graphs: a replay calls what was captured, and whatever lies in its tensors by then."""

    def __init__(self) -> None:
        self.halves: dict[int, tuple[Callable[[], object], Callable[[], object]]] = {}
        self.recorded_parts: dict[int, Sequence[Callable[[], object]]] = {}
        self.replays = [0, 0]

    def capture_decode(self, num_rows: int, forward: Callable[[], object], sample: Callable[[], object]) -> None:
        self.halves[num_rows] = (forward, sample)

    def capture_parts(self, num_tokens: int, parts: Sequence[Callable[[], object]]) -> None:
        self.recorded_parts[num_tokens] = parts

    def replay_forward(self, num_rows: int) -> bool:
        self.halves[num_rows][0]()
        return True

    def replay_sampling(self, num_rows: int) -> bool:
        self.halves[num_rows][1]()
        self.replays[0] += 1
        return True

    def parts(self, num_tokens: int) -> Sequence[Callable[[], object]]:
        self.replays[1] += 1
        return self.recorded_parts[num_tokens]


def start_on_gpu_kernels(
    folder: Path, decode_sizes: list[int], token_sizes: list[int], memory: CacheMemory | None = None
) -> tuple[Runner[Any], ExecutorLimits]:
    """A runner of the Triton kernels, in float32, on a GPU or in the interpreter; its cache is full of NaN, or in the
    given memory."""
    from executor_svc.devices.attention_choice import TRITON
    from executor_svc.devices.gpu import GpuKernels
    from executor_svc.devices.gpu_attention import make_backend

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
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
    model = Qwen3(weights, kernels, backend, **lengths)
    draw = WholeDraw(kernels, limits.max_num_seqs, limits.vocab_size, device)
    runner = Runner(model, draw, backend, limits, device, decode_sizes, token_sizes)
    if memory is None:
        harness.poison_cache(runner)
    return runner, limits


def assert_same_tokens(runner: Runner[Any], limits: ExecutorLimits, steps: list[RecordedStep]) -> None:
    for number, (step, tokens) in enumerate(zip(steps, replay(runner, limits, steps), strict=True)):
        assert tokens.tolist() == step.tokens.tolist(), f"step {number}"


def test_the_recorded_steps_are_of_all_kinds(recorded: tuple[Path, list[RecordedStep]]) -> None:
    kinds = set()
    for step in recorded[1]:
        lens = np.frombuffer(step.plan.query_lens, "<i4")
        rows = len(lens)
        kinds.add(("decode", "mixed", "prompts")[0 if lens.max() == 1 else 1 if lens.min() == 1 else 2])
        if len(step.plan.sample_rows) < 4 * rows:
            kinds.add("part of a prompt")
        if -1 in np.frombuffer(step.plan.token_ids, "<i4"):
            kinds.add("a token from a lane")
        if step.plan.seeds:
            kinds.add("sampled")
    assert kinds == {"decode", "mixed", "prompts", "part of a prompt", "a token from a lane", "sampled"}


@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")  # of logits left out
@pytest.mark.parametrize(
    "steps_are",
    [pytest.param("as they come", marks=pytest.mark.slow), pytest.param("padded", marks=pytest.mark.slow), "replayed"],
)
def test_tokens_are_those_of_plain_torch(recorded: tuple[Path, list[RecordedStep]], steps_are: str) -> None:
    folder, steps = recorded
    sizes = ([], []) if steps_are == "as they come" else ([2, 4], [8, 16, 24])
    runner, limits = start_on_gpu_kernels(folder, *sizes)
    graphs = CalledAgain()
    if steps_are == "replayed":
        runner._graphs = graphs
        runner._record_steps()
        harness.poison_cache(runner)
    assert_same_tokens(runner, limits, steps)
    assert (min(graphs.replays) >= 2) == (steps_are == "replayed")
    padding_ran = np.isfinite(runner._backend._cache[:, :, limits.num_blocks, :, 0].cpu().numpy()).all()
    assert padding_ran == (steps_are != "as they come")


@pytest.mark.gpu
def test_tokens_on_a_gpu_are_those_of_plain_torch(recorded: tuple[Path, list[RecordedStep]]) -> None:
    folder, steps = recorded
    runner, limits = harness.start(folder, device="cuda", attention="triton", **OPTIONS)
    assert_same_tokens(runner, limits, steps)
