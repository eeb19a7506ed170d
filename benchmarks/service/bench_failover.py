"""How long the streams of an executor have no token after its SIGKILL, as their clients see it.

The services are real processes on this machine and serve the embedded demo model on the CPU; `--model` and
`--executor-option` choose another model or device, such as `--executor-option=--device=cuda`. In the setting `sibling`
the busier of two executors is killed, and started again when all streams go on. In the setting `alone` the only
executor is killed, and its successor is started at once, so the start-up time is part of the pause (`startup_ms_p50`:
from the start of a process until it is ready). The next token of a stream comes when all its tokens so far have been
computed again, one stream after the other, so the pause depends on the number of tokens (`--max-tokens`). One JSON line
is printed for each setting.

Example: python benchmarks/bench_failover.py --kills 20 --streams 16
"""

import asyncio
import json
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import click
import httpx

from scheduler_svc.client.http.api import Api
from scheduler_svc.client.http.event_stream import EventStreams
from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, executor_name, free_ports
from scheduler_svc.client.service_address import ServiceAddress

ON_A_CPU = ("--threads", "1", "--num-blocks", "4096")
WARM_UP_S = 1.0  # of streaming before a kill
SETTLED_S = 3.0  # within which a sibling has gone on: a loss is noticed within 2
PAUSE_LIMIT_S = 60.0


@dataclass
class Streams:
    """Streams without end: each is started again when it ends.

    Attributes:
        arrivals: when each stream's tokens came since `watch`, newest last.
    """

    url: str
    model: str
    count: int
    max_tokens: int
    arrivals: list[list[float]] = field(default_factory=list)

    async def run(self) -> None:
        """Stream until cancelled."""
        self.arrivals = [[] for _ in range(self.count)]
        streams = EventStreams(ServiceAddress(self.url, timeout_s=PAUSE_LIMIT_S))
        await asyncio.gather(*(self._one(streams, i) for i in range(self.count)))

    def watch(self) -> None:
        """Forget the tokens that came so far."""
        for arrivals in self.arrivals:
            arrivals.clear()

    async def _one(self, streams: EventStreams, i: int) -> None:
        body = {"model": self.model, "max_tokens": self.max_tokens, "ignore_eos": True, "stream": True}
        while True:
            prompt = f"The {i}th citizen, at {time.monotonic()}:\n"
            await streams.post(
                "/v1/completions", body | {"prompt": prompt}, lambda _: self.arrivals[i].append(time.monotonic())
            )


@click.command(context_settings={"show_default": True})
@click.option("--kills", default=20, type=click.IntRange(1), help="How often an executor is killed in each setting.")
@click.option("--streams", "num_streams", default=16, type=click.IntRange(1), help="Streams that run at once.")
@click.option("--max-tokens", default=300, type=click.IntRange(1), help="Tokens of each stream.")
@click.option(
    "--setting",
    "settings",
    multiple=True,
    type=click.Choice(["sibling", "alone"]),
    help="What to measure.  [default: both]",
)
@click.option("--model", help="Folder of a checkpoint with a tokenizer.  [default: the embedded demo model]")
@click.option(
    "--executor-option",
    "executor_options",
    multiple=True,
    help="An option of the executors, instead of those for the demo model on a CPU, e.g. --device=cuda.",
)
def main(
    kills: int,
    num_streams: int,
    max_tokens: int,
    settings: tuple[str, ...],
    model: str | None,
    executor_options: tuple[str, ...],
) -> None:
    """Kill executors under streams, and measure the pauses."""
    for setting in settings or ("sibling", "alone"):
        figures = measure(setting, kills, num_streams, max_tokens, model, executor_options or ON_A_CPU)
        print(json.dumps(figures), flush=True)


