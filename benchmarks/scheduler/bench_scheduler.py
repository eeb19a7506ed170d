"""The real scheduler and the real codec with executors that answer at once: what a step costs, what is computed twice,
and (in virtual time) what clients see. Prints one JSON line.

    python benchmarks/bench_scheduler.py --workload nano --case B --block-size 16 --window 2
    python benchmarks/bench_scheduler.py --workload azure --trace azure_llm_trace_conv_2023.csv --num-seqs 2000
    python benchmarks/bench_scheduler.py --workload mooncake --trace trace.jsonl --executors 4
    python benchmarks/bench_scheduler.py --workload sessions --trace azure_llm_trace_conv_2023.csv \
        --executors 4 --placement round-robin

Only `plan`, encoding it, decoding the answer and `commit` are timed. Virtual time advances by a cost model of one
executor, roughly Qwen3-0.6B on an H200: a step takes 1 ms, 3 us for each token it computes and 29 ns for each token
of context that a decode row reads (114,688 bytes of KV at 4 TB/s).
"""

import gc
import heapq
import itertools
import json
import statistics
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import numpy as np

from benchmarks.rig import workloads
from benchmarks.rig.workloads import WorkloadRequest
from common import messages as m
from common.plan import ExecutorLimits
from common.wire import Codec
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.placement import place
from scheduler_svc.core.scheduling.scheduler import Scheduler, SchedulerConfig
from scheduler_svc.core.sequence import Sequence

STEP_S, TOKEN_S, CONTEXT_TOKEN_S = 1e-3, 3e-6, 29e-9
MANY_ROWS = 200  # decode-only steps of at least this many rows count for us_decode_step_p50
VOCAB_SIZE = workloads.MAX_TOKEN_ID + 1
SHARED_PREFIX = 512
SCARCE = 0.6  # case B's memory, as a share of the peak


def in_turn(sequence: Sequence, executors: list[ExecutorState]) -> ExecutorState | None:
    """A placement to compare with ours: sequences go to executors in turn, without regard to what is cached there."""
    candidates = [e for e in executors if not e.intake.is_leaving and e.can_hold(sequence)]
    return candidates[sequence.arrival % len(candidates)] if candidates else None


@dataclass
class Timings:
    """Seconds of each step's parts, its rows, and whether it was a decode step."""

    plan: list[float] = field(default_factory=list)
    encode: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    is_decode: list[bool] = field(default_factory=list)
    plan_bytes: list[int] = field(default_factory=list)

    def steps_us(self) -> list[float]:
        """Each step as a whole, in microseconds."""
        return [1e6 * sum(parts) for parts in zip(self.plan, self.encode, self.decode, self.commit, strict=True)]


@dataclass
class Latencies:
    """What clients see, in virtual seconds."""

    first_token: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    last: dict[Sequence, float] = field(default_factory=dict)


