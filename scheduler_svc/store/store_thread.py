"""The thread through which a process with an asyncio loop uses the store: the loop never waits for a disk."""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Concatenate, ParamSpec, TypeVar

from common.clocks import Clocks, read_clocks
from scheduler_svc.fair_queue import FairQueue, QueueFull
from scheduler_svc.store.errors import StoreBusy, StoreClosed, StoreError
from scheduler_svc.store.open_store import OpenStore
from scheduler_svc.store.store_clock import StoreClock

MAX_CALLS = 1024  # of an owner that is alone, some ms each; a quarter of them beside three others
CLOSE_TIMEOUT_S = 15.0
LOOK_S = 1.0  # between two looks at the file while there are no calls
SERVICE = ""  # the owner of calls that the service makes for itself, and of all where there are no API keys

P = ParamSpec("P")
T = TypeVar("T")


class StoreThread:
    """One thread that owns a connection, and does one call after the other: owners take turns.

    `run` may be called from any loop and thread.

    Args:
        folder: of the store; see `database.connect`, whose errors this raises.
        makes: as for `OpenStore`.
        durable: whether each transaction waits until the disk has it.
        max_calls: how many may wait or run, as in `FairQueue`.
        clocks: what the machine's clocks show.

    Raises:
        StoreError: the store cannot be opened.

    Attributes:
        clock: by which records expire.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool = False,
        makes: bool = True,
        max_calls: int = MAX_CALLS,
        clocks: Callable[[], Clocks] = read_clocks,
    ) -> None:
        self._store = OpenStore(folder, durable=durable, makes=makes)
        self.clock = StoreClock(clocks)
        with suppress(StoreError):  # a disk that is full now does not keep a process from starting
            self._store.call(self.clock.keep)
        self._calls = FairQueue(max_calls)
        self._tickets: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True for each call; False ends the thread
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    @property
    def num_calls(self) -> int:
        """How many calls wait or run."""
        return self._calls.num_pieces

    async def run(
        self, owner: str, function: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call `function(connection, *args, **kwargs)` in the thread; return what it returns, raise what it raises.

        A call whose task is cancelled is not begun any more; one that runs already is carried out.

        Args:
            owner: the id of the API key for which it is done, or `SERVICE`.

        Raises:
            StoreBusy: the owner has as many calls as it may have, or other processes kept the store too long. Nothing
                was done.
            StoreGone, StoreDamaged, StoreError: as `OpenStore.call`. Nothing was done.
            StoreClosed: after `close`.
        """
        with self._lock:
            if self._is_closed:
                raise StoreClosed("the store is closed")
            try:
                future = self._calls.put(owner, partial(self._store.call, function, *args, **kwargs))
            except QueueFull as error:
                raise StoreBusy(f"the store: {error}") from error
            self._tickets.put(True)
        return await asyncio.wrap_future(future)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Do the calls that wait, and close the connection. Blocks; gives up after a while.

        Returns:
            Whether all was done; False if the disk does not answer.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._tickets.put(False)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            try:
                is_call = self._tickets.get(timeout=LOOK_S)
            except queue.Empty:
                self._store.look()
                continue
            if not is_call:
                break
            self._calls.do_next()
        self._store.close()
