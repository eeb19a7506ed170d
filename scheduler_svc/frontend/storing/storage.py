"""The store and its background worker, as a frontend has them."""

from dataclasses import dataclass
from typing import Self

from scheduler_svc.frontend.link.worker_link import WorkerLink
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions


@dataclass(frozen=True)
class Storage:
    """What frontends keep, and who works on it."""

    thread: StoreThread
    options: StoreOptions
    worker: WorkerLink

    @classmethod
    def open(cls, options: StoreOptions) -> Self | None:
        """None where there is no store. Raises StoreError if it cannot be opened."""
        if options.folder is None:
            return None
        thread = StoreThread(options.folder, durable=options.durable)
        return cls(thread, options, WorkerLink(options.folder))

    async def close(self) -> None:
        """Do what is waiting, and let go of both."""
        await self.worker.close()
        self.thread.close()
