"""The store and its background worker, as a frontend has them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.link.worker_link import WorkerLink
from scheduler_svc.frontend.storing.sweeping import Sweeper
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions


@dataclass(frozen=True)
class Storage:
    """What frontends keep, and who works on it."""

    thread: StoreThread
    options: StoreOptions
    worker: WorkerLink
    sweeper: Sweeper

    @classmethod
    def open(cls, options: StoreOptions, keys: ApiKeys, *, makes: bool) -> Self | None:
        """Open the store; None where there is none. Raises StoreError if it cannot be opened.

        Args:
            keys: whose clients keep what they have.
            makes: whether to make a missing one; the child of a scheduler, which has made it, must not.
        """
        if options.folder is None:
            return None
        thread = StoreThread(options.folder, durable=options.durable, makes=makes)
        return cls(thread, options, WorkerLink(options.folder), Sweeper(thread, keys))


@asynccontextmanager
async def in_use(storage: Storage | None) -> AsyncIterator[None]:
    """What has expired or was deleted leaves the disk, and at the end what is waiting is done."""
    if storage is None:
        yield
        return
    sweeping = asyncio.create_task(storage.sweeper.run())
    try:
        yield
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await storage.worker.close()
        await asyncio.to_thread(storage.thread.close)
