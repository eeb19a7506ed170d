"""What Ray costs: how long `baton ray up` takes to the first token, and what an executor gives in an actor and outside.

A Ray cluster of one node runs on this machine all the time, with its dashboard's agents. Each start is the command, on
a cluster that runs already and has started a fleet before, and a request for one token that follows it. Throughput is
that of `baton bench` against two fleets of one executor each with the same options, keeper and journal, one started by
`baton ray up` and one by no Ray; they take turns. JSON lines; the last one has the medians, and the median of ratios.

Example: python benchmarks/bench_ray.py --starts 5 --rounds 10
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click

from benchmarks.rig.machine import processor
from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports

BATON = (sys.executable, "-m", "scheduler_svc.client.cli")


@contextlib.contextmanager
def ray_cluster(num_cpus: int) -> Iterator[str]:
    """The address of a cluster of one node."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415  (--help needs no Ray)

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": num_cpus})
    try:
        yield cluster.address
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


class RayFleet:
    """A fleet of one executor on a cluster.

    Args:
        address: of the cluster.
        folder: for its journal.
        options: of its executor.
    """

    def __init__(self, address: str, folder: Path, options: tuple[str, ...]) -> None:
        port, executor_port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self._where = ("--address", address)
        self._up = ("--port", str(port), "--executor-port", str(executor_port), *options)
        self._up = (*self._up, "--journal", str(folder / "ray.sqlite3"))

    def up(self) -> None:
        """Start it, and wait until it is complete."""
        run("ray", "up", *self._up, *self._where)

    def down(self) -> None:
        """End it."""
        run("ray", "down", *self._where)


def run(*arguments: str) -> str:
    """The output of a `baton` command. Raises ClickException if it fails."""
    done = subprocess.run([*BATON, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"baton {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def throughput(url: str, sizes: tuple[str, ...]) -> float:
    """Output tokens a second of one run of `baton bench`."""
    result: dict[str, Any] = json.loads(run("bench", "--url", url, "--json", *sizes))
    return float(result["output_tokens_per_s"])


@click.command(context_settings={"show_default": True})
@click.option("--starts", default=5, type=click.IntRange(1), help="Of a fleet, with an end of it each.")
@click.option("--rounds", default=10, type=click.IntRange(2), help="Of a run against each of the two fleets.")
@click.option("--num-seqs", default=64, help="Requests of a run.")
@click.option("--max-prompt", default=256, help="Prompts have 100 to this many tokens.")
@click.option("--max-output", default=256, help="Answers have 100 to this many tokens.")
@click.option("--num-blocks", default=2048, type=click.IntRange(1), help="Of each executor's pool.")
def main(starts: int, rounds: int, num_seqs: int, max_prompt: int, max_output: int, num_blocks: int) -> None:
    """Measure starts and throughput, and print the figures."""
    sizes = ("--num-seqs", str(num_seqs), "--max-prompt", str(max_prompt), "--max-output", str(max_output))
    options = ("--threads", "1", "--num-blocks", str(num_blocks))
    with tempfile.TemporaryDirectory(prefix="baton-") as name, ray_cluster(num_cpus=2) as address:
        folder = Path(name)
        fleet = RayFleet(address, folder, options)
        fleet.up()
        fleet.down()
        first_token_s = []
        for _ in range(starts):
            began = time.monotonic()
            fleet.up()
            up_s = time.monotonic() - began
            run("generate", "ROMEO:", "--max-tokens", "1", "--url", fleet.url)
            first_token_s.append(time.monotonic() - began)
            click.echo(json.dumps({"up_s": round(up_s, 2), "first_token_s": round(first_token_s[-1], 2)}))
            fleet.down()
        fleet.up()
        port, executor_port = free_ports(2)
        bare = FleetSpec(
            port=port,
            executor_port=executor_port,
            keeper=folder / "keeper.sock",
            scheduler_options=("--journal", str(folder / "bare.sqlite3")),
            executor_options=options,
        )
        ratios = []
        with LocalFleet(bare, folder) as local:
            local.wait_ready()
            urls = [("actor", fleet.url), ("bare", bare.url)]
            for i in range(rounds):
                each = {side: throughput(url, sizes) for side, url in (urls if i % 2 == 0 else urls[::-1])}
                ratios.append(each["actor"] / each["bare"])
                click.echo(json.dumps({side: round(value, 1) for side, value in each.items()}))
        fleet.down()
    low, _, high = quantiles(ratios, n=4)
    summary = {
        "processor": processor(),
        "starts": starts,
        "first_token_s_median": round(median(first_token_s), 2),
        "rounds": rounds,
        "actor_over_bare_median": round(median(ratios), 4),
        "quartiles": [round(low, 4), round(high, 4)],
    }
    click.echo(json.dumps(summary))


if __name__ == "__main__":
    main()
