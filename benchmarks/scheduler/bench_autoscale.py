"""Executor hours and times to the first token: a fixed fleet, KEDA's usual rule, and what the scheduler itself wants.

    python benchmarks/bench_autoscale.py --trace ../shared/data/azure_llm_trace_conv_2023.csv
    python benchmarks/bench_autoscale.py --trace ... --start 20 --rule ours --rule keda-open:40 --log
    python benchmarks/bench_autoscale.py --steady 3 --seed 1 --rule ours

The real core in virtual time (`fleet_simulation.py` has the model of an executor, `scaling_rules.py` the rules). All
rules get the same requests. Those of a trace keep its own bursts: its rate is multiplied by a factor that goes from
`--low` to `--high` and back like a day (`--days` of them). Others come at random at a rate that stays (`--steady`).
Prints a JSON line for each rule.

It is easier here than in a service: a step takes what the model says; a start takes what Hello says, each time; and
Azure's trace has neither long prompts (the longest has 14,050 tokens, the next 7,930) nor batches (at most 19 requests
in one of its seconds).
"""

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from benchmarks.rig import workloads
from benchmarks.rig.machine import processor
from benchmarks.rig.workloads import WorkloadRequest
from benchmarks.scheduler.fleet_simulation import FleetSimulation
from benchmarks.scheduler.scaling_rules import METRICS, Fixed, Keda, Ours, OursByKeda, Rule
from scheduler_svc.core.autoscaling.settings import ScaleSettings
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.scheduling.config import SchedulerConfig

STEADY_S = 2400.0
STEADY_PROMPT, STEADY_OUTPUT = (300, 900), (100, 300)  # tokens
FLAP_S = 300.0  # an up so soon after a down is a flap
MAX_TOKENS = 1024  # that requests ask for: the trace's longest answer has 1,000
RULES = (
    *("fixed:4", "fixed:6", "fixed:8", "keda-waiting:1", "keda-waiting:5"),
    *("keda-open:35", "keda-open:45", "keda-open:60", "ours", "ours-by-keda"),
)
OURS: dict[str, type[Ours | OursByKeda]] = {"ours": Ours, "ours-by-keda": OursByKeda}


def warped(requests: list[WorkloadRequest], low: float, high: float, days: int) -> list[WorkloadRequest]:
    """The requests in other seconds: the trace runs `low` times as fast as recorded at a day's ends, and `high` times
    at noon. The factor is a function of the trace's own time."""
    length_s = requests[-1].arrival_s
    at = np.linspace(0.0, length_s, 20_000)
    factor = low + (high - low) * (1 - np.cos(2 * math.pi * days * at / length_s)) / 2
    ours = np.concatenate([[0.0], np.cumsum(np.diff(at) / factor[1:])])
    return [
        replace(r, arrival_s=float(t), max_tokens=MAX_TOKENS)
        for r, t in zip(requests, np.interp([r.arrival_s for r in requests], at, ours), strict=True)
    ]


