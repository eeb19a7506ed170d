"""Both services on this machine under `baton bench`'s load: one JSON line with throughput and latencies.

The benchmark starts a scheduler and executors on free ports, waits until they are ready, runs the client's benchmark
and stops them. With `--versus` a second pair of services with other scheduler options takes turns with the first pair,
and a last line has the median of the ratios.

Examples:
  python benchmarks/bench_service.py --num-seqs 64 --max-prompt 256 --max-output 128
  python benchmarks/bench_service.py --versus=--no-journal --repeats 5        what the journal costs
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports


@click.command(context_settings={"show_default": True})
@click.option("--model", help="Folder or hub id.  [default: the embedded demo model]")
@click.option("--executors", default=1, help="How many to start.")
@click.option("--num-seqs", default=64, help="Requests.")
@click.option("--max-prompt", default=256, help="Prompts have 100 to this many tokens.")
@click.option("--max-output", default=256, help="Answers have 100 to this many tokens.")
@click.option(
    "--executor-option",
    "executor_options",
    multiple=True,
    help="An option of the executors, e.g. --executor-option=--threads=1",
)
@click.option("--scheduler-option", "scheduler_options", multiple=True, help="An option of the scheduler.")
@click.option("--versus", multiple=True, help="An option of the scheduler of the other side of a comparison.")
@click.option("--repeats", default=1, type=click.IntRange(1), help="Runs of each side.")
def main(
    model: str | None,
    executors: int,
    num_seqs: int,
    max_prompt: int,
    max_output: int,
    executor_options: tuple[str, ...],
    scheduler_options: tuple[str, ...],
    versus: tuple[str, ...],
    repeats: int,
) -> None:
    """Measure both services, which this command starts and stops."""
    spec = FleetSpec(model, executors=executors, executor_options=executor_options)
    sizes = {"--num-seqs": num_seqs, "--max-prompt": max_prompt, "--max-output": max_output}
    sides = [scheduler_options, versus] if versus else [scheduler_options]
    ratios = []
    for i in range(repeats):
        order = sides if i % 2 == 0 else sides[::-1]  # a machine that becomes slower with time slows both sides
        results = {options: run(replace(spec, scheduler_options=options), sizes) for options in order}
        for options in sides:
            about = {"model": model or "demo", "executors": executors, "scheduler_options": " ".join(options)}
            print(json.dumps({**about, **sizes_of(sizes), **results[options]}), flush=True)
        if versus:
            mine, theirs = (results[options]["output_tokens_per_s"] for options in sides)
            ratios.append(mine / theirs)
    if ratios:
        print(json.dumps({"output_tokens_per_s_ratio_median": round(median(ratios), 4), "runs": len(ratios)}))


def run(spec: FleetSpec, sizes: dict[str, int]) -> dict[str, Any]:
    """One run of `baton bench` against services that it has for itself."""
    port, executor_port = free_ports(2)
    arguments = [str(part) for pair in sizes.items() for part in pair]
    with tempfile.TemporaryDirectory() as folder:
        journal = () if "--no-journal" in spec.scheduler_options else ("--journal", f"{folder}/journal.sqlite3")
        options = (*spec.scheduler_options, *journal)
        spec = replace(spec, port=port, executor_port=executor_port, scheduler_options=options)
        with LocalFleet(spec, Path(folder)) as fleet:
            fleet.wait_ready()
            command = [sys.executable, "-m", "scheduler_svc.client.cli", "bench", "--url", spec.url, "--json"]
            result: dict[str, Any] = json.loads(
                subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE).stdout
            )
    return result


def sizes_of(sizes: dict[str, int]) -> dict[str, int]:
    """Option names as JSON keys."""
    return {name.strip("-").replace("-", "_"): value for name, value in sizes.items()}


if __name__ == "__main__":
    main()
