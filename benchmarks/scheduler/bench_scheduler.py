"""The real scheduler and the real codec with executors that answer at once: what a step costs, what is computed twice,
and (in virtual time) what clients see. Prints one JSON line.

    python benchmarks/bench_scheduler.py --workload nano --case B --block-size 16 --window 2
    python benchmarks/bench_scheduler.py --workload azure --trace azure_llm_trace_conv_2023.csv --num-seqs 2000
    python benchmarks/bench_scheduler.py --workload mooncake --trace trace.jsonl --executors 4
    python benchmarks/bench_scheduler.py --workload sessions --trace azure_llm_trace_conv_2023.csv \
        --executors 4 --placement round-robin
    python benchmarks/bench_scheduler.py --workload edges --case stop-strings --no-look-ahead

`timed_simulation.py` says what is timed, and how virtual time advances.
"""

import gc
import json
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from benchmarks.rig import edge_workloads, workloads
from benchmarks.rig.workloads import WorkloadRequest
from benchmarks.scheduler.timed_simulation import VOCAB_SIZE, TimedSimulation
from common.plan import ExecutorLimits
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.placement import Room, place
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence

MANY_ROWS = 200  # decode-only steps of at least this many rows count for us_decode_step_p50
SHARED_PREFIX = 512
SCARCE = 0.6  # case B's memory, as a share of the peak
NANO_CASES = ("A", "B", "C")


def in_turn(sequence: Sequence, room: Room, avoid: str = "") -> ExecutorState:
    """A placement to compare with ours: sequences go to executors in turn, without regard to what is cached there."""
    return room.able[sequence.arrival % len(room.able)]


