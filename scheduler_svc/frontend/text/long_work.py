"""Work that would hold the event loop: done in a few threads, one piece after the other, and its memory given back."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from common.malloc import trim
from scheduler_svc.fair_queue import FairQueue

WORTH_A_THREAD = 4_000  # characters or items; about 2 ms of tokenizing, by which every stream would wait
WORTH_A_TRIM = 2**17  # characters; tokenizing takes about a hundred bytes for each
NUM_THREADS = 2  # more would wait for each other, and take the memory of as many long texts at once

Result = TypeVar("Result")


class LongWork:
    """Threads for work on long texts. Owners whose pieces find no thread free take turns. Nothing is refused: what
    waits are requests, whose connections and bodies are bounded where they come in."""

    def __init__(self) -> None:
        self._queue = FairQueue()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="long work")

    async def run(self, owner: str, size: int, work: Callable[[], Result]) -> Result:
        """Do `work` on something of this size (characters, items): at once if it is short, else in a thread.

        Args:
            owner: the id of the API key for which it is done.
        """
        if size <= WORTH_A_THREAD:
            return work()
        future = self._queue.put(owner, partial(self._do, size, work))
        self._threads.submit(self._queue.do_next)
        return await asyncio.wrap_future(future)

    def _do(self, size: int, work: Callable[[], Result]) -> Result:
        try:
            return work()
        finally:
            if size > WORTH_A_TRIM:
                trim()
