"""What open pages cost the core and the frontend, while so many streams run.

A service on the embedded demo model streams without end. In turns, nobody looks, one page is open, and a hundred are:
connections to `/page/live` in a process of their own, which read all they are told. One JSON line for each number of
pages: medians over the rounds of the CPU time of the core and of the frontend in percent of one processor, their
memory, tokens a second of all streams, and what one page was told a second. The streams and the pages share the
machine with the service, so tokens a second vary; `core_cpu` and `frontend_cpu` are of these processes alone, and
`core_us_token` and `frontend_us_token` say how many microseconds of a processor each took for each token that came.
With --streams 0 nothing happens at all, and pages are told nothing. The last line has the page's weight, also as it is
sent, and, with --browser, the time to its first paint over loopback in a headless Chromium.

Example: python benchmarks/bench_page.py --browser
"""

import json
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import click
import httpx

from benchmarks.rig.machine import processor
from benchmarks.service.endless_streams import EndlessStreams
from scheduler_svc.client.processes.local_fleet import SCHEDULER, FleetSpec, LocalFleet, free_ports
from scheduler_svc.frontend.http.page_files import read_page_files

TICKS = os.sysconf("SC_CLK_TCK")
MIB = 2**20
WARM_UP_S = 3.0
PAINTS = 5
CHROMIUM = "/usr/bin/chromium"


@dataclass(frozen=True)
class Sample:
    """What a process had taken at a moment."""

    cpu_s: float
    rss_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Sample":
        """Now. See proc(5)."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        rss = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        return cls((int(fields[11]) + int(fields[12])) / TICKS, int(rss.split()[1]) * 1024)


def frontend_of(scheduler: int) -> int:
    """The frontend's process."""
    for child in Path(f"/proc/{scheduler}/task/{scheduler}/children").read_text().split():
        if b"scheduler_svc.frontend\0" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise click.ClickException("the scheduler has no frontend")


def stream(url: str, model: str, count: int, max_tokens: int, num_tokens: "Synchronized[int]") -> None:
    """Stream until killed, and count what comes."""
    import asyncio  # noqa: PLC0415 - in the process that needs it

    streams = EndlessStreams(url, model, count, prompt_tokens=16, max_tokens=max_tokens)

    async def run() -> None:
        task = asyncio.create_task(streams.run())
        while not task.done():
            await asyncio.sleep(0.1)
            for arrivals in streams.arrivals:
                num_tokens.value += len(arrivals)
                arrivals.clear()
        task.result()

    asyncio.run(run())


