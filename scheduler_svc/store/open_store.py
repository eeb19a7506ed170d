"""The store while a process has it open: whether its file is still in its place, and what is done if it is damaged."""

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Concatenate, ParamSpec, TypeVar

from common.logging import get_logger
from common.set_aside import beside, move_aside
from scheduler_svc.store.database import FILE_NAME, MARK_NAME, USERS_NAME, connect, explained
from scheduler_svc.store.errors import StoreDamaged, StoreError, StoreGone

_BESIDE = ("-wal", "-shm")

P = ParamSpec("P")
T = TypeVar("T")

log = get_logger(__name__)


class OpenStore:
    """Calls functions of the store on a connection that this process keeps.

    **A file that is missing, or is another one,** gets no calls: what they write would be lost with it. The old one may
    be put back; otherwise the service has to be started again.

    **A damaged file** is moved aside, and a new one is begun in its place. SQLite deletes a log by its name when the
    last connection closes, and that would be the new one's; so all processes have to close the damaged one before. Who
    meets damage leaves a mark, at which the others close theirs with their next call or `look`. Each holds a shared
    lock as long as the file is open, and who gets that lock alone moves the file.

    Args:
        folder: of the store.
        durable: whether each transaction waits until the disk has it.
        makes: whether to make a store where there is none. Only one process at a time may be given this, as the file
            could be about to be put back.

    Raises:
        StoreError: it cannot be opened.
    """

    def __init__(self, folder: Path, *, durable: bool, makes: bool) -> None:
        self._folder = folder
        self._path = folder / FILE_NAME
        self._mark = folder / MARK_NAME
        self._durable = durable
        self._connection: Connection | None = None
        self._users_fd = -1
        self._file = (0, 0)
        self._is_gone = False
        self._told = ("", "")
        if makes and not self._mark.exists():
            self._make()
        with suppress(StoreGone, StoreDamaged):  # the next call tries again
            self._ready()

    def call(self, function: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function(connection, *args, **kwargs)`.

        Raises:
            StoreGone: the file is not in its place.
            StoreDamaged: it is damaged; one of the next calls finds a new one.
            StoreBusy, StoreError: SQLite cannot do it.
        """
        connection = self._ready()
        try:
            return function(connection, *args, **kwargs)
        except sqlite3.Error as error:
            told = explained(error, "the store failed")
            if isinstance(told, StoreDamaged):
                self._met_damage(told)
            raise told from error

    def look(self) -> None:
        """Do what another process may wait for; to be called about once a second."""
        with suppress(StoreError):
            self._ready()

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._users_fd >= 0:
            os.close(self._users_fd)  # last: whoever gets its lock may rely on the connection being closed
            self._users_fd = -1

    def _ready(self) -> Connection:
        if os.path.exists(self._mark):
            self._replace()
        if self._connection is None:
            self._open()
        assert self._connection is not None
        self._require_in_place()
        return self._connection

    def _make(self) -> None:
        try:
            connect(self._folder, durable=self._durable).close()
        except StoreDamaged as damage:
            self._met_damage(damage)

    def _open(self) -> None:
        self._require_in_place()
        try:
            self._users_fd = self._lock(fcntl.LOCK_SH)
            self._connection = connect(self._folder, durable=self._durable)
            status = self._path.stat()
        except StoreDamaged as damage:
            self._met_damage(damage)
            raise
        except OSError as error:  # of the lock; or the file has gone meanwhile, as the next call says
            self.close()
            raise StoreError(f"store {self._path} cannot be opened: {error.strerror}") from error
        except BaseException:
            self.close()
            raise
        self._file = (status.st_dev, status.st_ino)

    def _require_in_place(self) -> None:
        """Raise StoreGone if the file is missing, or not the open one. Log that once, and once that it is back."""
        try:
            status = os.stat(self._path)
            reason = ""
            if self._connection is not None and (status.st_dev, status.st_ino) != self._file:
                reason = "another file is in its place"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason and not self._is_gone:
            log.error(
                "the store is gone: put it back, or start the scheduler again", path=str(self._path), reason=reason
            )
        elif self._is_gone and not reason:
            log.info("the store is back", path=str(self._path))
        self._is_gone = bool(reason)
        if reason:
            raise StoreGone(f"store {self._path} is gone: {reason}")

    def _met_damage(self, damage: StoreDamaged) -> None:
        """Close the file, and leave the mark at which others do."""
        self.close()
        try:
            os.close(os.open(self._mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return  # another process was faster
        except OSError:
            pass  # on a full disk others have to meet the damage themselves
        self._tell("the store is damaged", str(damage))

    def _replace(self) -> None:
        """Move the damaged file aside, and begin a new one, if no process has the damaged one open.

        Raises:
            StoreDamaged: some process has, or the folder does not let us.
        """
        self.close()
        try:
            alone = self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreDamaged(f"store {self._path} is damaged, and about to be moved aside") from None
        except OSError as error:
            raise self._immovable(error) from error
        try:
            if not self._mark.exists():
                return  # another process was faster
            if self._path.exists():
                moved_to = move_aside(self._path, _BESIDE)
                log.error("a new store is begun", path=str(self._path), damaged_one=str(moved_to))
            self._begin_anew()
            self._mark.unlink()
        except OSError as error:
            raise self._immovable(error) from error
        finally:
            os.close(alone)

    def _immovable(self, error: OSError) -> StoreDamaged:
        self._tell("the store is damaged and cannot be moved aside", error.strerror or str(error))
        return StoreDamaged(f"store {self._path} is damaged and cannot be moved aside: {error.strerror}")

    def _tell(self, event: str, reason: str) -> None:
        """Log it, unless that was the last thing to be told: the next call meets the same."""
        if self._told != (event, reason):
            self._told = event, reason
            log.error(event, path=str(self._path), reason=reason)

    def _begin_anew(self) -> None:
        try:
            connect(self._folder, durable=self._durable).close()
        except BaseException:  # a full disk, for example; what is left is not to be taken for the damaged one
            for suffix in ("", *_BESIDE):
                beside(self._path, suffix).unlink(missing_ok=True)
            raise

    def _lock(self, kind: int) -> int:
        """Lock as one who has the store open; the descriptor holds the lock. Wait for one who moves it, some ms."""
        fd = os.open(self._folder / USERS_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, kind)
        except BaseException:
            os.close(fd)
            raise
        return fd
