"""Faults planted in the executor, one at a time: the rig finds each."""

import gc
import multiprocessing
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from executor_svc import startup
from executor_svc.runner import asked_steps
from executor_svc.runner import runner as runner_module
from executor_svc.runner.asked_steps import PendingStep
from executor_svc.runner.trial_plans import asking, asking_of_prompts, trial_plan
from executor_svc.staging import asked as asked_staging
from tests.executor_svc import harness
from tests.executor_svc.conftest import Make
from tests.rig import build
from tests.rig.drive import POISON, random_plans, serve
from tests.rig.graph_memory import not_held
from tests.rig.mutations import mutated
from tests.rig.stand_in import StandIn, read_launches

OPTIONS = {
    "device": "cuda",
    "dtype": "bfloat16",
    "poison": False,
    "attention": "triton",
    "max_num_seqs": 8,
    "max_batch_tokens": 64,
    "max_model_len": 512,
    "num_blocks": 64,
}

# Of `executor_svc.runner.readback`: where the next step waits, and where each tensor of a step is copied.
WAIT = "torch.cuda.current_stream(self._device).wait_event(self._pending)"
COPY = "                host.copy_(tensor, non_blocking=True)\n"
IF_TOKENS = "                if tensor is tensors[0]: "


def serve_some(rig: StandIn, folder: Path, schedule: str = "lazy") -> None:
    runner, limits = harness.start(folder, **OPTIONS)
    with rig.schedule(schedule), rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), steps=40)


def launch_three(rig: StandIn, folder: Path) -> None:
    """Three steps, and nothing waits for one before all are launched."""
    runner, limits = harness.start(folder, **OPTIONS)
    with rig.schedule("lazy"):
        pending = [runner.launch(columns) for columns in islice(random_plans(limits, random.Random(1)), 3)]
    for tokens in pending:
        tokens.wait()


def launch_asking(rig: StandIn, folder: Path) -> list[PendingStep]:
    """Three decode steps whose rows ask for everything, likewise."""
    runner, limits = harness.start(folder, **OPTIONS)
    plans = [asking(trial_plan([1] * 8, limits.block_size), 0, limits.vocab_size) for _ in range(3)]
    with rig.schedule("lazy"):
        return [runner.launch(columns) for columns in plans]


