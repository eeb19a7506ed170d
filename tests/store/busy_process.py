"""A process that writes into a store until it is killed, or a given number of times. Says after each write what it did.

python -m tests.store.busy_process FOLDER NAME COUNT
"""

import itertools
import sys
from pathlib import Path

from scheduler_svc.store import batch_results, batches, files, responses, sweep
from scheduler_svc.store.database import connect
from scheduler_svc.store.records import Progress
from tests.store.rows import batch, file, response, result

LINES = 4


def main() -> None:
    """One round after the other: a response, a file, a batch to its end, and a sweep of what was deleted."""
    folder, name, count = sys.argv[1:]
    store = connect(Path(folder))
    for number in itertools.islice(itertools.count(), int(count) or None):
        one_round(store, name, f"{name}-{number}")
        print(number, flush=True)


def one_round(store, owner, one):
    """Write each kind once. `one` is the id of all."""
    responses.add(store, response(one, owner, head=bytes(3000)))
    responses.begin(store, owner, one, 2.0)
    files.begin(store, file(one, owner))
    files.append(store, owner, one, 2.0, bytes(5000))
    responses.finish(store, owner, one, 2.0, status="completed", output_items=bytes(2000), tail=b"", tokens=b"")
    files.append(store, owner, one, 2.0, bytes(100))
    files.finish(store, owner, one, 2.0)
    batches.add(store, batch(one, owner))
    batches.start(store, owner, one, 2.0, total=LINES)
    for line in range(LINES):
        group = [result(line, is_error=line == 1)]
        batch_results.add_results(store, owner, one, 3.0, group, progress=Progress(line * 10, line))
    batches.begin_finalizing(store, owner, one, 3.0, ends_as="completed")
    while batch_results.finalize(store, owner, one, 3.0, output_file_id=f"{one}-out", error_file_id=f"{one}-err"):
        pass
    files.delete(store, owner, f"{one}-err", 4.0)
    sweep.sweep(store, 5.0, max_rows=3)


if __name__ == "__main__":
    main()
