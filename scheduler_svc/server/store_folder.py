"""The folder of the store, which is one scheduler's, and the socket of its background worker."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection

from common.logging import get_logger
from common.socket_path import SocketPath
from scheduler_svc.store import batches, owners, responses
from scheduler_svc.store.database import FILE_NAMES, SCHEDULER_LOCK, require_trusted
from scheduler_svc.store.errors import StoreDamaged, StoreError
from scheduler_svc.store.open_store import OpenStore
from scheduler_svc.store.store_clock import StoreClock
from scheduler_svc.store_options import WORKER_SOCKET

LOCK_TIMEOUT_S = 15.0  # for a scheduler that was killed a moment ago
RETRY_S = 0.1
BACKLOG = 128

log = get_logger(__name__)


class StoreFolder:
    """The store as the scheduler sees it: opened once to see that it can be, and not used any further.

    Args:
        client_ids: of all keys, by their names: earlier releases knew owners by these. None if nobody needs a key:
            then owners stay what they are.
        is_stopping: whether to wait no longer for another scheduler to end.

    Raises:
        StoreError: it cannot be opened, another scheduler has it, or another user could have put a file of it there.

    Attributes:
        has_work: whether there is something for the background worker.
        listener: listening Unix socket of the worker.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool,
        client_ids: Mapping[str, str] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lock = _lock(folder, is_stopping)  # before anything is read or changed: another one may have it
        try:
            with closing(OpenStore(folder, durable=durable, makes=True)) as store:
                self.has_work = _look(store, client_ids)
            self.listener = _listen(folder)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let another scheduler have it."""
        self.listener.close()
        os.close(self._lock)


def _look(store: OpenStore, client_ids: Mapping[str, str] | None) -> bool:
    """Take over what belongs to names, and say whether there is something for the worker."""

    def look(connection: Connection) -> bool:
        if client_ids is not None:
            _take_over(connection, client_ids)
        clock = StoreClock()
        clock.keep(connection)
        now = clock.now()
        has_response = responses.open_background(connection, now, limit=1)
        return bool(has_response or batches.open_batches(connection, now, limit=1))

    try:
        return store.call(look)
    except StoreDamaged:
        return store.call(look)  # in the new one


def _take_over(connection: Connection, client_ids: Mapping[str, str]) -> None:
    taken, left = owners.take_over(connection, client_ids)
    if taken or left:
        log.info("stored records belong to ids of keys now, not to names", owners=taken, names_without_key=left)


def _lock(folder: Path, is_stopping: Callable[[], bool]) -> int:
    """Lock the folder. The kernel releases the lock when the process dies, however it dies."""
    require_trusted(folder, (SCHEDULER_LOCK, *FILE_NAMES))  # before anything is made there
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / SCHEDULER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = f"{error.strerror}; name another folder by --store"
        raise StoreError(f"store {folder} cannot be opened: {reason}") from error
    give_up_at = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > give_up_at or is_stopping():
                holder = os.read(lock, 200).decode(errors="replace")
                os.close(lock)
                raise StoreError(f"store {folder} is in use by another scheduler ({holder})") from error
            time.sleep(RETRY_S)
        else:
            with contextlib.suppress(OSError):  # on a full disk: the holder's name is only for the message above
                os.ftruncate(lock, 0)
                os.write(lock, f"pid {os.getpid()} on {socket.gethostname()}".encode())
            return lock


def _listen(folder: Path) -> socket.socket:
    """A listening socket for this user alone."""
    path = folder / WORKER_SOCKET
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        with SocketPath(path) as place:
            listener.bind(place.path)
            os.chmod(place.path, 0o600)  # what asks there is not asked for a key
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise StoreError(f"{path} cannot be made: {reason}; name another folder by --store") from error
    listener.listen(BACKLOG)
    listener.setblocking(False)  # who looks whether there is a connection must not wait for one
    listener.set_inheritable(True)
    return listener
