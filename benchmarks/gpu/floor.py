"""The least time of bench_gpu.py's workload on a GPU: its steps as the scheduler plans them, and the roofline.

    python benchmarks gpu.floor

The scheduler plans all 256 requests for an executor with the default limits, and a stand-in that answers at once takes
the plans, so the steps are those of a run of `bench_gpu.py`, without a GPU. `docs/gpu.md` has the figures, and a test
holds them to these. What `rig/roofline.py` leaves out makes a real run slower than the floor.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rig.ceilings import Ceilings
from benchmarks.rig.checkpoints import DTYPE, SHAPES
from benchmarks.rig.in_process import InProcess
from benchmarks.rig.roofline import WorkModel, least_time, total_work
from benchmarks.rig.service_load import make_requests, pool_positions, submits
from benchmarks.rig.step_records import RecordedRunner, RecordedStep, Recorder
from benchmarks.rig.workloads import WorkloadRequest
from common.plan import ExecutorLimits, PlanColumns
from common.step_result import ResultColumns
from executor_svc.model.families import read_config
from scheduler_svc.core.scheduling.config import SchedulerConfig

CEILINGS = {"H200": Ceilings(copy=4.3e12, matmul=780e12), "H100": Ceilings(copy=3.0e12, matmul=798e12)}
"""Measured on one machine of each: a copy on the device, and an 8192 x 8192 x 8192 product of random bfloat16 numbers
(769 to 798 TFLOP/s on several H200; between 770 and 800 the floor's rate changes by 0.2%)."""
BLOCK_SIZE, MAX_NUM_SEQS, MAX_BATCH_TOKENS = 256, 256, 8192  # an executor's defaults with flash-attn


class AnswersAtOnce:
    """In the place of a runner: each sampling row draws token 0."""

    def launch(self, columns: PlanColumns) -> "Zeros":
        """See `Runner.launch`."""
        return Zeros(len(columns.sample_rows))


@dataclass(frozen=True)
class Zeros:
    """Tokens that are there already."""

    count: int

    def wait(self) -> ResultColumns:
        """See `PendingStep.wait`."""
        return ResultColumns.of_tokens(np.zeros(self.count, np.int32))


@dataclass(frozen=True)
class Floor:
    """What a workload moves and how long that takes at least.

    Attributes:
        steps, mixed_steps: all steps, and those that compute a part of a prompt.
        weight_tb, kv_read_tb, kv_written_tb: bytes moved, in units of 1e12.
        pflop: operations, in units of 1e15.
        least_s: seconds, by GPU.
        tok_s: output tokens a second that this makes, by GPU: no executor reaches them.
    """

    output_tokens: int
    steps: int
    mixed_steps: int
    weight_tb: float
    kv_read_tb: float
    kv_written_tb: float
    pflop: float
    least_s: dict[str, float]
    tok_s: dict[str, float]


def planned_steps(requests: Sequence[WorkloadRequest], vocab_size: int, max_model_len: int) -> list[RecordedStep]:
    """The steps of all requests, when all arrive at once and no prefix is cached."""
    limits = ExecutorLimits(
        num_blocks=pool_positions(requests) // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_batch_tokens=MAX_BATCH_TOKENS,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        hidden_size=4,
    )
    recorder = Recorder()
    runner: Any = AnswersAtOnce()
    config = SchedulerConfig(max_waiting=len(requests))
    InProcess(RecordedRunner(runner, recorder), recorder, limits, config).run(submits(requests, "floor"))
    return recorder.steps


def floor_of(shape: str, requests: Sequence[WorkloadRequest]) -> Floor:
    """The floor of some requests to a model of a shape in `SHAPES`, in bfloat16."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPES[shape].config()))
        config = read_config(Path(folder))
    model = WorkModel(config, DTYPE.itemsize)
    steps = planned_steps(requests, config.vocab_size, config.max_positions)
    works = [model.work(step) for step in steps]
    total = total_work(works)
    tokens = sum(request.num_output for request in requests)
    least_s = {gpu: least_time(works, ceilings, 1) for gpu, ceilings in CEILINGS.items()}
    return Floor(
        output_tokens=tokens,
        steps=len(steps),
        mixed_steps=sum(not step.is_decode for step in steps),
        weight_tb=total.weight_bytes / 1e12,
        kv_read_tb=total.kv_bytes_read / 1e12,
        kv_written_tb=total.kv_bytes_written / 1e12,
        pflop=total.operations / 1e15,
        least_s=least_s,
        tok_s={gpu: tokens / seconds for gpu, seconds in least_s.items()},
    )


def main() -> None:
    """Print the floor of 0.6B as JSON."""
    print(json.dumps(asdict(floor_of("0.6B", make_requests(256)))))


if __name__ == "__main__":
    main()
