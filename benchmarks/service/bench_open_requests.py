"""How much memory open requests take of the core and of a frontend.

A service on the embedded demo model has so many streams open that its executor runs 64 of them and the others wait. For
each length of a prompt a fresh service is started, its memory is read with the first number of streams, which warm it
up, and again with each larger number. One JSON line for each: the resident memory of both processes, and what each
further 1,000 requests have taken since the first number.

Example: python benchmarks/bench_open_requests.py --requests 500,1500,2500 --prompts 16,1000
"""

import asyncio
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import httpx

from benchmarks.rig.machine import processor
from benchmarks.service.bench_page import MIB, Sample, frontend_of, process
from benchmarks.service.endless_streams import EndlessStreams
from scheduler_svc.client.processes.local_fleet import SCHEDULER, FleetSpec, LocalFleet, free_ports

POLL_S = 0.2
STEADY_S = 5.0  # in which all streams that run have had tokens


def hold_open(url: str, model: str, count: int, prompt_tokens: int, max_tokens: int) -> None:
    """Have so many streams open until killed."""
    asyncio.run(EndlessStreams(url, model, count, prompt_tokens, max_tokens).run())


def measure(url: str, pids: dict[str, int], numbers: list[int], prompt_tokens: int, max_tokens: int) -> None:
    """Open more and more streams, and print what they take."""
    first: dict[str, int] = {}
    with httpx.Client(base_url=url, timeout=60) as client, ExitStack() as streams:
        model = client.get("/v1/models").json()["data"][0]["id"]
        for before, number in zip([0, *numbers], numbers, strict=False):
            streams.enter_context(process(hold_open, url, model, number - before, prompt_tokens, max_tokens))
            while (report := client.get("/status").json())["running"] + report["waiting"] < number:
                time.sleep(POLL_S)
            time.sleep(STEADY_S)
            taken = {name: Sample.of(pid).rss_bytes for name, pid in pids.items()}
            first = first or taken
            row: dict[str, Any] = {"prompt_tokens": prompt_tokens, "requests": number}
            row |= {f"{name}_mib": round(taken[name] / MIB, 1) for name in pids}
            if number > numbers[0]:
                thousands = (number - numbers[0]) / 1000
                row |= {f"{name}_mib_1000": round((taken[name] - first[name]) / MIB / thousands, 1) for name in pids}
            click.echo(json.dumps(row))


@click.command()
@click.option("--requests", default="500,1500,2500", show_default=True, help="Numbers of open requests, ascending.")
@click.option("--prompts", default="16,1000", show_default=True, help="Tokens of their prompts, with commas.")
@click.option("--tokens", "max_tokens", default=900, show_default=True, help="Of each answer, at most.")
def main(requests: str, prompts: str, max_tokens: int) -> None:
    """Measure the memory of open requests."""
    numbers = [int(number) for number in requests.split(",")]
    for prompt_tokens in map(int, prompts.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            port, executor_port = free_ports(2)
            options = ("--journal", f"{folder}/journal.sqlite3", "--max-waiting", "100000")
            spec = FleetSpec(port=port, executor_port=executor_port, scheduler_options=options)
            with LocalFleet(spec, Path(folder)) as fleet:
                fleet.wait_ready()
                core = fleet.pids[SCHEDULER]
                pids = {"core": core, "frontend": frontend_of(core)}
                measure(spec.url, pids, numbers, prompt_tokens, max_tokens)
    click.echo(json.dumps({"cpu": processor()}))


if __name__ == "__main__":
    main()