@dataclass(frozen=True)
class Setup:
    """The scheduler's and the executors' settings."""

    block_size: int
    window: int
    executors: int
    max_batch_tokens: int
    max_num_seqs: int
    placement: str
    look_ahead: bool
    kv_events: bool

    def simulate(self, requests: list[WorkloadRequest], num_blocks: int | None) -> TimedSimulation:
        """Run the requests through executors with `num_blocks` each; None is as many as the requests could ever use."""
        ample = sum(-(-(len(r.prompt) + r.num_output) // self.block_size) + 1 for r in requests)
        num_blocks = num_blocks or ample
        room = num_blocks * self.block_size
        requests = [replace(r, max_tokens=min(r.max_tokens, room - len(r.prompt))) for r in requests]
        longest = max(len(r.prompt) + max(r.num_output, r.max_tokens) for r in requests)
        limits = ExecutorLimits(
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_batch_tokens=self.max_batch_tokens,
            max_model_len=longest,
            vocab_size=VOCAB_SIZE,
            hidden_size=4,
        )
        config = SchedulerConfig(
            window=self.window,
            max_waiting=len(requests),
            look_ahead=self.look_ahead,
            announced_salt="" if self.kv_events else None,
        )
        scheduler = Scheduler(config, placement=in_turn if self.placement == "round-robin" else place)
        simulation = TimedSimulation(scheduler, limits, self.executors, requests)
        gc.collect()
        simulation.run()
        return simulation


def percentile(values: list[float], percent: float) -> float:
    """Nearest rank; 0 for no values."""
    return float(np.percentile(values, percent)) if values else 0.0


def summary(simulation: TimedSimulation, wall_s: float, cpu_s: float) -> dict[str, object]:
    """The figures of one run."""
    timings, latencies, stats = simulation.timings, simulation.latencies, simulation.scheduler.stats
    steps_us = timings.steps_us()
    decode_us = [
        us
        for us, rows, is_decode in zip(steps_us, timings.rows, timings.is_decode, strict=True)
        if is_decode and rows >= MANY_ROWS
    ]
    return {
        "steps": len(steps_us),
        "wall_s": round(wall_s, 3),
        "cpu_s": round(cpu_s, 3),
        "us_step_p50": round(percentile(steps_us, 50), 1),
        "us_step_p99": round(percentile(steps_us, 99), 1),
        "us_decode_step_p50": round(percentile(decode_us, 50), 1) if decode_us else None,
        **{
            f"us_{part}_p50": round(1e6 * statistics.median(getattr(timings, part)), 1)
            for part in ("plan", "encode", "decode", "commit")
        },
        "mean_running": round(statistics.fmean(timings.rows), 2),
        "preemptions": stats.preemptions,
        "recomputed_tokens": stats.recomputed_tokens,
        "hit_tokens": stats.cached_prompt_tokens + stats.cached_resumed_tokens,
        "prefill_tokens_computed": stats.prefill_tokens,
        "decode_tokens_computed": stats.decode_tokens,
        "prompt_tokens": stats.prompt_tokens,
        "output_tokens": stats.output_tokens,
        "peak_blocks": simulation.peak_blocks,
        "peak_tokens": simulation.peak_tokens,
        "plan_bytes_p50": int(statistics.median(timings.plan_bytes)),
        "virtual_s": round(simulation.now, 3),
        "virtual_output_tok_s": round(stats.output_tokens / simulation.now, 1),
        **{f"virtual_ttft_ms_p{p}": round(1e3 * percentile(latencies.first_token, p), 2) for p in (50, 90, 99)},
        **{f"virtual_itl_ms_p{p}": round(1e3 * percentile(latencies.gaps, p), 3) for p in (50, 90, 99)},
    }


@click.command(context_settings={"show_default": True})
@click.option("--workload", type=click.Choice(["nano", "edges", "azure", "mooncake", "sessions"]), default="nano")
@click.option(
    "--case",
    type=click.Choice([*NANO_CASES, *edge_workloads.CASES]),
    help="nano: ample memory, 60%, shared prefix; edges: how answers end.  [default: A for nano]",
)
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="azure, mooncake: the file."
)
@click.option("--speed-up", default=1.0, help="How many times faster a trace's requests arrive.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help="A trace's requests ask for so many tokens and end by a stop token.  [default: what they get]",
)
@click.option("--num-seqs", type=click.IntRange(1), help="Requests.  [default: 256 for nano, the whole trace]")
@click.option("--block-size", default=16, help="Tokens in a block.")
@click.option(
    "--num-blocks", type=click.IntRange(1), help="Each executor's pool.  [default: what the case says, or ample]"
)
@click.option("--window", default=2, help="Plans in flight to one executor.")
@click.option("--executors", default=1, help="How many.")
@click.option("--max-batch-tokens", default=16384, help="Token budget of a plan.")
@click.option("--max-num-seqs", default=512, help="Sequences that run at once on one executor.")
@click.option("--placement", type=click.Choice(["cache", "round-robin"]), default="cache")
@click.option("--look-ahead/--no-look-ahead", default=True, help="Whether admission forecasts memory.")
@click.option("--kv-events", is_flag=True, help="Count what routers are told, and encode it, in the time of a commit.")
def main(
    workload: str,
    case: str | None,
    trace: Path | None,
    speed_up: float,
    max_tokens: int | None,
    num_seqs: int | None,
    block_size: int,
    num_blocks: int | None,
    window: int,
    executors: int,
    max_batch_tokens: int,
    max_num_seqs: int,
    placement: str,
    look_ahead: bool,
    kv_events: bool,
) -> None:
    """Measure the scheduler on a workload."""
    setup = Setup(block_size, window, executors, max_batch_tokens, max_num_seqs, placement, look_ahead, kv_events)
    what: dict[str, object] = {"workload": workload}
    match workload:
        case "nano":
            case = case or "A"
            if case not in NANO_CASES:
                raise click.UsageError(f"--workload nano has the cases {', '.join(NANO_CASES)}")
            requests = workloads.nano(num_seqs or 256, SHARED_PREFIX if case == "C" else 0)
            if case == "B" and num_blocks is None:
                num_blocks = int(SCARCE * setup.simulate(requests, None).peak_tokens) // block_size
            what["case"] = case
        case "edges":
            if case not in edge_workloads.CASES:
                raise click.UsageError(f"--workload edges needs --case: {', '.join(edge_workloads.CASES)}")
            edge = edge_workloads.CASES[case]()
            requests, num_blocks = edge.requests[:num_seqs], num_blocks or edge.num_tokens // block_size
            what["case"] = case
        case _:
            if trace is None:
                raise click.UsageError(f"--workload {workload} needs --trace")
            requests = getattr(workloads, workload)(trace, num_seqs)
            requests = [replace(r, arrival_s=r.arrival_s / speed_up) for r in requests]
            if max_tokens is not None:
                requests = [replace(r, max_tokens=max(max_tokens, r.num_output), ends_by="stop") for r in requests]
            what |= {"speed_up": speed_up, "max_tokens": max_tokens}
    wall, cpu = time.perf_counter(), time.process_time()
    simulation = setup.simulate(requests, num_blocks)
    figures = summary(simulation, time.perf_counter() - wall, time.process_time() - cpu)
    print(json.dumps({**what, "num_seqs": len(requests), **vars(setup), "num_blocks": num_blocks, **figures}))


if __name__ == "__main__":
    main()