def steady(rate: float, seed: int) -> list[WorkloadRequest]:
    """Return requests whose sizes and times are random, and whose rate stays what it is."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, int(2 * rate * STEADY_S)))
    requests = []
    for at in times[times < STEADY_S].tolist():
        prompt = rng.integers(0, workloads.MAX_TOKEN_ID + 1, rng.integers(*STEADY_PROMPT), np.int32)
        requests.append(WorkloadRequest(at, prompt, int(rng.integers(*STEADY_OUTPUT)), MAX_TOKENS, "stop"))
    return requests


def rule_of(name: str, least: int, most: int) -> Rule:
    """The rule of a name such as `fixed:4`, `keda-waiting:5`, `ours` or `ours-by-keda`."""
    kind, _, number = name.partition(":")
    if kind == "fixed":
        return Fixed(int(number))
    if kind in OURS:
        return OURS[kind]()
    return Keda(METRICS[kind.removeprefix("keda-")], float(number), least, most)


def figures(simulation: FleetSimulation, target_s: float) -> dict[str, object]:
    """What one rule has brought."""
    first = np.array(simulation.seen.first_token)
    sizes = [size for _, size in simulation.seen.sizes]
    ups, downs, flaps, before, down_at = 0, 0, 0, None, float("-inf")
    for at, wanted in simulation.seen.changes:
        if before is None or wanted > before:
            ups += 1
            flaps += at - down_at < FLAP_S
        else:
            downs += 1
            down_at = at
        before = wanted
    return {
        "executor_hours": round(simulation.executor_hours(), 3),
        "ttft_p50_s": round(float(np.percentile(first, 50)), 3),
        "ttft_p99_s": round(float(np.percentile(first, 99)), 3),
        "within_target": round(float((first <= target_s).mean()), 4),
        "ups": ups,
        "downs": downs,
        "flaps": flaps,
        "executors_most": max(sizes),
        "executors_least": min(sizes),
        "resumed": simulation.core.scheduler.stats.resumed,
    }


@click.command(context_settings={"show_default": True})
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--steady", "rate", type=click.FloatRange(0.01), help="Requests a second, at random, and no trace.")
@click.option("--seed", default=1, help="Of these.")
@click.option("--num-seqs", type=click.IntRange(2), help="Requests of the trace.  [default: all]")
@click.option("--low", default=0.4, help="The least factor of the trace's rate.")
@click.option("--high", default=2.2, help="The greatest.")
@click.option("--days", default=1, type=click.IntRange(1), help="How often it goes up and down.")
@click.option("--start", "starts", multiple=True, type=float, default=(60.0,), help="Seconds that a start takes.")
@click.option(
    "--rule", "rules", multiple=True, default=RULES, help="fixed:N, keda-waiting:N, keda-open:N, ours, ours-by-keda."
)
@click.option("--target", default=2.0, help="Seconds to the first token.")
@click.option("--min-executors", default=1)
@click.option("--max-executors", default=8)
@click.option("--log", is_flag=True, help="Also what our rule decided, and when.")
def main(
    trace: Path | None,
    rate: float | None,
    seed: int,
    num_seqs: int | None,
    low: float,
    high: float,
    days: int,
    starts: tuple[float, ...],
    rules: tuple[str, ...],
    target: float,
    min_executors: int,
    max_executors: int,
    log: bool,
) -> None:
    """Compare rules that size a fleet."""
    load: dict[str, object]
    if trace is not None and rate is None:
        requests = warped(workloads.azure(trace, num_seqs), low, high, days)
        load = {"low": low, "high": high, "days": days}
    elif rate is not None and trace is None:
        requests, load = steady(rate, seed), {"steady": rate, "seed": seed}
    else:
        raise click.UsageError("either --trace or --steady says what comes")
    what = {"processor": processor(), "requests": len(requests), "seconds": round(requests[-1].arrival_s)}
    print(json.dumps({**what, **load, "target_s": target}))
    scale = ScaleSettings(min_executors, max_executors, target)
    for start_s in starts:
        for name in rules:
            config = CoreConfig(
                scheduler=SchedulerConfig(max_waiting=len(requests)), scale=scale if name in OURS else None
            )
            began = time.perf_counter()
            size = int(name.partition(":")[2]) if name.startswith("fixed") else min_executors
            rule = rule_of(name, min_executors, max_executors)
            simulation = FleetSimulation(config, rule, requests, start_s=start_s, size=size)
            simulation.run()
            took = {"wall_s": round(time.perf_counter() - began, 1)}
            print(json.dumps({"rule": name, "start_s": start_s, **figures(simulation, target), **took}), flush=True)
            if log:
                for at, facts in simulation.seen.log:
                    print(json.dumps({"at_s": round(at), **facts}))


if __name__ == "__main__":
    main()
