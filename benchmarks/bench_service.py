"""Both services on this machine under `baton bench`'s load: one JSON line with throughput and latencies.

Starts a scheduler and executors on free ports, waits until they are ready, runs the client's benchmark and stops
them. Example: python benchmarks/bench_service.py --num-seqs 64 --max-prompt 256 --max-output 128
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from scheduler_svc.client.processes import FleetSpec, LocalFleet, free_ports


@click.command(context_settings={"show_default": True})
@click.option("--model", help="Folder or hub id.  [default: the embedded demo model]")
@click.option("--executors", default=1, help="How many to start.")
@click.option("--num-seqs", default=64, help="Requests.")
@click.option("--max-prompt", default=256, help="Prompts have 100 to this many tokens.")
@click.option("--max-output", default=256, help="Answers have 100 to this many tokens.")
@click.option(
    "--executor-option", "executor_options", multiple=True, help="Passed on, e.g. --executor-option=--threads=1"
)
def main(
    model: str | None,
    executors: int,
    num_seqs: int,
    max_prompt: int,
    max_output: int,
    executor_options: tuple[str, ...],
) -> None:
    """Measure a service that this command starts and stops."""
    port, executor_port = free_ports(2)
    spec = FleetSpec(
        model, port=port, executor_port=executor_port, executors=executors, executor_options=executor_options
    )
    sizes = {"--num-seqs": num_seqs, "--max-prompt": max_prompt, "--max-output": max_output}
    arguments = [str(part) for pair in sizes.items() for part in pair]
    with tempfile.TemporaryDirectory() as log_dir, LocalFleet(spec, Path(log_dir)) as fleet:
        fleet.wait_ready()
        command = [sys.executable, "-m", "scheduler_svc.client.cli", "bench", "--url", spec.url, "--json", *arguments]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    print(json.dumps({"model": model or "demo", "executors": executors, **sizes_of(sizes), **result}))


def sizes_of(sizes: dict[str, int]) -> dict[str, int]:
    """Option names as JSON keys."""
    return {name.strip("-").replace("-", "_"): value for name, value in sizes.items()}


if __name__ == "__main__":
    main()
