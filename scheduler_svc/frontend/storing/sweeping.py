"""Deletes what has expired, and the contents of what was deleted, a little at a time."""

import asyncio
import contextlib
import time

from common.logging import get_logger
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.store.errors import StoreDamaged, StoreError, StoreGone
from scheduler_svc.store.store_thread import SERVICE, StoreThread
from scheduler_svc.store.sweep import sweep

INTERVAL_S = 60.0  # between two looks for what has expired, and for what another process has left

log = get_logger(__name__)


class Sweeper:
    """Sweeps the store of one process. Several processes may do it at once.

    Args:
        keys: whose clients keep what they have.
    """

    def __init__(self, thread: StoreThread, keys: ApiKeys) -> None:
        self._thread = thread
        self._keys = keys
        self._has_deleted = asyncio.Event()

    def wake(self) -> None:
        """Something was deleted, whose content is to leave the disk, and the quota of its owner."""
        self._has_deleted.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._has_deleted.clear()
            began = time.monotonic()
            if await self._sweep():
                # As long as the call took with its wait for a turn: at least half of the time is for others, and a
                # disk or a store that has much to do is asked for less.
                await asyncio.sleep(time.monotonic() - began)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_deleted.wait(), INTERVAL_S)

    async def _sweep(self) -> bool:
        """One call. Returns whether there is more to do."""
        try:
            await self._thread.run(SERVICE, self._thread.clock.keep)
            now, known = self._thread.clock.now(), self._keys.known_ids()
            return (await self._thread.run(SERVICE, sweep, now, known=known)).is_more
        except (StoreGone, StoreDamaged):
            return False  # the thread has logged it
        except StoreError as error:
            log.error("the store cannot be swept", reason=str(error))
            return False