class TimedSimulation:
    """Requests arrive, executors compute as the cost model says, the scheduler does its real work."""

    def __init__(
        self, scheduler: Scheduler, limits: ExecutorLimits, executors: int, requests: list[WorkloadRequest]
    ) -> None:
        self.scheduler = scheduler
        self.requests = requests
        self.timings = Timings()
        self.latencies = Latencies()
        self.now = 0.0
        self.peak_tokens = 0
        self.peak_blocks = 0
        self._arrived: dict[Sequence, float] = {}
        self._to_executor: Codec[m.ExecutorToScheduler] = Codec(m.ExecutorToScheduler)
        self._to_scheduler: Codec[m.SchedulerToExecutor] = Codec(m.SchedulerToExecutor)
        self._free_at = dict.fromkeys(range(1, executors + 1), 0.0)
        self._landing: list[tuple[float, int, int, list[bytes]]] = []
        self._order = itertools.count()
        self._rng = np.random.default_rng(1)
        for epoch in self._free_at:
            scheduler.add_executor(Membership(epoch, "", "", limits))

    def run(self) -> None:
        """Simulate until every request has ended."""
        coming = deque(enumerate(self.requests))
        while coming or self._landing:
            if coming and (not self._landing or coming[0][1].arrival_s <= self._landing[0][0]):
                self.now = max(self.now, coming[0][1].arrival_s)
                while coming and coming[0][1].arrival_s <= self.now:
                    self._submit(*coming.popleft())
            else:
                self._land()
            self._plan()

    def _submit(self, number: int, request: WorkloadRequest) -> None:
        params = m.SamplingParams(max_tokens=request.num_output, temperature=0.6, seed=number)
        submit = m.Submit(request_id=str(number), prompt=request.prompt.tobytes(), params=params)
        for sequence in self.scheduler.add(submit):
            self._arrived[sequence] = request.arrival_s

    def _plan(self) -> None:
        for epoch in self._free_at:
            while True:
                decoded, prefilled = self.scheduler.stats.decode_tokens, self.scheduler.stats.prefill_tokens
                t0 = time.perf_counter()
                plan = self.scheduler.plan(epoch)
                t1 = time.perf_counter()
                if plan is None:
                    break
                _, payload = self._to_executor.encode(plan)
                t2 = time.perf_counter()
                self.timings.plan.append(t1 - t0)
                self.timings.encode.append(t2 - t1)
                self.timings.plan_bytes.append(len(payload))
                num_decodes = self.scheduler.stats.decode_tokens - decoded
                num_prefill = self.scheduler.stats.prefill_tokens - prefilled
                self.timings.rows.append(len(plan.lanes) // 4)
                self.timings.is_decode.append(num_prefill == 0)
                context = int(np.frombuffer(plan.context_lens, np.int32)[:num_decodes].sum())
                self._compute(epoch, plan, STEP_S + (num_decodes + num_prefill) * TOKEN_S + context * CONTEXT_TOKEN_S)
        self._watch_memory()

    def _compute(self, epoch: int, plan: m.Plan, seconds: float) -> None:
        done = self._free_at[epoch] = max(self.now, self._free_at[epoch]) + seconds
        tokens = self._rng.integers(0, VOCAB_SIZE, len(plan.sample_rows) // 4, np.int32)
        result = m.StepResult(epoch=epoch, step=plan.step, token_ids=tokens.tobytes(), compute_us=int(seconds * 1e6))
        heapq.heappush(self._landing, (done, next(self._order), epoch, self._to_scheduler.encode(result)))

    def _land(self) -> None:
        self.now, _, _, frames = heapq.heappop(self._landing)
        t0 = time.perf_counter()
        result = self._to_executor.decode(frames)
        t1 = time.perf_counter()
        output = self.scheduler.commit(result)  # type: ignore[arg-type]
        t2 = time.perf_counter()
        self.timings.decode.append(t1 - t0)
        self.timings.commit.append(t2 - t1)
        seen = self.latencies
        for sequence in output.sequences:
            before = seen.last.get(sequence)
            if before is None:
                seen.first_token.append(self.now - self._arrived[sequence])
            else:
                seen.gaps.append(self.now - before)
            seen.last[sequence] = self.now
        for end in output.ends:
            del seen.last[end.sequence]

    def _watch_memory(self) -> None:
        tokens = blocks = 0
        for executor in self.scheduler.executors:
            tokens += int(executor.running.lanes.computed[executor.running.order].sum())
            blocks += executor.blocks.num_blocks - executor.blocks.num_free
        self.peak_tokens = max(self.peak_tokens, tokens)
        self.peak_blocks = max(self.peak_blocks, blocks)


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

    def simulate(self, requests: list[WorkloadRequest], num_blocks: int | None) -> TimedSimulation:
        """Run the requests through executors with `num_blocks` each; None is as many as the requests could ever use."""
        longest = max(len(request.prompt) + request.num_output for request in requests)
        ample = sum(-(-(len(r.prompt) + r.num_output) // self.block_size) + 1 for r in requests)
        limits = ExecutorLimits(
            num_blocks=num_blocks or ample,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_batch_tokens=self.max_batch_tokens,
            max_model_len=longest,
            vocab_size=VOCAB_SIZE,
        )
        config = SchedulerConfig(window=self.window, max_waiting=len(requests), look_ahead=self.look_ahead)
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
        "preemptions": stats.preemptions,
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
@click.option("--workload", type=click.Choice(["nano", "azure", "mooncake", "sessions"]), default="nano")
@click.option("--case", type=click.Choice(["A", "B", "C"]), default="A", help="nano: ample memory, 60%, shared prefix.")
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="azure, mooncake: the file."
)
@click.option("--speed-up", default=1.0, help="How many times faster a trace's requests arrive.")
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
def main(
    workload: str,
    case: str,
    trace: Path | None,
    speed_up: float,
    num_seqs: int | None,
    block_size: int,
    num_blocks: int | None,
    window: int,
    executors: int,
    max_batch_tokens: int,
    max_num_seqs: int,
    placement: str,
    look_ahead: bool,
) -> None:
    """Measure the scheduler on a workload."""
    setup = Setup(block_size, window, executors, max_batch_tokens, max_num_seqs, placement, look_ahead)
    if workload == "nano":
        requests = workloads.nano(num_seqs or 256, SHARED_PREFIX if case == "C" else 0)
        if case == "B" and num_blocks is None:
            num_blocks = int(SCARCE * setup.simulate(requests, None).peak_tokens) // block_size
    else:
        if trace is None:
            raise click.UsageError(f"--workload {workload} needs --trace")
        requests = [replace(r, arrival_s=r.arrival_s / speed_up) for r in getattr(workloads, workload)(trace, num_seqs)]
    wall, cpu = time.perf_counter(), time.process_time()
    simulation = setup.simulate(requests, num_blocks)
    figures = summary(simulation, time.perf_counter() - wall, time.process_time() - cpu)
    what = {"workload": workload, "case": case} if workload == "nano" else {"workload": workload, "speed_up": speed_up}
    print(json.dumps({**what, "num_seqs": len(requests), **vars(setup), "num_blocks": num_blocks, **figures}))


if __name__ == "__main__":
    main()
