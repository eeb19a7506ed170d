"""What the executor does on the pretended GPU at the shape of Qwen3-0.6B, in JSON lines, one for each set of kernels.

    make report-dry-gpu

Graphs and what was captured in them; launches, copies and waits of decode steps and of mixed ones of 1,054 and 2,854
tokens at 256 rows (the mixed ones also kernel by kernel, as larger steps run); hazards; and the host's time for a step:
from a plan's columns to the end of `launch`. That is this machine's time, and includes what the stand-ins take, which
is less than CUDA's own libraries do.
"""

import itertools
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.rig.checkpoints import SHAPES, write_checkpoint
from common import messages as m
from common.plan import ExecutorLimits, PlanColumns, parse_plan
from executor_svc.options import ExecutorOptions
from executor_svc.runner.runner import Runner
from executor_svc.startup import start_executor
from tests.executor_svc.harness import Row, make_plan
from tests.rig import build
from tests.rig.drive import random_plans, serve
from tests.rig.stand_in import StandIn

ROWS = 256
MEASURED_STEPS = 200
CHECKED_STEPS = 400
SAMPLING = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
COUNTED = ("triton_launch", "product", "kernel", "graph_launch", "copy_to_device", "copy_to_host", "memset")


def main() -> None:
    """Print the report."""
    torch.cuda.init()
    rig = StandIn(build.libraries() / "librig.so")
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), SHAPES["0.6B"])
        for attention in sys.argv[1:] or ["triton", "flash_attn"]:
            print(json.dumps(report(rig, folder, attention)), flush=True)


def report(rig: StandIn, folder: str, attention: str) -> dict[str, Any]:
    """One line."""
    before = rig.counts()
    options = ExecutorOptions(model=folder, device="cuda", attention=attention, max_model_len=4096)
    executor = start_executor(options)
    runner, hello = executor.runner, executor.hello
    limits = ExecutorLimits.of(hello)
    started = difference(rig.counts(), before)
    rig.take_hazards()
    with rig.schedule("random"), rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), CHECKED_STEPS, window=3)
    hazards = rig.take_hazards()
    rig.set("checking", 0)
    kinds = {
        "decode": decode_plans(limits),
        "decode_constrained": constrained_plans(limits),
        "decode_constrained_changing": constrained_plans(limits, num_started=4),
        "mixed": mixed_plans(limits),
        "mixed_large": mixed_plans(limits, 1400),
    }
    found = {kind: measured(rig, runner, plans) for kind, plans in kinds.items()}
    runner._token_sizes = runner._token_sizes[:0]
    found["mixed_without_graphs"] = measured(rig, runner, mixed_plans(limits))
    found["mixed_large_without_graphs"] = measured(rig, runner, mixed_plans(limits, 1400))
    return {
        "attention": attention,
        "cpu": processor(),
        "torch": torch.__version__,
        "graphs": started["capture"],
        "captured": {name: started.get(f"captured_{name}", 0) for name in ("kernel", "copy", "memset")},
        "kernels_loaded": started["module_loaded"],
        "steps_checked": CHECKED_STEPS,
        "hazards": hazards,
        **found,
    }


def measured(rig: StandIn, runner: Runner[Any], plans: Iterator[PlanColumns]) -> dict[str, Any]:
    """Calls of a step, and medians of the host's microseconds, two steps in flight: those that pass, and those for
    which the thread that launches has a processor. Other work on the machine adds to the first."""
    first, second, *columns = [next(plans) for _ in range(MEASURED_STEPS + 2)]
    in_flight = deque([runner.launch(first), runner.launch(second)])
    before, host_us, cpu_us = rig.counts(), [], []
    for each in columns:
        start, cpu_start = time.perf_counter(), time.thread_time()
        in_flight.append(runner.launch(each))
        cpu_us.append(1e6 * (time.thread_time() - cpu_start))
        host_us.append(1e6 * (time.perf_counter() - start))
        in_flight.popleft().wait()
    calls = difference(rig.counts(), before)
    for pending in in_flight:
        pending.wait()
    quantiles = statistics.quantiles(host_us, n=10)
    return {
        "host_us": round(statistics.median(host_us)),
        "host_us_p90": round(quantiles[-1]),
        "host_cpu_us": round(statistics.median(cpu_us)),
        "calls": {name: round(calls.get(name, 0) / len(columns), 1) for name in COUNTED},
    }


def decode_plans(limits: ExecutorLimits) -> Iterator[PlanColumns]:
    """One token for each of `ROWS` sequences, of 256 to 1,500 positions."""
    rng = random.Random(2)
    while True:
        yield plan([row(lane, 1, rng.randint(256, 1500), limits) for lane in range(ROWS)], limits)


def constrained_plans(limits: ExecutorLimits, num_started: int = 0) -> Iterator[PlanColumns]:
    """As `decode_plans`; each row has penalties, ten biases and a list of allowed tokens, and comes with 5 + 1
    log-probabilities. The first plan starts the lanes, and each later one so many of them anew, in turn."""
    rng = random.Random(2)
    asked = m.Constraints(
        presence_penalty=0.5,
        frequency_penalty=0.5,
        bias_token_ids=np.arange(10, dtype="<i4").tobytes(),
        biases=np.ones(10, "<f4").tobytes(),
        allowed_token_ids=np.arange(1000, dtype="<i4").tobytes(),
    )
    lengths = [rng.randint(256, 1500) for _ in range(ROWS)]
    for step in itertools.count():
        rows = [row(lane, 1, length + step, limits) for lane, length in enumerate(lengths)]
        starts = [
            m.LaneStart(lane=each.lane, num_prompt=1, tokens=bytes(4 * each.context_len), constraints=asked)
            for each in (rows[step * num_started % ROWS :][:num_started] if step else rows)
        ]
        made = msgspec.structs.replace(
            make_plan(rows, limits.block_size),
            constrained=np.arange(ROWS, dtype="<i4").tobytes(),
            lane_starts=tuple(starts),
            logprob_counts=np.full(ROWS, 6, "<i4").tobytes(),
        )
        yield parse_plan(made, limits)


def mixed_plans(limits: ExecutorLimits, longer: int = 500) -> Iterator[PlanColumns]:
    """As `decode_plans`, with prompts of two rows: of `longer` tokens, and of as many less 200 after 1,000 others."""
    rng = random.Random(2)
    while True:
        rows = [row(lane, 1, rng.randint(256, 1500), limits) for lane in range(ROWS - 2)]
        shorter = longer - 200
        prompts = [row(ROWS - 2, longer, longer, limits), row(ROWS - 1, shorter, 1000 + shorter, limits)]
        yield plan([*rows, *prompts], limits)


def row(lane: int, queries: int, context_len: int, limits: ExecutorLimits) -> Row:
    blocks = [(lane * 97 + block) % limits.num_blocks for block in range(-(-context_len // limits.block_size))]
    return Row(lane, [-1] if queries == 1 else [5] * queries, context_len, blocks, seed=lane, **SAMPLING)


def plan(rows: Sequence[Row], limits: ExecutorLimits) -> PlanColumns:
    return parse_plan(make_plan(list(rows), limits.block_size), limits)


def difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: number - before.get(name, 0) for name, number in after.items()}


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


if __name__ == "__main__":
    main()
