"""What the store costs when it is empty, and when it is full.

    python benchmarks/bench_store.py
    python benchmarks/bench_store.py --folder /mnt/store --durable

Prints a JSON line for an empty store and one for a store of some GB: half responses of 20 KB, a quarter of them in
conversations of 20, half files of 16 MiB. `ms_open` is the median time to open it, `ms_open_cold` the time once when
the page cache has nothing of it. `ms_add`, `ms_get` and `ms_finish` are of one response, `ms_append` of 1 MiB of a
file, `ms_chain` of a conversation of 20; p50 and p99. Then some responses have expired and a file was deleted:
`ms_sweep_*` is how long a call of `sweep` takes, which deletes or shrinks, and `sweeps` how many calls it took.
`ms_check` is the check of all that is in it.
"""

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from sqlite3 import Connection

import click
import msgspec

from scheduler_svc.store import check, files, responses, sweep
from scheduler_svc.store.database import FILE_NAME, connect
from scheduler_svc.store.records import StoredFile, StoredResponse
from scheduler_svc.store.responses import Cut

TURNS = 20
FILE_CHUNKS = 16
OWNER = "bench"
OPENINGS = 9
NEVER_FULL = 1 << 50  # a quota, so that it is looked at


def response(name: str, rng: random.Random, previous_id: str | None = None) -> StoredResponse:
    """A response of 20 KB as it is when it has ended."""
    return StoredResponse(
        *(OWNER, name, "completed", 1.0, None, False, previous_id),
        head=rng.randbytes(2000),
        input_items=rng.randbytes(8000),
        output_items=rng.randbytes(8000),
        tail=rng.randbytes(500),
        tokens=rng.randbytes(1500),
    )


def fill(store: Connection, num_bytes: float, rng: random.Random) -> list[str]:
    """Fill a store. Returns the ids of its responses."""
    names: list[str] = []
    for number in range(int(num_bytes / 2 / 20_000)):
        in_conversation = number // TURNS % 4 == 0 and number % TURNS
        responses.add(store, response(f"old-{number}", rng, f"old-{number - 1}" if in_conversation else None))
        names.append(f"old-{number}")
    for number in range(int(num_bytes / 2 / FILE_CHUNKS / files.MAX_CHUNK_BYTES)):
        files.begin(store, StoredFile(OWNER, f"file-{number}", "f", "batch", 0, 1.0, None))
        for _ in range(FILE_CHUNKS):
            files.append(store, OWNER, f"file-{number}", 1.0, rng.randbytes(files.MAX_CHUNK_BYTES))
        files.finish(store, OWNER, f"file-{number}", 1.0)
    return names


def timed(name: str, calls: Iterable[Callable[[], object]]) -> dict[str, float]:
    """Median and 99th percentile of these calls, in ms."""
    taken = []
    for call in calls:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    cuts = statistics.quantiles(taken, n=100)
    return {f"ms_{name}_p50": round(1e3 * cuts[49], 3), f"ms_{name}_p99": round(1e3 * cuts[98], 3)}


def opening(folder: Path, *, durable: bool) -> dict[str, float]:
    """How long it takes to open a store that another connection has closed."""
    taken = []
    for number in range(OPENINGS):
        if number == 0:
            forget_pages(folder / FILE_NAME)
        start = time.perf_counter()
        store = connect(folder, durable=durable)
        taken.append(time.perf_counter() - start)
        store.close()
    return {"ms_open_cold": round(1e3 * taken[0], 3), "ms_open": round(1e3 * statistics.median(taken[1:]), 3)}


def forget_pages(path: Path) -> None:
    """Let the system drop a file from its page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def read_answer(store: Connection, name: str) -> list[bytes]:
    """A response's answer, as a frontend reads it."""
    sizes = responses.measure(store, OWNER, name, 2.0)
    parts = [Cut("head", 0, sizes.head), Cut("output_items", 0, sizes.output_items), Cut("tail", 0, sizes.tail)]
    return responses.read(store, OWNER, name, 2.0, parts)