def measure(
    setting: str, kills: int, num_streams: int, max_tokens: int, model: str | None, executor_options: tuple[str, ...]
) -> dict[str, float | str]:
    """One setting's figures; pauses in milliseconds."""
    num_executors = 2 if setting == "sibling" else 1
    port, executor_port = free_ports(2)
    with tempfile.TemporaryDirectory() as folder:
        spec = FleetSpec(
            port=port,
            executor_port=executor_port,
            executors=num_executors,
            scheduler_options=("--journal", f"{folder}/journal.sqlite3"),
            model=model,
            executor_options=executor_options,
        )
        with LocalFleet(spec, Path(folder)) as fleet:
            fleet.wait_ready()
            with Api(ServiceAddress(spec.url)) as api:
                name = api.model_name(None)
            streams = Streams(spec.url, name, num_streams, max_tokens)
            pauses, startups = asyncio.run(_kill_repeatedly(fleet, kills, streams))
    percentiles = quantiles(pauses, n=100, method="inclusive") if len(pauses) > 1 else pauses * 99
    return {
        "setting": setting,
        "executors": num_executors,
        "streams": num_streams,
        "max_tokens": max_tokens,
        "kills": kills,
        "pauses": len(pauses),
        "pause_ms_p50": round(1000 * percentiles[49], 1),
        "pause_ms_p99": round(1000 * percentiles[98], 1),
        "startup_ms_p50": round(1000 * median(startups), 1),
    }


async def _kill_repeatedly(fleet: LocalFleet, kills: int, streams: Streams) -> tuple[list[float], list[float]]:
    """Kill an executor `kills` times; seconds of each stream's pause, and of each successor's start."""
    pauses: list[float] = []
    startups: list[float] = []
    async with httpx.AsyncClient(base_url=fleet.spec.url, trust_env=False) as http:
        streaming = asyncio.create_task(streams.run())
        for _ in range(kills):
            await _all_ready(http, fleet.spec.executors, streams)
            running = await _running(http)
            index = max(range(fleet.spec.executors), key=lambda i: running.get(executor_name(i), 0))
            num_affected = running[executor_name(index)]
            streams.watch()
            killed_at = time.monotonic()
            fleet.kill_executor(index)
            if fleet.spec.executors > 1:
                await asyncio.sleep(SETTLED_S)
                seen = await _pauses(streams, killed_at)  # before the successor's start takes CPU from the sibling
                startups.append(await _start(fleet, http, index))
            else:
                startups.append(await _start(fleet, http, index))
                seen = await _pauses(streams, killed_at)
            pauses += sorted(seen)[-num_affected:]
            assert not streaming.done(), streaming.exception()
        streaming.cancel()
        await asyncio.wait([streaming])
    return pauses, startups


async def _pauses(streams: Streams, since: float) -> list[float]:
    """Each stream's longest time without a token, in seconds, from `since` to the first token that comes from now on.

    A client that reads late still gets tokens of the killed executor, so the first token does not end the pause. If a
    stream has ended meanwhile, the one in its place counts.
    """
    now = time.monotonic()
    while not all(arrivals and arrivals[-1] > now for arrivals in streams.arrivals):
        await asyncio.sleep(0.005)
    return [
        max(later - earlier for earlier, later in pairwise([since, *(at for at in arrivals if at > since)]))
        for arrivals in streams.arrivals
    ]


async def _start(fleet: LocalFleet, http: httpx.AsyncClient, index: int) -> float:
    """Start an executor and wait until it is ready. Returns the seconds in between."""
    started_at = time.monotonic()
    fleet.start_executor(index)
    while executor_name(index) not in await _running(http):
        await asyncio.sleep(0.01)
    return time.monotonic() - started_at


async def _all_ready(http: httpx.AsyncClient, num_executors: int, streams: Streams) -> None:
    """Wait until all executors are ready and all streams get tokens."""
    while len(await _running(http)) < num_executors:
        await asyncio.sleep(0.05)
    streams.watch()
    await asyncio.sleep(WARM_UP_S)
    while not all(streams.arrivals):
        await asyncio.sleep(0.05)


async def _running(http: httpx.AsyncClient) -> dict[str, int]:
    """How many sequences each executor runs."""
    status = (await http.get("/status")).json()
    return {executor["executor"]: executor["running"] for executor in status["executors"]}


if __name__ == "__main__":
    main()
