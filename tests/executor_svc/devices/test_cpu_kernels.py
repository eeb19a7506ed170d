"""The executor on the C++ kernels: its scores are as near to float32 as transformers' own, however a plan is cut."""

import gc
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import BatonError
from executor_svc.devices.cpu import CpuPlatform
from executor_svc.devices.cpu_kernels import CppBackend, CppKernels
from executor_svc.devices.cpu_share import own_cpus
from executor_svc.devices.torch_kernels import TorchBackend
from executor_svc.model.attention import KVGeometry
from executor_svc.model.checkpoint import Checkpoint
from executor_svc.model.checkpoint_layout import Role
from executor_svc.model.families import read_config
from executor_svc.model.packing import TensorSpec
from executor_svc.model.prepared import WeightLayout
from executor_svc.model.rank_group import SINGLE_RANK
from executor_svc.model.sharding import Shard
from executor_svc.model.weights import read_weights
from kernels.cpu import ISA_VARIABLE, load
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import RUNNABLE_ISAS, Driver, Pool, Row, logits, needs_cpp, run, start
from tests.support.checkpoints import VOCAB_SIZE, reference_logits
from tests.support.effort import combinations
from tests.support.logged import Log

LENGTH, PROMPT = 84, 77

pytestmark = needs_cpp


