"""A process that has a store open, and does what it is told, a line at a time: `add ID`, `get ID`.

    python -m tests.store.asked_process FOLDER makes|finds

Its answers are `done`, `none`, or the name of the error.
"""

import asyncio
import sys
from contextlib import closing
from pathlib import Path

from common.errors import BatonError
from common.logging import setup_logging
from scheduler_svc.store import responses
from scheduler_svc.store.store_thread import StoreThread
from tests.store.rows import response

if __name__ == "__main__":
    setup_logging("asked", "info", "logfmt")
    with closing(StoreThread(Path(sys.argv[1]), makes=sys.argv[2] == "makes")) as thread:
        for line in sys.stdin:
            what, record_id = line.split()
            try:
                if what == "add":
                    asyncio.run(thread.run("ann", responses.add, response(record_id, head=bytes(20_000))))
                else:
                    asyncio.run(thread.run("ann", responses.measure, "ann", record_id, 2.0))
                print("done", flush=True)
            except BatonError as error:
                print(type(error).__name__, flush=True)