def single_calls(store: Connection, calls: int, names: list[str], rng: random.Random) -> dict[str, float]:
    """Times of single calls.

    Args:
        names: of responses that are there.
    """
    whole = [response(f"new-{number}", rng) for number in range(calls)]
    opened = [
        msgspec.structs.replace(response(f"open-{number}", rng), status="in_progress", output_items=b"", tail=b"")
        for number in range(calls)
    ]
    turns = [response(f"turn-{turn}", rng, f"turn-{turn - 1}" if turn else None) for turn in range(TURNS)]
    upload = StoredFile(OWNER, "upload", "f", "batch", 0, 1.0, None)
    chunk = rng.randbytes(files.MAX_CHUNK_BYTES)
    add, finish = responses.add, responses.finish
    figures = timed("add", [partial(add, store, one, limit_bytes=NEVER_FULL) for one in whole])
    names = names or [one.response_id for one in whole]
    figures |= timed("get", [partial(read_answer, store, rng.choice(names)) for _ in range(calls)])
    for one in (*opened, *turns):
        add(store, one)
    end = {"output_items": whole[0].output_items, "tail": whole[0].tail, "tokens": whole[0].tokens}
    ended = [partial(finish, store, OWNER, one.response_id, 2.0, status="completed", **end) for one in opened]
    figures |= timed("finish", ended)
    limits = {"max_responses": TURNS, "max_bytes": 1 << 20}
    figures |= timed("chain", [partial(responses.chain, store, OWNER, turns[-1].response_id, 2.0, **limits)] * calls)
    files.begin(store, upload)
    append = partial(files.append, store, OWNER, "upload", 2.0, chunk, limit_bytes=NEVER_FULL)
    figures |= timed("append", [append] * (calls // 10))
    return figures


def sweeping(store: Connection, expired: int, rng: random.Random) -> dict[str, float]:
    """Times of the calls that it takes to delete `expired` responses and an upload of 1 MiB pieces."""
    for number in range(expired):
        responses.add(store, msgspec.structs.replace(response(f"expired-{number}", rng), expires_at=3.0))
    files.delete(store, OWNER, "upload", 2.0)
    taken, is_more = [], True
    while is_more:
        start = time.perf_counter()
        is_more = sweep.sweep(store, 4.0).is_more
        taken.append(1e3 * (time.perf_counter() - start))
    return {
        "sweeps": len(taken),
        "ms_sweep_p50": round(statistics.median(taken), 3),
        "ms_sweep_max": round(max(taken), 3),
    }


def measure(folder: Path, names: list[str], *, calls: int, expired: int, durable: bool) -> dict[str, float]:
    """All figures of the store in a folder, whose responses are `names`."""
    rng = random.Random(1)
    figures = {"stored_mb": round((folder / FILE_NAME).stat().st_size / 1e6, 1), **opening(folder, durable=durable)}
    with closing(connect(folder, durable=durable)) as store:
        figures |= single_calls(store, calls, names, rng)
        figures |= sweeping(store, expired, rng)
        start = time.perf_counter()
        assert check.check(store) == []
        figures["ms_check"] = round(1e3 * (time.perf_counter() - start), 1)
    return figures


@click.command()
@click.option("--gigabytes", default=1.0, help="How much is in the full store.")
@click.option("--calls", default=1000, help="Calls of each kind; a tenth of them for pieces of files.")
@click.option("--expired", default=2000, help="Responses that the sweep deletes.")
@click.option(
    "--folder", type=click.Path(path_type=Path, exists=True), help="Where to write.  [default: a temporary folder]"
)
@click.option("--durable", is_flag=True, help="Wait for the disk at every transaction.")
def main(gigabytes: float, calls: int, expired: int, folder: Path | None, durable: bool) -> None:
    """Measure the store, and print the figures."""
    for num_bytes in (0.0, gigabytes * 1e9):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            with closing(connect(Path(scratch))) as store:
                names = fill(store, num_bytes, random.Random(0))
            figures = measure(Path(scratch), names, calls=calls, expired=expired, durable=durable)
        print(json.dumps({"durable": durable, "calls": calls, "expired": expired, **figures}), flush=True)


if __name__ == "__main__":
    main()
