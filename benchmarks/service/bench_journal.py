"""What the journal costs the core, and how long a batch takes until it is saved.

    python benchmarks/bench_journal.py
    python benchmarks/bench_journal.py --folder /mnt/journal --durable

Prints a JSON line for each kind of batch: `step` is what a step of 64 sequences gives, `request` a request with a
prompt of 5,000 tokens and a step. `us_checksums` is the processor time for the checksums of a batch.

First an idle core makes and writes one batch after the other: `us_encode` is the processor time for its records, from
the step's output to the bytes; `us_latency_*` is the time from `write` to its result; `us_core` and `us_thread` are the
processor time of a batch in the core (to make it, to write it, to wait and to fetch the result) and in the journal's
thread. Then a busy core computes for `BUSY_S` and polls its sockets, as a core does that has more executors than it can
serve, and writes its next batch as soon as the last one is saved: `us_busy_latency_*`, and `us_busy_lost`, the time
that a batch keeps the core from its work (waiting for the interpreter included). The last `KEPT` batches stay in the
file.
"""

import json
import random
import statistics
import tempfile
import threading
import time
import timeit
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec
import numpy as np
import xxhash
import zmq

from common import messages as m
from scheduler_svc.core.requests.group_commit import JournalBatch
from scheduler_svc.core.requests.journal_records import (
    AnyRecord,
    Progress,
    RequestRecord,
    StepRecord,
    SubmitRecord,
    encode,
)
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import StepOutput
from scheduler_svc.server.journal import BatchSaved, Journal

KEPT = 256
BUSY_S = 1e-3  # a turn of the core with work to do
TURNS = 20
SEQUENCES = 64
PROMPT = 5000
VOCAB = 150_000

Make = Callable[[], list[AnyRecord]]


def step() -> Make:
    """Makes the records of a step in which each sequence got a token."""
    rng, params = random.Random(0), m.SamplingParams(max_tokens=1000)
    empty: array[int] = array("i")
    sequences = [Sequence(f"r{i}", 0, 10_000 + i, empty, 0, 0, params) for i in range(SEQUENCES)]
    tokens = [rng.randrange(VOCAB) for _ in sequences]
    positions = np.array([rng.randrange(1000) for _ in tokens], np.int32)
    output = StepOutput(sequences, tokens, model="0123456789abcdef bf16", positions=positions)
    return lambda: [StepRecord.of(output)]


def request() -> Make:
    """Makes the records of a request, and of a step."""
    rng, make_step = random.Random(1), step()
    prompt = array("i", [rng.randrange(VOCAB) for _ in range(PROMPT)]).tobytes()
    params = m.SamplingParams(max_tokens=500, temperature=0.7, top_p=0.9, seed=rng.getrandbits(62))
    submit = m.Submit(
        request_id="client/chatcmpl-0123456789-0", prompt=prompt, params=params, context=rng.randbytes(200)
    )
    return lambda: [RequestRecord(7, 1.8e9, SubmitRecord.of(submit), (Progress(),)), *make_step()]


def checksums(make: Make) -> dict[str, float]:
    """What the checksums of a batch cost: those of its records and that of the row's stamp."""
    sealed = [msgspec.msgpack.encode(record) for record in make()] + [bytes(48)]

    def compute_all() -> None:
        for record in sealed:
            xxhash.xxh3_64_digest(record)

    return {"us_checksums": round(1e3 * min(timeit.repeat(compute_all, number=1000, repeat=9)), 2)}


KINDS: dict[str, Callable[[], Make]] = {"step": step, "request": request}


@dataclass
class TimedJournal:
    """A journal that runs, and the latencies of its batches.

    Attributes:
        latencies_s: latencies of the batches since the list was last cleared.
        encode_s: processor time for making batches.
    """

    journal: Journal
    make: Make
    latencies_s: list[float] = field(default_factory=list)
    encode_s: float = 0.0
    _last: int = 0
    _written_at: float = 0.0

    def write(self) -> None:
        """Make and write the next batch."""
        self._last += 1
        start = time.thread_time()
        payload = encode(self.make())
        self.encode_s += time.thread_time() - start
        self._written_at = time.perf_counter()
        self.journal.write(JournalBatch(self._last, payload, max(0, self._last - KEPT)))

    def fetch(self) -> bool:
        """Fetch the results. Returns whether the batch that was written last has been saved."""
        results = self.journal.results()
        assert all(isinstance(result, BatchSaved) for result in results), results
        self.latencies_s += [time.perf_counter() - self._written_at] * len(results)
        return bool(results)

    def wait(self) -> None:
        """Wait until the batch that was written last has been saved."""
        while not self.fetch():
            self.journal.wait(10.0)


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
        bench.wait()
    core_s, thread_s = time.thread_time() - core_s, time.clock_gettime(thread_clock) - thread_s
    return {
        **percentiles("latency", bench.latencies_s),
        "us_encode": round(1e6 * bench.encode_s / batches, 1),
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
    poller.register(bench.journal.fileno(), zmq.POLLIN)
    start = time.perf_counter()
    if writes:
        bench.write()
    for _ in range(turns):
        compute(loops)
        if poller.poll(0) and bench.fetch() and writes:
            bench.write()
    taken = time.perf_counter() - start
    if writes:
        bench.wait()
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
    for name, kind in KINDS.items():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            journal = Journal(Path(scratch) / "journal.db", durable=durable)
            journal.load()
            journal.start()
            make = kind()
            bench = TimedJournal(journal, make)
            figures = {**checksums(make), **idle(bench, batches), **busy(bench, max(10, batches // 10))}
            journal.close()
        sizes = {"kind": name, "batch_bytes": len(encode(make())), "durable": durable, "batches": batches}
        print(json.dumps({**sizes, **figures}), flush=True)


if __name__ == "__main__":
    main()
