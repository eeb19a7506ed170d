"""Memory that runs out, kernels that fail: a start says so in a sentence, a step ends its epoch and nothing else."""

import contextlib
import gc
import queue
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from common import messages as m
from common.errors import BatonError
from executor_svc.options import ExecutorOptions
from executor_svc.runner import runner as runner_module
from executor_svc.service import step_loop
from executor_svc.service.step_loop import QueuedPlan, StepAnswer, StepLoop
from executor_svc.startup import start_executor
from tests.executor_svc import harness
from tests.rig.drive import random_plans, serve
from tests.rig.stand_in import StandIn

OPTIONS = {
    "device": "cuda",
    "dtype": "bfloat16",
    "max_num_seqs": 4,
    "max_batch_tokens": 64,
    "max_model_len": 512,
    "num_blocks": 64,
}


def give_everything_back() -> None:
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
def test_memory_runs_out_at_each_allocation_of_a_start(
    rig: StandIn, small: Path, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With pinned memory for one step in flight a start makes a third of the allocations, of the same kinds.
    monkeypatch.setattr(runner_module, "_IN_FLIGHT", 1)
    options = ExecutorOptions(model=str(small), attention=attention, **OPTIONS)
    said: set[str] = set()
    for allocation in range(1000):
        give_everything_back()
        before = rig.count("allocation_failed_on_purpose")
        rig.set("allocations_until_failure", allocation)
        try:
            runner = start_executor(options).runner
        except BatonError as error:
            said.add(str(error).partition(":")[0])
            continue
        finally:
            rig.set("allocations_until_failure", -1)
        if rig.count("allocation_failed_on_purpose") == before:
            break  # that start made fewer
    assert allocation > 5
    assert all("memory runs out" in each or "cannot be allocated" in each for each in said), said
    plans = random_plans(runner.limits, random.Random(1))
    serve(runner, plans, steps=10)


class Served:
    """A step loop in this thread, and what it answered."""

    def __init__(self, runner: Any) -> None:
        self.steps: queue.SimpleQueue[QueuedPlan | None] = queue.SimpleQueue()
        self.answers: list[StepAnswer] = []
        self.epoch = 1
        self._loop = StepLoop(runner, self.steps, lambda: self.epoch, self.answers.append)

    def run(self, plans: Any, steps: int) -> list[StepAnswer]:
        self.answers.clear()
        for step in range(steps):
            self.steps.put(QueuedPlan(self.epoch, step, next(plans)))
        self.steps.put(None)
        self._loop.run()
        return list(self.answers)


def test_memory_runs_out_in_a_step(rig: StandIn, small: Path) -> None:
    runner, limits = harness.start(small, poison=False, attention="triton", enforce_eager=True, **OPTIONS)
    served, plans = Served(runner), random_plans(limits, random.Random(1), going_on=False)
    assert all(isinstance(answer, m.StepResult) for answer in served.run(plans, 5))
    for allocation in range(2):
        give_everything_back()
        torch._C._host_emptyCache()
        rig.set("allocations_until_failure", allocation)
        failed = served.run(plans, 4)
        rig.set("allocations_until_failure", -1)
        assert any(isinstance(answer, m.StepFailed) and "memory" in answer.error for answer in failed)
        first = next(index for index, answer in enumerate(failed) if isinstance(answer, m.StepFailed))
        assert failed[first + 1 :] == [None] * (3 - first)  # plans behind it need what it did not compute
        served.epoch += 1
        assert all(isinstance(answer, m.StepResult) for answer in served.run(plans, 5))


def test_a_device_fault_ends_the_process(rig: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, limits = harness.start(small, poison=False, attention="triton", **OPTIONS)
    exits: list[int] = []
    gone = threading.Event()

    def leave(code: int) -> None:
        exits.append(code)
        gone.set()
        raise SystemExit  # of the thread that finds it

    def serve_one() -> None:
        with contextlib.suppress(SystemExit):
            served.run(plans, 1)

    monkeypatch.setattr(step_loop.os, "_exit", leave)
    served, plans = Served(runner), random_plans(limits, random.Random(1))
    rig.set("device_error", 700)
    threading.Thread(target=serve_one, daemon=True).start()
    assert gone.wait(60)
    assert exits[0] == 70