@pytest.fixture(params=RUNNABLE_ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(ISA_VARIABLE, request.param)
    return request.param


@pytest.fixture
def tokens() -> list[int]:
    return random.Random(0).choices(range(VOCAB_SIZE), k=LENGTH)


def start_cpp(folder: Path, **options: Any) -> Any:
    runner, limits = start(folder, dtype="auto", **{"num_blocks": 24, "threads": 2, **options})
    assert isinstance(runner._backend, CppBackend)
    assert isinstance(runner._model._kernels, CppKernels)
    return runner, limits


def teacher_forced(folder: Path, tokens: list[int], chunk: int, block_size: int = 16) -> torch.Tensor:
    """Scores after every token: the prompt in chunks, the rest one by one; a second row is there all the time."""
    num_blocks = 2 * -(-LENGTH // block_size)
    runner, limits = start_cpp(folder, num_blocks=num_blocks, block_size=block_size)
    pool = Pool(num_blocks, block_size)
    table, other = pool.grow([], LENGTH), pool.grow([], LENGTH)
    ends = [*range(chunk, PROMPT, chunk), *range(PROMPT, LENGTH + 1)]
    pieces, start_at = [], 0
    for end in ends:
        rows = [Row(1, tokens[start_at:end][::-1], end, other), Row(0, tokens[start_at:end], end, table)]
        pieces.append(logits(runner, rows, limits)[end - start_at :])
        start_at = end
    return torch.cat(pieces)


@pytest.mark.parametrize(
    ("config", "cut"),
    combinations(
        [
            {"preset": "0.6B"},
            {"preset": "tiny", "head_dim": 64, "intermediate_size": 72},
            {"preset": "30B-A3B", "experts": True, "num_experts_per_tok": 8, "mlp_only_layers": [0]},
            {"preset": "4B", "tied": False, "attention_bias": True},
        ],
        [(PROMPT, 16), (20, 1), (33, 32)],
    ),
)
def test_not_further_from_float32_than_transformers(
    checkpoint: Make, tokens: list[int], isa: str, config: dict[str, Any], cut: tuple[int, int]
) -> None:
    chunk, block_size = cut
    folder = checkpoint(**config, dtype=torch.bfloat16)
    exact = reference_logits(folder, tokens, torch.float32)
    theirs = (reference_logits(folder, tokens, torch.bfloat16) - exact).abs()
    ours = (teacher_forced(folder, tokens, chunk, block_size) - exact).abs()
    assert ours.mean() <= 1.15 * theirs.mean()
    assert ours.max() <= 1.5 * theirs.max()


def test_a_plan_may_be_cut_anywhere(checkpoint: Make, isa: str) -> None:
    """Greedy tokens of whole prompts and of chunks agree; `test_same_bits.py` has the bits."""
    folder = checkpoint(preset="0.6B", dtype=torch.bfloat16, num_layers=2)
    rng = random.Random(1)
    prompts = [rng.choices(range(VOCAB_SIZE), k=length) for length in (1, 5, 16, 33, 60)]
    runner, limits = start_cpp(folder, num_blocks=64)
    whole = Driver(runner, limits).generate(prompts, 6)
    assert Driver(runner, limits, chunk=7, read_lanes=False).generate(prompts, 6) == whole
    alone = [Driver(runner, limits).generate([prompt], 6)[0] for prompt in prompts]
    assert alone == whole, "a row's tokens depend on the rows beside it"


def test_shared_blocks_and_unstored_tokens(checkpoint: Make, tokens: list[int], isa: str) -> None:
    """A row reads blocks that another one of the same plan fills, and stores nothing in them."""
    folder = checkpoint(preset="0.6B", dtype=torch.bfloat16)
    runner, limits = start_cpp(folder)
    pool = Pool(24, 16)
    table = pool.grow([], 48)
    alone = run(runner, [Row(0, tokens[:48], 48, table)], limits).tolist()
    table = pool.grow([], 48)
    reader = Row(1, tokens[47:48], 48, table, unstored=1)
    assert run(runner, [reader, Row(0, tokens[:48], 48, table)], limits).tolist() == alone * 2


def test_sampled_tokens_are_the_same_in_any_batch(checkpoint: Make, isa: str) -> None:
    folder = checkpoint(preset="0.6B", dtype=torch.bfloat16)
    runner, limits = start_cpp(folder, num_blocks=64)
    sampling = {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 11}
    prompts = [[5, 6, 7], [8] * 30, [1, 2]]
    together = Driver(runner, limits).generate(prompts, 6, **sampling)
    assert together == [Driver(runner, limits).generate([prompt], 6, **sampling)[0] for prompt in prompts]


def test_instruction_sets_agree(checkpoint: Make, tokens: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """They add in different orders, so they agree within what one rounding to bfloat16 does to a score, and on the
    likeliest token wherever it is ahead by more than that."""
    folder = checkpoint(preset="0.6B", dtype=torch.bfloat16)
    scores = {}
    for name in RUNNABLE_ISAS:
        monkeypatch.setenv(ISA_VARIABLE, name)
        scores[name] = teacher_forced(folder, tokens, PROMPT)
    first = scores[RUNNABLE_ISAS[0]]
    best_two = first.topk(2).values
    spread = first.std()
    clear = best_two[:, 0] - best_two[:, 1] > 0.15 * spread
    assert clear.sum() > LENGTH / 2
    for name, other in scores.items():
        assert (other - first).abs().mean() < 0.02 * spread, name
        assert torch.equal(other.argmax(-1)[clear], first.argmax(-1)[clear]), name


@pytest.mark.parametrize("tied", [True, False])
def test_there_are_never_two_copies_of_a_model(checkpoint: Make, tied: bool) -> None:
    """While weights are read, memory holds what is prepared so far, one matrix that is not packed yet, and what each
    thread hashes."""
    folder = checkpoint(preset="0.6B", dtype=torch.bfloat16, tied=tied, num_layers=1)
    config = read_config(folder)
    layout = WeightLayout(config, Shard.of(config), torch.bfloat16, CpuPlatform(1).packing(config, torch.bfloat16))
    largest = 2 * max(parameter.num_elements for parameter in layout.parameters if parameter.role is not Role.TENSOR)
    gc.freeze()  # the collector lists no objects of before: to look through them at each tensor takes seconds
    before, prepared = tensor_bytes(), 0

    def new(name: str, spec: TensorSpec) -> torch.Tensor:
        nonlocal prepared
        assert tensor_bytes() - before <= prepared + largest * (1 + torch.get_num_threads())
        prepared += spec.num_bytes
        return torch.empty(spec.shape, dtype=spec.dtype)

    with Checkpoint(folder) as opened:
        weights, _ = read_weights(opened, layout, torch.device("cpu"), SINGLE_RANK, new)
    assert list(weights.tensors) == list(layout.specs)
    assert tensor_bytes() - before == prepared == sum(spec.num_bytes for spec in layout.specs.values())


def tensor_bytes() -> int:
    """Memory of all tensors that live and were made since the collector froze what was there."""
    found = [item for item in gc.get_objects() if type(item) is torch.Tensor and item.device.type == "cpu"]
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in found}.values())


@pytest.mark.parametrize(
    ("options", "variable"),
    [({"dtype": "float32"}, ""), ({"dtype": "float16"}, ""), ({}, "torch")],
)
def test_plain_torch_for_what_the_kernels_are_not_for(
    checkpoint: Make, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], variable: str
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, variable)
    folder = checkpoint(preset="0.6B", dtype=torch.bfloat16)
    runner, _ = start(folder, num_blocks=8, **{"dtype": "auto", **options})
    assert isinstance(runner._backend, TorchBackend)


