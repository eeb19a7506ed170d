"""The lines of a batch's input, read from the store a piece at a time."""

import asyncio
from collections.abc import AsyncIterator
from itertools import islice

from scheduler_svc.frontend.background.patient_store import PatientStore
from scheduler_svc.frontend.requests.batches.input_lines import InputLine, LineSplitter
from scheduler_svc.store import files
from scheduler_svc.store.records import Progress, StoredBatch

PIECE_BYTES = 2**18
LINES_AT_ONCE = 512  # cut off in about a ms; then the event loop has a turn


async def input_lines(store: PatientStore, batch: StoredBatch, start: Progress) -> AsyncIterator[list[InputLine]]:
    """The lines of a batch's input from `start` on, at most `LINES_AT_ONCE` together; sometimes none, so that whoever
    takes them may look at other things. Raises NotFound without the file."""
    splitter = LineSplitter(start.next_offset, start.next_line)
    offset = start.next_offset
    while True:
        piece = await store.ask(
            batch.owner, files.read, batch.owner, batch.input_file_id, store.now(), offset=offset, limit=PIECE_BYTES
        )
        offset += len(piece)
        lines = splitter.feed(piece) if piece else splitter.end()
        is_more = True
        while is_more:
            await asyncio.sleep(0)
            some = list(islice(lines, LINES_AT_ONCE))
            is_more = len(some) == LINES_AT_ONCE
            yield some
        if not piece:
            return