def change_readback(monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> None:
    """Runners that are made from now on read back with these faults; see `mutated`."""
    changed = mutated("executor_svc.runner.readback", *changes)
    monkeypatch.setattr(runner_module, "Readback", changed.Readback)


def assert_found(rig: StandIn, text: str) -> None:
    found = rig.take_hazards()
    assert any(text in sentence for sentence in found), found


def test_the_tokens_are_copied_before_they_are_drawn(
    rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_readback(monkeypatch, ("self._stream.wait_event(drawn)", "pass"))
    serve_some(rig, small)
    assert_found(rig, "race: a copy to the host")


def test_the_next_step_overwrites_tokens_that_are_still_being_copied(
    rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_readback(monkeypatch, (WAIT, "pass"))
    launch_three(rig, small)
    assert_found(rig, "race:")


BEFORE_SAMPLING = "        self._readback.before_overwriting()\n        if asked is not None"


@pytest.mark.parametrize(
    ("call", "left_out"),
    [(BEFORE_SAMPLING, "        if asked is not None"), ("if staged is not None or results is not None:", "if False:")],
    ids=["before sampling", "before a forward pass"],
)
def test_a_step_does_not_wait_before_it_overwrites(
    rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch, call: str, left_out: str
) -> None:
    """Both steps find log-probabilities of prompts in their forward pass, and tokens after it."""
    changed = mutated("executor_svc.runner.runner", (call, left_out))
    monkeypatch.setattr(startup, "Runner", changed.Runner)
    runner, limits = harness.start(small, **OPTIONS)
    columns = asking_of_prompts(trial_plan([8] * 2, limits.block_size), 3)
    with rig.schedule("lazy"):
        pending = [runner.launch(columns) for _ in range(2)]
    for each in pending:
        each.wait()
    assert_found(rig, "race:")


def test_the_tokens_are_read_before_they_are_there(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_readback(monkeypatch, ("self._arrived.synchronize()", "pass"))
    with pytest.raises(AssertionError, match="read before their copy was done"):
        serve_some(rig, small)


def test_a_pinned_buffer_is_used_again_early(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = mutated(
        "executor_svc.staging.arena",
        ("torch.empty(num_words, dtype=torch.int32, pin_memory=True) if on_gpu else buffer", "_HOST[:num_words]"),
        ("_ALIGNED_WORDS = 4", "_HOST = torch.empty(2**20, dtype=torch.int32, pin_memory=True)\n_ALIGNED_WORDS = 4"),
    )
    monkeypatch.setattr(runner_module, "Arena", changed.Arena)
    launch_three(rig, small)
    assert_found(rig, "was written before the copy from it was done")


def test_a_graph_uses_memory_that_others_get(
    rig: StandIn, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = runner_module.Runner._forward

    def allocating(self: Any, batch: Any, *parts: Any) -> None:
        forward(self, batch, *parts)
        with torch.cuda.stream(side):  # not the captured one, so not of the graph's memory
            scratch = torch.empty_like(self._lanes.last_tokens)
        scratch.copy_(self._lanes.last_tokens)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        held = torch.empty(2**10, device="cuda")  # beside which the capture will find room without a cudaMalloc
    monkeypatch.setattr(runner_module.Runner, "_forward", allocating)
    with rig.recording(tmp_path / "captured"):
        runner, _ = harness.start(small, **OPTIONS)
    assert held.is_cuda
    assert not_held(read_launches(tmp_path / "captured")) == ["a copy on the device"] * len(runner._decode_sizes)


def test_the_next_step_overwrites_log_probabilities_that_are_still_being_copied(
    rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step waits for the first copy, of the tokens, alone."""
    change_readback(
        monkeypatch,
        ("        self._pending = arrived\n", ""),
        (COPY, f"{COPY}{IF_TOKENS}drawn.record(self._stream)\n        self._pending = drawn\n"),
    )
    for pending in launch_asking(rig, small):
        pending.wait()
    assert_found(rig, "race:")


def test_log_probabilities_are_copied_before_they_are_there(
    rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the copy of the tokens waits for what computes."""
    change_readback(
        monkeypatch,
        ("        self._stream.wait_event(drawn)\n", ""),
        ("in zip(hosts, tensors, strict=True)", "in zip(hosts[::-1], tensors[::-1], strict=True)"),
        (COPY, f"{IF_TOKENS}self._stream.wait_event(drawn)\n{COPY}"),
    )
    for pending in launch_asking(rig, small):
        pending.wait()
    assert_found(rig, "race: a copy to the host")


def test_log_probabilities_are_read_before_they_are_there(
    rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector waits for the copy of the tokens alone."""
    change_readback(
        monkeypatch,
        ("        arrived.record(self._stream)\n", ""),
        (COPY, f"{COPY}{IF_TOKENS}arrived.record(self._stream)\n"),
    )
    last = launch_asking(rig, small)[-1]  # of which no later step has carried out the copies
    with rig.schedule("lazy"):
        result = last.wait()
    assert (result.logprobs.view(np.int32) == POISON).any()
    torch.cuda.synchronize()
    rig.take_hazards()


@pytest.mark.parametrize(
    ("module", "name", "copy", "user"),
    [
        ("executor_svc.staging.arena", "Arena", "device.copy_(host, non_blocking=True)", asked_staging),
        ("executor_svc.staging.pinned_memory", "copy_to_device", "place.copy_(", asked_staging),
        ("executor_svc.staging.pinned_memory", "copy_to_device", "place.copy_(", asked_steps),
    ],
    ids=["lists", "masks", "a lane's start"],
)
def test_what_the_step_before_still_reads_is_overwritten(
    rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, copy: str, user: ModuleType
) -> None:
    """It is brought to the device by a stream that waits for none."""
    changed = mutated(module, (copy, f"with torch.cuda.stream(torch.cuda.Stream()): {copy}"))
    monkeypatch.setattr(user, name, getattr(changed, name))
    for pending in launch_asking(rig, small):
        pending.wait()
    assert_found(rig, "race: a copy to the device")


def test_a_kernel_of_what_samples_ask_is_compiled_in_serving(
    rig: StandIn, checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module.Runner, "_asking_plans", lambda self: [])
    # Of a vocabulary that no other test has.
    folder = checkpoint(preset="0.6B", dtype=torch.bfloat16, num_layers=1, vocab_size=777)
    runner, limits = harness.start(folder, **OPTIONS)
    with rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), steps=40)
    assert_found(rig, "_adjust_kernel is compiled or loaded in serving")


def test_pinned_memory_is_not_taken_beforehand(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "take_pinned_memory", lambda most, in_flight: None)
    torch._C._host_emptyCache()
    runner, limits = harness.start(small, **OPTIONS)
    pinned = rig.count("pinned_allocation")
    serve(runner, random_plans(limits, random.Random(1)), steps=40)
    assert rig.count("pinned_allocation") > pinned


def test_a_kernel_is_compiled_in_serving(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module.Runner, "warm_up", lambda self: None)
    options = {**OPTIONS, "max_num_seqs": 6, "dtype": "float16"}  # of which no test before has loaded the kernels
    runner, limits = harness.start(small, **options)
    with rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), steps=40)
    assert_found(rig, "is compiled or loaded in serving")


def test_a_stream_is_used_by_two_threads(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_readback(
        monkeypatch,
        ("self._arrived.synchronize()", "self._arrived.synchronize(); self._host[0].cuda(non_blocking=True)"),
    )
    serve_some(rig, small)
    assert_found(rig, "by a second thread")


def test_a_graph_outlives_its_memory(rig: StandIn, small: Path) -> None:
    runner, _ = harness.start(small, **{**OPTIONS, "num_blocks": 4096})  # so many that nothing else lies beside them
    graphs = runner._graphs
    del runner  # with its weights and its cache
    gc.collect()
    torch.cuda.empty_cache()
    graphs.replay_forward(1)
    assert_found(rig, "memory that was given back")


# After a capture that failed, torch's allocator never gives memory back: these need a process of their own.


def spoil_capture(folder: Path, in_capture: Callable[[Any], None]) -> list[str]:
    """Hazards of a start whose captured steps do `in_capture` with their batch as well."""
    rig = StandIn(build.libraries() / "librig.so")
    forward = runner_module.Runner._forward

    def spoilt(self: Any, batch: Any, *parts: Any) -> None:
        forward(self, batch, *parts)
        if torch.cuda.is_current_stream_capturing():
            in_capture(batch)

    runner_module.Runner._forward = spoilt
    with pytest.raises(RuntimeError):
        harness.start(folder, **OPTIONS)
    return rig.take_hazards()


def allocate(batch: Any) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.empty(2**24, device="cuda")


def wait(batch: Any) -> None:
    batch.positions.sum().item()


@pytest.mark.parametrize(
    ("in_capture", "said"),
    [
        (allocate, "cudaMalloc during a capture"),
        (wait, "was captured"),
    ],
)
def test_what_a_capture_may_not_do(small: Path, in_capture: Callable[[Any], None], said: str) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        found = process.submit(spoil_capture, small, in_capture).result(timeout=200)
    assert any(said in sentence for sentence in found), found
