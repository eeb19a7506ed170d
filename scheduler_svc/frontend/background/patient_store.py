"""The store as the worker has it: work in the background has time to wait for it."""

import asyncio
from collections.abc import Callable
from sqlite3 import Connection
from typing import Concatenate, ParamSpec, TypeVar

from common.logging import QuietLog, get_logger
from scheduler_svc.store.errors import StoreDamaged, StoreError, StoreGone
from scheduler_svc.store.store_thread import StoreThread

RETRY_S = 1.0

P = ParamSpec("P")
Result = TypeVar("Result")

log = get_logger(__name__)
failures = QuietLog(log, "the store failed")


class PatientStore:
    """Calls functions of the store until the store can carry them out.

    Args:
        retry_s: seconds from a failure to the next try.
    """

    def __init__(self, thread: StoreThread, *, retry_s: float = RETRY_S) -> None:
        self._thread = thread
        self._retry_s = retry_s

    def now(self) -> float:
        """Return the time by which records expire, in Unix seconds."""
        return self._thread.clock.now()

    async def ask(
        self, owner: str, function: Callable[Concatenate[Connection, P], Result], /, *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        """What the store answers, as soon as it does. Raises what the function raises, but no StoreError.

        Args:
            owner: as in `StoreThread.run`.
        """
        while True:
            try:
                return await self._thread.run(owner, function, *args, **kwargs)
            except StoreError as error:
                if not isinstance(error, (StoreGone, StoreDamaged)):  # which the thread has logged
                    failures.happened(reason=str(error), retry_in_s=self._retry_s)
                await asyncio.sleep(self._retry_s)
