"""Measures the store in a thread: its disk may hang, and the core must not wait for it."""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection

from common.logging import get_logger
from common.messages import StoreStatus
from common.paths import why_not
from scheduler_svc.core.observability.frontend_counts import OTHER
from scheduler_svc.store import batches, quotas, responses
from scheduler_svc.store.database import FILE_NAME, reading
from scheduler_svc.store.errors import StoreDamaged, StoreError, StoreGone
from scheduler_svc.store.open_store import OpenStore

INTERVAL_S = 1.0  # others may wait so long for this process to close a damaged store
MAX_CLIENTS = 64  # that are named

log = get_logger(__name__)


class StoreWatch:
    """Reads each second how full the store is, and what is open. It makes no store, and changes nothing in one.

    Args:
        folder: of the store.
        limit_bytes: that each API key may have there; 0 for no limit.
        names: gives the names of API keys by the ids of their clients, as they are now.

    Attributes:
        status: as it was read last; None before that, and while it cannot be read.
        failure: why it cannot be read; empty if it can.
    """

    def __init__(self, folder: Path, limit_bytes: int, names: Callable[[], Mapping[str, str]]) -> None:
        self.status: StoreStatus | None = None
        self.failure = ""
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._names = names
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read no more. Does not wait for a disk that hangs."""
        self._stopping.set()
        self._thread.join(timeout=INTERVAL_S)

    def _run(self) -> None:
        store = None
        while not self._stopping.is_set():
            try:
                store = store or OpenStore(self._folder, durable=False, makes=False)
                self.status, self.failure = self._read(store), ""
            except Exception as error:  # without this thread nobody would see that the values are old
                self._cannot_read(error)
            self._stopping.wait(INTERVAL_S)
        if store is not None:
            store.close()

    def _read(self, store: OpenStore) -> StoreStatus:
        used, num_batches, num_responses = store.call(_counts)
        disk = shutil.disk_usage(self._folder)
        return StoreStatus(
            bytes_on_disk=_file_bytes(self._folder),
            free_bytes=disk.free,
            disk_bytes=disk.total,
            clients=self._by_name(*used),
            limit_bytes=self._limit_bytes,
            open_batches=num_batches,
            open_responses=num_responses,
        )

    def _by_name(self, used: Mapping[str, int], rest: int) -> dict[str, int]:
        """Name the owners. A name may be that of several keys, one after the other."""
        names = self._names()
        by_name = Counter({OTHER: rest})
        for owner, num_bytes in used.items():
            by_name[names.get(owner, OTHER)] += num_bytes
        return dict(by_name)

    def _cannot_read(self, error: Exception) -> None:
        """Keep why, and log it once; `OpenStore` has logged a store that is gone or damaged."""
        before, is_ours = self.failure, not isinstance(error, StoreError | OSError)
        self.status, self.failure = None, why_not(error) or type(error).__name__
        if self.failure != before and not isinstance(error, StoreGone | StoreDamaged):
            log.warning("the store cannot be measured", reason=self.failure, exc_info=is_ours)


def _counts(connection: Connection) -> tuple[tuple[dict[str, int], int], int, int]:
    with reading(connection):
        used = quotas.fullest(connection, MAX_CLIENTS)
        return used, batches.count_all_open(connection), responses.count_all_open(connection)


def _file_bytes(folder: Path) -> int:
    """Add up the database, its log, and what was damaged and is kept beside it."""
    num_bytes = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(FILE_NAME):
                with suppress(FileNotFoundError):  # a log goes when it is closed
                    num_bytes += entry.stat(follow_symlinks=False).st_size
    return num_bytes