def test_other_head_dims_take_plain_torch(checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    runner, limits = start(checkpoint(preset="tiny", dtype=torch.bfloat16), dtype="auto", num_blocks=8)
    assert isinstance(runner._backend, TorchBackend)
    assert len(Driver(runner, limits).generate([[1, 2, 3]], 2)[0]) == 2


GEOMETRY = KVGeometry(num_layers=1, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16)


def chosen() -> Any:
    """What a platform takes for bfloat16; it is asked twice, as at a start."""
    platform = CpuPlatform(threads=1)
    assert platform._choose(torch.bfloat16, 64) is platform._choose(torch.bfloat16, 64)
    return platform._choose(torch.bfloat16, 64).kernels


def test_what_is_chosen_is_said_once(log: Log, isa: str) -> None:
    assert chosen() is not None
    said = {"isa": isa, "reason": "BATON_CPU_ISA asks for it", "threads": 1, "pinned": 0}
    assert [facts for event, facts in log.lines if event == "cpu kernels"] == [said]
    assert not log.warnings


def test_without_a_compiler_it_says_what_is_lost(log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert chosen() is None
    (isa,), (warned,) = [facts["isa"] for event, facts in log.lines if event == "cpu kernels"], log.warnings
    assert isa == "torch"
    assert "no C++ compiler /nowhere/g++" in warned["problem"]
    assert "plain torch runs instead" in warned["problem"]


@pytest.mark.parametrize(("dtype", "warned"), [(torch.float32, []), (torch.float16, ["plain torch runs"])])
def test_half_precision_is_said_to_be_slow(log: Log, dtype: torch.dtype, warned: list[str]) -> None:
    """Llama 2 and Vicuna are stored so; float32 is what a user chose."""
    CpuPlatform(threads=1)._choose(dtype, 128)
    problems = [facts["problem"] for facts in log.warnings]
    assert len(problems) == len(warned)
    assert all(words in problem for words, problem in zip(warned, problems, strict=True))


def test_an_instruction_set_that_is_not_there_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "sse")
    with pytest.raises(BatonError, match="BATON_CPU_ISA=sse: there is no such one"):
        chosen()


PIN = """
import os, torch
from executor_svc.devices.cpu import CpuPlatform
for arguments in ({"pin_threads": True}, {"threads": 1, "pin_threads": True}, {}):
    if os.fork() == 0:  # torch, which is imported once, has no threads yet
        before = os.sched_getaffinity(0)
        CpuPlatform(**arguments)._choose(torch.bfloat16, 64)
        tasks = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]
        alone = sum(len(task) == 1 for task in tasks)
        print("PINNED", sorted(before), sorted(os.sched_getaffinity(0)), alone, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_threads_are_pinned_if_all_cpus_are_used() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs or more")
    load(1, print)  # built outside, so that nothing else is said
    done = subprocess.run([sys.executable, "-c", PIN], check=True, capture_output=True, text=True)
    all_of_them, one, unpinned = re.findall("(?<=^PINNED ).*", done.stdout, re.MULTILINE)
    assert all_of_them == f"{cpus} {cpus[:1]} {len(cpus)}"
    assert one == f"{cpus} {cpus} 0", "another executor may have the others"
    assert unpinned == f"{cpus} {cpus} 0"


def test_ranks_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 1, 5, 2, 4})
    assert own_cpus({}) == [1, 2, 3, 4, 5]
    assert [own_cpus({"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": rank}) for rank in "01"] == [[1, 2], [3, 4]]
    assert own_cpus({"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "7"}) == [3]
