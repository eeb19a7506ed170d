"""What the journal costs the core, and how long a batch takes until it is saved.

    python benchmarks/bench_journal.py
    python benchmarks/bench_journal.py --folder /mnt/journal --durable

Prints a JSON line for each size of a batch. First an idle core writes one batch after the other: `us_latency_*` is the
time from `write` to its result; `us_core` and `us_thread` are the processor time of a batch in the core (to write, to
wait and to fetch the result) and in the journal's thread. Then a busy core computes for `BUSY_S` and polls its sockets,
as a core does that has more executors than it can serve, and writes its next batch as soon as the last one is saved:
`us_busy_latency_*`, and `us_busy_lost`, the time that a batch keeps the core from its work (waiting for the interpreter
included). The last `KEPT` batches stay in the file.
"""

import json
import os
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import click
import zmq

from scheduler_svc.core.requests.group_commit import JournalBatch
from scheduler_svc.server.journal import BatchSaved, Journal

KEPT = 256
BUSY_S = 1e-3  # a turn of the core with work to do
TURNS = 20
SIZES = (1_000, 20_000)


@dataclass
class TimedJournal:
    """A journal that runs, and the latencies of its batches.

    Attributes:
        latencies_s: latencies of the batches since the list was last cleared.
    """

    journal: Journal
    payload: bytes
    latencies_s: list[float] = field(default_factory=list)
    _last: int = 0
    _written_at: float = 0.0

    def write(self) -> None:
        """Write the next batch."""
        self._last += 1
        self._written_at = time.perf_counter()
        self.journal.write(JournalBatch(self._last, self.payload, max(0, self._last - KEPT), reset=False))

    def fetch(self) -> bool:
        """Fetch the results. Returns whether the batch that was written last has been saved."""
        results = self.journal.results()
        assert all(isinstance(result, BatchSaved) for result in results), results
        self.latencies_s += [time.perf_counter() - self._written_at] * len(results)
        return bool(results)


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    """The median and the 99th percentile, in microseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return {f"us_{name}_p50": round(1e6 * cuts[49], 1), f"us_{name}_p99": round(1e6 * cuts[98], 1)}


def idle(bench: TimedJournal, batches: int) -> dict[str, float]:
    """Figures of a core that only writes batches, one after the other."""
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "journal"]
    assert thread.ident is not None
    thread_clock = time.pthread_getcpuclockid(thread.ident)
    core_s, thread_s = time.thread_time(), time.clock_gettime(thread_clock)
    for _ in range(batches):
        bench.write()
        bench.journal.socket.poll()
        bench.fetch()
    core_s, thread_s = time.thread_time() - core_s, time.clock_gettime(thread_clock) - thread_s
    latencies = percentiles("latency", bench.latencies_s)
    return {
        **latencies,
        "us_core": round(1e6 * core_s / batches, 1),
        "us_thread": round(1e6 * thread_s / batches, 1),
    }


def loops_in(seconds: float) -> int:
    """How many loops of `compute` take that long in an idle process."""
    count = 1000
    while True:
        start = time.perf_counter()
        compute(count)
        if (taken := time.perf_counter() - start) > seconds:
            return int(count * seconds / taken)
        count *= 2


def compute(loops: int) -> None:
    """Work that never releases the interpreter's lock by itself."""
    total = 0
    for i in range(loops):
        total += i


def turns_s(bench: TimedJournal, loops: int, turns: int, *, writes: bool) -> float:
    """Seconds that `turns` turns of a busy core take, without the wait for the last batch."""
    poller = zmq.Poller()
    poller.register(bench.journal.socket, zmq.POLLIN)
    start = time.perf_counter()
    if writes:
        bench.write()
    for _ in range(turns):
        compute(loops)
        if poller.poll(0) and bench.fetch():
            bench.write()
    taken = time.perf_counter() - start
    while writes and not bench.fetch():
        bench.journal.socket.poll()
    return taken


def busy(bench: TimedJournal, batches: int) -> dict[str, float]:
    """Figures of a core that computes while batches are saved.

    Turns with batches and turns without them alternate, and the median of the differences counts, because a machine's
    slow moments are longer than a turn.
    """
    loops = loops_in(BUSY_S)
    bench.latencies_s.clear()
    lost_s = []
    while (count := len(bench.latencies_s)) < batches:
        lost = turns_s(bench, loops, TURNS, writes=True) - turns_s(bench, loops, TURNS, writes=False)
        lost_s.append(lost / (len(bench.latencies_s) - count))
    latencies = percentiles("busy_latency", bench.latencies_s)
    return {**latencies, "us_busy_lost": round(1e6 * statistics.median(lost_s), 1)}


@click.command()
@click.option("--batches", default=2000, help="Batches of an idle core; a busy core writes a tenth of them.")
@click.option(
    "--folder", type=click.Path(path_type=Path, exists=True), help="Where to write.  [default: a temporary folder]"
)
@click.option("--durable", is_flag=True, help="Wait for the disk at every batch.")
def main(batches: int, folder: Path | None, durable: bool) -> None:
    """Measure the journal, and print the figures."""
    for num_bytes in SIZES:
        with tempfile.TemporaryDirectory(dir=folder) as scratch, zmq.Context() as context:
            journal = Journal(Path(scratch) / "journal.db", durable=durable)
            journal.start(context)
            bench = TimedJournal(journal, os.urandom(num_bytes))
            figures = {**idle(bench, batches), **busy(bench, max(10, batches // 10))}
            journal.close()
        print(json.dumps({"batch_bytes": num_bytes, "durable": durable, "batches": batches, **figures}), flush=True)


if __name__ == "__main__":
    main()
