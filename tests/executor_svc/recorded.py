"""Steps that the real scheduler planned for a small workload, and the tokens that plain torch on the CPU gave.

They are replayed in three ways: by Triton's interpreter (values, `test_recorded_steps.py`), on the pretended GPU
(calls, `tests/rig/test_recorded_steps.py`), and on a GPU (both).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from common import messages as m
from common.plan import ExecutorLimits
from common.wire import IntArray
from executor_svc.runner.runner import Runner
from tests.executor_svc import harness
from tests.support.scheduling import Scheduling

BLOCK_SIZE = 16
OPTIONS = {"num_blocks": 8, "block_size": BLOCK_SIZE, "max_num_seqs": 4, "max_model_len": 64, "max_batch_tokens": 24}
"""So few blocks, rows and tokens that prompts are cut into chunks, sequences wait, and some are preempted."""

SHARED = [7] * 20
REQUESTS: list[tuple[list[int], dict[str, Any]]] = [
    ([5, 9, 2], {}),
    ([*SHARED, 3, 1, 4], {"temperature": 0.8, "top_p": 0.9, "seed": 3}),
    ([*SHARED, 1, 5, 9, 2, 6], {"temperature": 1.0, "top_k": 5, "seed": 4}),
    ([11], {"temperature": 0.7, "min_p": 0.1, "seed": 5, "n": 2}),
]
NEW_TOKENS = 6


@dataclass(frozen=True)
class RecordedStep:
    """A plan, and the tokens of its sampled rows."""

    plan: m.Plan
    tokens: IntArray

    def in_blocks_of(self, block_size: int) -> "RecordedStep":
        """The same rows for an executor whose blocks are larger, each row in its lane's own block."""
        plan = self.plan
        lanes, queries, contexts = (
            np.frombuffer(column, "<i4") for column in (plan.lanes, plan.query_lens, plan.context_lens)
        )
        positions = [np.arange(end - count, end) for count, end in zip(queries, contexts, strict=True)]
        slots = [lane * block_size + each for lane, each in zip(lanes, positions, strict=True)]
        changed = msgspec.structs.replace(
            plan,
            slot_mapping=np.concatenate(slots).astype("<i4").tobytes(),
            block_counts=np.ones(len(lanes), "<i4").tobytes(),
            block_ids=plan.lanes,
        )
        return RecordedStep(changed, self.tokens)


class _Recorder:
    """Runs the scheduler's plans on a runner, in place of a test's oracle."""

    def __init__(self, runner: Runner[Any], limits: ExecutorLimits) -> None:
        self.runner, self.limits = runner, limits
        self.steps: list[RecordedStep] = []

    def run(self, plan: m.Plan) -> m.StepResult:
        tokens = self.runner.run(harness.through_the_wire(plan, self.limits)).copy()
        self.steps.append(RecordedStep(plan, tokens))
        return m.StepResult(epoch=plan.epoch, step=plan.step, token_ids=tokens.astype("<i4").tobytes(), compute_us=1)


def record(folder: Path) -> list[RecordedStep]:
    """Serve `REQUESTS` with two steps in flight."""
    runner, limits = harness.start(folder, device="cpu", **OPTIONS)
    rig, recorder = Scheduling(limits), _Recorder(runner, limits)
    rig.executors[1] = recorder
    for number, (prompt, params) in enumerate(REQUESTS):
        rig.add(f"request-{number}", prompt, max_tokens=NEW_TOKENS, **params)
    while rig.step():
        pass
    assert len(rig.ends) == sum(params.get("n", 1) for _, params in REQUESTS)
    return recorder.steps


def replay(runner: Runner[Any], limits: ExecutorLimits, steps: list[RecordedStep]) -> Iterator[IntArray]:
    """The tokens that `runner` gives for each step."""
    for step in steps:
        yield runner.run(harness.through_the_wire(step.plan, limits))
