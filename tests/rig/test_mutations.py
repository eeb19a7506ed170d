"""Faults planted in the executor, one at a time: the rig finds each."""

import gc
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from executor_svc.runner.asked_steps import PendingStep
from executor_svc.runner.graphs import decode_sizes
from executor_svc.runner.trial_plans import asking, asking_of_prompts, trial_plan
from tests.executor_svc import harness
from tests.executor_svc.conftest import Make
from tests.rig import build
from tests.rig.drive import POISON, random_plans, serve
from tests.rig.faults import KEPT, plant
from tests.rig.graph_memory import not_held
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


def assert_found(rig: StandIn, text: str) -> None:
    found = rig.take_hazards()
    assert any(text in sentence for sentence in found), found


def test_the_tokens_are_copied_before_they_are_drawn(rig: StandIn, small: Path) -> None:
    with plant("tokens are copied before they are drawn"):
        serve_some(rig, small)
    assert_found(rig, "race: a copy to the host")


def test_the_next_step_overwrites_tokens_that_are_still_being_copied(rig: StandIn, small: Path) -> None:
    with plant("the next step does not wait for copies"):
        launch_three(rig, small)
    assert_found(rig, "race:")


@pytest.mark.parametrize("place", ["before sampling", "before a forward pass"])
def test_a_step_does_not_wait_before_it_overwrites(rig: StandIn, small: Path, place: str) -> None:
    """Both steps find log-probabilities of prompts in their forward pass, and tokens after it."""
    with plant(f"a step does not wait {place}"):
        runner, limits = harness.start(small, **OPTIONS)
        columns = asking_of_prompts(trial_plan([8] * 2, limits.block_size), 3)
        with rig.schedule("lazy"):
            pending = [runner.launch(columns) for _ in range(2)]
        for each in pending:
            each.wait()
    assert_found(rig, "race:")


def test_the_tokens_are_read_before_they_are_there(rig: StandIn, small: Path) -> None:
    read_early = pytest.raises(AssertionError, match="read before their copy was done")
    with plant("tokens are read before they are there"), read_early:
        serve_some(rig, small)


def test_a_pinned_buffer_is_used_again_early(rig: StandIn, small: Path) -> None:
    with plant("a pinned buffer is used again"):
        launch_three(rig, small)
    assert_found(rig, "was written before the copy from it was done")


def test_a_graph_uses_memory_that_others_get(rig: StandIn, small: Path, tmp_path: Path) -> None:
    captures = len(decode_sizes(OPTIONS["max_num_seqs"]))
    with plant("a graph uses memory that others get"), rig.recording(tmp_path / "captured"):
        runner, _ = harness.start(small, **OPTIONS)
    assert not_held(read_launches(tmp_path / "captured")) == ["a copy on the device"] * captures
    runner.close()


def test_the_next_step_overwrites_log_probabilities_that_are_still_being_copied(rig: StandIn, small: Path) -> None:
    with plant("a step waits for the copy of the tokens alone"):
        for pending in launch_asking(rig, small):
            pending.wait()
    assert_found(rig, "race:")


def test_log_probabilities_are_copied_before_they_are_there(rig: StandIn, small: Path) -> None:
    with plant("only the copy of the tokens waits"):
        for pending in launch_asking(rig, small):
            pending.wait()
    assert_found(rig, "race: a copy to the host")


def test_log_probabilities_are_read_before_they_are_there(rig: StandIn, small: Path) -> None:
    with plant("the tokens alone are waited for"):
        last = launch_asking(rig, small)[-1]  # of which no later step has carried out the copies
        with rig.schedule("lazy"):
            result = last.wait()
    assert (result.logprobs.view(np.int32) == POISON).any()
    torch.cuda.synchronize()
    rig.take_hazards()


@pytest.mark.parametrize("what", ["lists", "masks", "starts of lanes"])
def test_what_the_step_before_still_reads_is_overwritten(rig: StandIn, small: Path, what: str) -> None:
    with plant(f"{what} come by a stream of their own"):
        for pending in launch_asking(rig, small):
            pending.wait()
    assert_found(rig, "race: a copy to the device")


def test_a_kernel_of_what_samples_ask_is_compiled_in_serving(rig: StandIn, checkpoint: Make) -> None:
    # Of a vocabulary that no other test has.
    folder = checkpoint(preset="0.6B", dtype=torch.bfloat16, num_layers=1, vocab_size=777)
    with plant("no step asks before serving"):
        runner, limits = harness.start(folder, **OPTIONS)
    with rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), steps=40)
    assert_found(rig, "_adjust_kernel is compiled or loaded in serving")


def test_pinned_memory_is_not_taken_beforehand(rig: StandIn, small: Path) -> None:
    torch._C._host_emptyCache()
    with plant("no pinned memory is taken before serving"):
        runner, limits = harness.start(small, **OPTIONS)
    pinned = rig.count("pinned_allocation")
    serve(runner, random_plans(limits, random.Random(1)), steps=40)
    assert rig.count("pinned_allocation") > pinned


def test_a_kernel_is_compiled_in_serving(rig: StandIn, small: Path) -> None:
    options = {**OPTIONS, "max_num_seqs": 6, "dtype": "float16"}  # of which no test before has loaded the kernels
    with plant("nothing is warmed up"):
        runner, limits = harness.start(small, **options)
    with rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), steps=40)
    assert_found(rig, "is compiled or loaded in serving")


def test_a_stream_is_used_by_two_threads(rig: StandIn, small: Path) -> None:
    with plant("a second thread copies"):
        serve_some(rig, small)
    assert_found(rig, "by a second thread")


def test_a_graph_outlives_its_memory(rig: StandIn, small: Path) -> None:
    with plant("graphs outlive their memory"):
        runner, _ = harness.start(small, **{**OPTIONS, "num_blocks": 4096})  # so many that nothing else is beside them
    del runner  # with its weights and its cache
    gc.collect()
    torch.cuda.empty_cache()
    KEPT.pop().replay_forward(1)
    assert_found(rig, "memory that was given back")


# After a capture that failed, torch's allocator never gives memory back: these need a process of their own.


def spoil_capture(folder: Path, fault: str) -> list[str]:
    """Hazards of a start with a fault."""
    rig = StandIn(build.libraries() / "librig.so")
    with plant(fault), pytest.raises(RuntimeError):
        harness.start(folder, **OPTIONS)
    return rig.take_hazards()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("a capture allocates", "cudaMalloc during a capture"),
        ("a capture waits", "was captured"),
    ],
)
def test_what_a_capture_may_not_do(small: Path, fault: str, said: str) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        found = process.submit(spoil_capture, small, fault).result(timeout=200)
    assert any(said in sentence for sentence in found), found
