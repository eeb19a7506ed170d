"""The thread through which a process with an asyncio loop uses the store: the loop never waits for a disk."""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from sqlite3 import Connection
from typing import Concatenate, ParamSpec, TypeVar

from scheduler_svc.store.database import connect, explained
from scheduler_svc.store.errors import StoreBusy, StoreClosed

MAX_CALLS = 256
CLOSE_TIMEOUT_S = 15.0

P = ParamSpec("P")
T = TypeVar("T")


class StoreThread:
    """One thread that owns a connection, and does one call after the other.

    `run` may be called from any loop and thread.

    Args:
        folder: of the store; see `database.connect`, whose errors this raises.
        durable: whether each transaction waits until the disk has it.
        max_calls: how many calls may wait or run.

    Raises:
        StoreError: the store cannot be opened.
    """

    def __init__(self, folder: Path, *, durable: bool = False, max_calls: int = MAX_CALLS) -> None:
        self._connection = connect(folder, durable=durable)
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_calls = 0
        self._max_calls = max_calls
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    @property
    def num_calls(self) -> int:
        """How many calls wait or run."""
        return self._num_calls

    async def run(self, function: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function(connection, *args, **kwargs)` in the thread; return what it returns, raise what it raises.

        A call whose task is cancelled is not begun any more; one that runs already is carried out.

        Raises:
            StoreBusy: `max_calls` calls wait already, or other processes kept the store too long. Nothing was done.
            StoreDamaged, StoreError: SQLite cannot do it: a broken file, a full disk. Nothing was done.
            StoreClosed: after `close`.
        """
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                self._leave()
                return
            try:
                result = function(self._connection, *args, **kwargs)
            except sqlite3.Error as error:
                self._leave()
                future.set_exception(explained(error, "the store failed"))
            except BaseException as error:
                self._leave()
                future.set_exception(error)
            else:
                self._leave()
                future.set_result(result)

        with self._lock:
            if self._is_closed:
                raise StoreClosed("the store is closed")
            if self._num_calls >= self._max_calls:
                raise StoreBusy(f"{self._num_calls} calls wait for the store, which is the limit")
            self._num_calls += 1
            self._calls.put(call)
        return await asyncio.wrap_future(future)

    def close(self) -> bool:
        """Do the calls that wait, and close the connection. Blocks; gives up after `CLOSE_TIMEOUT_S`.

        Returns:
            Whether all was done; False if the disk does not answer.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._calls.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # what it was given must not stay until the next one comes
        self._connection.close()

    def _leave(self) -> None:
        """A call is over. Before its caller hears of it, so that a caller's next call finds its place free."""
        with self._lock:
            self._num_calls -= 1
