"""Pooled results of an executor's process, through a real core and real sockets."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common import messages as m
from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.core.scheduling.config import SchedulerConfig
from tests import ROOT
from tests.support.checkpoints import reference_logits, reference_model
from tests.support.core import RunningCore, running_core
from tests.support.eventually import eventually

PROMPT = [5, 6, 7, 8, 9] * 9
OPTIONS = ("--num-blocks", "64", "--max-batch-tokens", "8", "--threads", "1", "--no-keep", "--log-level", "error")


@contextmanager
def executor(core: RunningCore) -> Iterator[subprocess.Popen[bytes]]:
    tasks = ("--task", "embed", "--task", "score")
    command = [sys.executable, "-m", "executor_svc", "--scheduler", core.back, *OPTIONS, *tasks]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def near(values: Any) -> Any:
    return pytest.approx(values, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["alone", "killed"])
def test_results_of_a_process(tmp_path: Path, is_killed: bool) -> None:
    """Of two executors, which both may have a prompt of six plans, one is killed while they compute it."""
    at_once = SchedulerConfig(pool_grace_s=0.0, task_grace_s=0.0)  # no generator is waited for
    with running_core(tmp_path, at_once) as core, ExitStack() as stack:
        first = stack.enter_context(executor(core))
        front = core.frontend()
        eventually(lambda: bool(front.status().executors), timeout_s=60)
        front.send(m.FrontendHello(pid=1))
        state = front.receive(m.FleetState)
        assert [(each.task, each.num_ready) for each in state.tasks] == [("embed", 1), ("score", 1)]
        assert (state.num_ready, state.max_model_len) == (0, 0), "of generation"
        if is_killed:
            stack.enter_context(executor(core))
            eventually(lambda: len(front.status().executors) == 2, timeout_s=60)
        for name, asked in (("hidden", {"pooling": "hidden"}), ("logits", {"pooled_token_ids": (3, 4)})):
            front.submit(name, PROMPT, max_tokens=1, **{"pooling": "logits"} | asked)
        front.submit("tokens", PROMPT, max_tokens=5)
        if is_killed:
            first.kill()
        front.gather(("hidden", 0), ("logits", 0), ("tokens", 0), timeout_s=60)
    with torch.inference_mode():
        states = reference_model(DEMO_MODEL_DIR).model(torch.tensor([PROMPT])).last_hidden_state[0, -1].tolist()
    found = {name: np.frombuffer(delta.pooled, "<f4").tolist() for (name, _), delta in front.ends.items()}
    assert found["hidden"] == near(states)
    assert found["logits"] == near(reference_logits(DEMO_MODEL_DIR, PROMPT)[-1, [3, 4]].tolist())
    assert {delta.finish_reason for (name, _), delta in front.ends.items() if name != "tokens"} == {"stop"}
    refusal = front.ends["tokens", 0]
    assert (refusal.code, found["tokens"]) == ("task_not_served", [])
    assert "'generate'" in refusal.error
