"""The lines of a batch's input, read from the store a piece at a time."""

import time
from collections.abc import AsyncIterator

from scheduler_svc.frontend.background.patient_store import PatientStore
from scheduler_svc.frontend.requests.batches.input_lines import InputLine, LineSplitter
from scheduler_svc.store import files
from scheduler_svc.store.records import Progress, StoredBatch

PIECE_BYTES = 2**18


async def input_lines(store: PatientStore, batch: StoredBatch, start: Progress) -> AsyncIterator[list[InputLine]]:
    """The lines of a batch's input from `start` on, those of one piece together. Raises NotFound without the file."""
    splitter = LineSplitter(start.next_offset, start.next_line)
    offset = start.next_offset
    while True:
        piece = await store.ask(
            batch.owner, files.read, batch.owner, batch.input_file_id, time.time(), offset=offset, limit=PIECE_BYTES
        )
        if not piece:
            yield splitter.end()
            return
        offset += len(piece)
        yield splitter.feed(piece)