def look(url: str, count: int, num_bytes: "Synchronized[int]", num_reads: "Synchronized[int]") -> None:
    """Have so many pages open until killed, and count what they are told."""
    import selectors  # noqa: PLC0415 - in the process that needs it

    address = urlsplit(url)
    selector = selectors.DefaultSelector()
    for _ in range(count):
        connection = socket.create_connection((address.hostname, address.port), timeout=10)
        connection.sendall(b"GET /page/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            told = key.fileobj.recv(2**20)  # type: ignore[union-attr]  # a socket
            if not told:
                raise SystemExit("a page was cut off")
            num_bytes.value += len(told)
            num_reads.value += 1


@contextmanager
def process(target: Any, *arguments: Any) -> Iterator[None]:
    """A process that runs meanwhile."""
    child = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    child.start()
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(child.pid or 0, signal.SIGKILL)
        child.join()


def first_paint_ms(url: str) -> list[float]:
    """The time from a navigation to the first contentful paint, for pages that nothing is kept of."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - optional

    paints = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for _ in range(PAINTS):
            page = browser.new_context().new_page()
            page.goto(url)
            found = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
            page.wait_for_function(found)
            paints.append(page.evaluate(found))
            page.context.close()
        browser.close()
    return paints


class Bench:
    """Measures a running service.

    Args:
        num_tokens: of all streams, so far.
    """

    def __init__(self, url: str, core: int, seconds: float, num_tokens: "Synchronized[int]") -> None:
        self._url = url
        self._processes = {"core": core, "frontend": frontend_of(core)}
        self._seconds = seconds
        self._num_tokens = num_tokens

    def measure(self, num_pages: int) -> dict[str, float]:
        """One round with so many pages."""
        counts = multiprocessing.get_context("spawn")
        num_bytes, num_reads = counts.Value("q", 0), counts.Value("q", 0)
        with process(look, self._url, num_pages, num_bytes, num_reads):
            time.sleep(WARM_UP_S)
            before = {name: Sample.of(pid) for name, pid in self._processes.items()}
            start, tokens, told, reads = time.monotonic(), self._num_tokens.value, num_bytes.value, num_reads.value
            time.sleep(self._seconds)
            after = {name: Sample.of(pid) for name, pid in self._processes.items()}
            took = time.monotonic() - start
            measured = {"tok_s": (self._num_tokens.value - tokens) / took}
            if num_pages:
                measured["told_a_page_s"] = (num_reads.value - reads) / num_pages / took
                measured["kb_a_page_s"] = (num_bytes.value - told) / num_pages / took / 1000
        for name in self._processes:
            measured[f"{name}_cpu"] = 100 * (after[name].cpu_s - before[name].cpu_s) / took
            measured[f"{name}_mib"] = after[name].rss_bytes / MIB
            if measured["tok_s"]:
                measured[f"{name}_us_token"] = 1e4 * measured[f"{name}_cpu"] / measured["tok_s"]
        return measured


@click.command()
@click.option("--streams", "num_streams", default=64, show_default=True, help="That run all the time.")
@click.option("--tokens", "max_tokens", default=200, show_default=True, help="Of each stream.")
@click.option("--pages", default="0,1,100", show_default=True, help="Numbers of pages, with commas.")
@click.option("--seconds", default=10.0, show_default=True, help="Of each measurement.")
@click.option("--rounds", default=5, show_default=True, help="Measurements of each number of pages.")
@click.option("--browser", is_flag=True, help="Also measure the first paint (Playwright and Chromium).")
def main(num_streams: int, max_tokens: int, pages: str, seconds: float, rounds: int, browser: bool) -> None:
    """Measure what open pages cost."""
    numbers = [int(number) for number in pages.split(",")]
    num_tokens = multiprocessing.get_context("spawn").Value("q", 0)
    with tempfile.TemporaryDirectory() as folder:
        port, executor_port = free_ports(2)
        options = ("--journal", f"{folder}/journal.sqlite3")
        spec = FleetSpec(port=port, executor_port=executor_port, scheduler_options=options)
        with LocalFleet(spec, Path(folder)) as fleet:
            fleet.wait_ready()
            model = httpx.get(f"{spec.url}/v1/models").json()["data"][0]["id"]
            paints = first_paint_ms(spec.url) if browser else []
            rows: dict[int, list[dict[str, float]]] = defaultdict(list)
            with process(stream, spec.url, model, num_streams, max_tokens, num_tokens):
                while num_streams and not num_tokens.value:
                    time.sleep(0.1)
                bench = Bench(spec.url, fleet.pids[SCHEDULER], seconds, num_tokens)
                for i in range(rounds):
                    for number in numbers if i % 2 == 0 else numbers[::-1]:
                        rows[number].append(bench.measure(number))
    for number, measured in rows.items():
        facts = {name: round(median(row[name] for row in measured), 2) for name in measured[0]}
        click.echo(json.dumps({"pages": number, "streams": num_streams, **facts}))
    files = read_page_files().values()
    weight, sent = sum(len(file.content) for file in files), sum(len(file.gzipped) for file in files)
    paint = {"first_paint_ms": round(median(paints), 1)} if paints else {}
    click.echo(
        json.dumps({"cpu": processor(), "page_kb": round(weight / 1000, 1), "gzip_kb": round(sent / 1000, 1), **paint})
    )


if __name__ == "__main__":
    main()
