"""Faults planted in the executor, one at a time: the rig finds each."""

import gc
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from executor_svc.runner import runner as runner_module
from tests.executor import harness
from tests.rig.drive import random_plans, serve
from tests.rig.mutations import mutated
from tests.rig.stand_in import StandIn

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


def serve_some(rig: StandIn, folder: Path, schedule: str = "lazy") -> None:
    runner, limits = harness.start(folder, **OPTIONS)
    with rig.schedule(schedule), rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), steps=40)


def assert_found(rig: StandIn, text: str) -> None:
    found = rig.take_hazards()
    assert any(text in sentence for sentence in found), found


def test_the_tokens_are_copied_before_they_are_drawn(
    rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = mutated("executor_svc.runner.readback", ("self._stream.wait_stream(computing)", "pass"))
    monkeypatch.setattr(runner_module, "Readback", changed.Readback)
    serve_some(rig, small)
    assert_found(rig, "race: a copy to the host")


def test_the_next_step_overwrites_tokens_that_are_still_being_copied(
    rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = mutated("executor_svc.runner.readback", ("computing.wait_event(arrived)", "pass"))
    monkeypatch.setattr(runner_module, "Readback", changed.Readback)
    serve_some(rig, small)
    assert_found(rig, "race:")


def test_the_tokens_are_read_before_they_are_there(
    rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = mutated("executor_svc.runner.readback", ("self._arrived.synchronize()", "pass"))
    monkeypatch.setattr(runner_module, "Readback", changed.Readback)
    with pytest.raises(AssertionError, match="read before their copy was done"):
        serve_some(rig, small)


def test_a_pinned_buffer_is_used_again_early(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = mutated(
        "executor_svc.staging.arena",
        ("torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True) if on_gpu else buffer", "_HOST[: ends[-1]]"),
        ("_ALIGNMENT = 16", "_HOST = torch.empty(2**22, dtype=torch.uint8, pin_memory=True)\n_ALIGNMENT = 16"),
    )
    monkeypatch.setattr(runner_module, "Arena", changed.Arena)
    serve_some(rig, small)
    assert_found(rig, "was written before the copy from it was done")


def test_an_allocation_during_a_capture(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = runner_module.Runner._forward

    sizes = itertools.count(2**20, 2**20)  # each larger than what torch keeps of those before

    def allocating(self: Any, batch: Any) -> None:
        torch.empty(next(sizes), dtype=torch.uint8, pin_memory=True)
        forward(self, batch)

    monkeypatch.setattr(runner_module.Runner, "_forward", allocating)
    with pytest.raises(RuntimeError):
        harness.start(small, **OPTIONS)
    torch.cuda.empty_cache()
    assert_found(rig, "cudaHostAlloc during a capture")


def test_the_host_waits_during_a_capture(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = runner_module.Runner._forward

    def waiting(self: Any, batch: Any) -> None:
        forward(self, batch)
        batch.positions.sum().item()

    monkeypatch.setattr(runner_module.Runner, "_forward", waiting)
    with pytest.raises(RuntimeError):
        harness.start(small, **OPTIONS)
    assert rig.take_hazards()


def test_a_kernel_is_compiled_in_serving(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module.Runner, "warm_up", lambda self: None)
    options = {**OPTIONS, "max_num_seqs": 6, "dtype": "float16"}  # of which no test before has loaded the kernels
    runner, limits = harness.start(small, **options)
    with rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), steps=40)
    assert_found(rig, "is compiled or loaded in serving")


def test_a_stream_is_used_by_two_threads(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = mutated(
        "executor_svc.runner.readback",
        ("self._arrived.synchronize()", "self._arrived.synchronize(); self._host.cuda(non_blocking=True)"),
    )
    monkeypatch.setattr(runner_module, "Readback", changed.Readback)
    serve_some(rig, small)
    assert_found(rig, "by a second thread")


def test_a_graph_outlives_its_memory(rig: StandIn, small: Path) -> None:
    runner, _ = harness.start(small, **OPTIONS)
    graphs = runner._graphs
    del runner  # with its weights and its cache
    gc.collect()
    torch.cuda.empty_cache()
    graphs.replay(1)
    assert_found(rig, "memory that was given back")
