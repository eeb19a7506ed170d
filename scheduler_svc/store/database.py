"""The store's SQLite database: how it is opened by several processes, and what a transaction is."""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from common.trust import WAIVED, is_waived, why_changeable, why_untrusted
from scheduler_svc.store.errors import StoreBusy, StoreDamaged, StoreError
from scheduler_svc.store.schema import APPLICATION_ID, STEPS

FILE_NAME = "store.db"
USERS_NAME = f"{FILE_NAME}.users"  # locked by those who keep it open
MARK_NAME = f"{FILE_NAME}.damaged"  # is there while a damaged one is still to be moved aside
SCHEDULER_LOCK = "scheduler.lock"  # locked by the scheduler whose store it is
FILE_NAMES = (*(FILE_NAME + suffix for suffix in ("", "-wal", "-shm", "-journal", ".lock")), USERS_NAME, MARK_NAME)
BUSY_TIMEOUT_S = 10.0  # a writer waits that long for the transactions of others
OPEN_TIMEOUT_S = 30.0  # for others that open or migrate the store
CHECKPOINT_PAGES = 1000  # of 4 KiB in the write-ahead log until they are copied into the database
MAX_LOG_BYTES = 16 << 20  # a log that grew beyond is cut after its checkpoint

_ID_OFFSET = 68  # of the application's id in the header of an SQLite file
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def connect(folder: Path, *, durable: bool = False, open_timeout_s: float = OPEN_TIMEOUT_S) -> Connection:
    """A connection to the store in `folder`, which is made if it is missing, and brought to this release's version.

    The connection may be given to another thread, and is for one thread at a time. Functions that use it raise
    `sqlite3.Error` where SQLite fails; `explained` says what that means, and `StoreThread` calls it.

    Args:
        durable: whether each transaction waits until the disk has it.
        open_timeout_s: how long others may take to open it.

    Raises:
        StoreDamaged: the file is ours and broken.
        StoreError: it cannot be opened, belongs to another program or to a newer release, another user could have put
            it there or can read it, or others open it for longer than that.
    """
    path = folder / FILE_NAME
    require_trusted(folder, FILE_NAMES)  # before anything is made there
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # no other user may read it
        lock_fd = os.open(folder / f"{FILE_NAME}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"store {path} cannot be opened: {error.strerror}; name another folder by --store") from error
    try:
        require_trusted(folder, FILE_NAMES)  # another user may have been faster to make the folder, in /tmp for example
        _lock(lock_fd, path, open_timeout_s)  # a change of the mode or of the version is for one process
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path, durable=durable)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        told = explained(error, f"store {path} cannot be opened")
        if isinstance(told, StoreDamaged) and not _has_our_id(path):
            told = StoreError(f"{path} is not a store: {error}; move it away, or name another folder by --store")
        raise told from error
    finally:
        os.close(lock_fd)
    return connection


def require_trusted(folder: Path, names: Iterable[str]) -> None:
    """Check the folder of a store, in which no other user may make files, and files in it. What is not there is not
    looked at.

    Raises:
        StoreError: another user could have put one of them there, or could change or read it.
    """
    faults = (why_untrusted(path, is_private=True) for path in (folder, *(folder / name for name in names)))
    fault = next(filter(None, faults), None)
    if fault is None and folder.is_dir() and not is_waived():
        fault = why_changeable(folder, folder.stat(), spares_sticky=False)
    if fault is not None:
        raise StoreError(f"store {folder} is refused: {fault}; or name another folder by --store; or {WAIVED}")


@contextmanager
def writing(connection: Connection) -> Iterator[None]:
    """A transaction that may write from its beginning. It is undone if anything is raised inside, or at its end."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has ended it already after some errors, as that of a full disk
            connection.execute("ROLLBACK")
        raise


@contextmanager
def reading(connection: Connection) -> Iterator[None]:
    """A transaction in which all that is read is of one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def data_version(connection: Connection) -> int:
    """A number that changes when another connection has written. Costs some microseconds: for those who poll."""
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def explained(error: sqlite3.Error, what: str) -> StoreError:
    """What an error of SQLite means to a caller.

    Args:
        what: was tried: the beginning of the message.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of it is details
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    kind = StoreBusy if code in _BUSY else StoreDamaged if code in _DAMAGED else StoreError
    return kind(f"{what}: {error} ({name})")


def _has_our_id(path: Path) -> bool:
    """Tell whether the header of a file that SQLite cannot read still says that it is ours."""
    with path.open("rb") as file:
        return file.read(_ID_OFFSET + 4)[_ID_OFFSET:] == APPLICATION_ID.to_bytes(4)


def _lock(lock_fd: int, path: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                message = f"store {path}: another process has been opening it for {timeout_s:g} s"
                raise StoreBusy(message) from error
            time.sleep(0.01)
        except OSError as error:
            raise StoreError(f"store {path} cannot be locked: {error.strerror}") from error
        else:
            return


def _prepare(connection: Connection, path: Path, *, durable: bool) -> None:
    """Make the tables, or check before any change that the file is ours; then set the connection up."""

    def pragma(text: str) -> Any:
        return connection.execute(f"PRAGMA {text}").fetchone()[0]

    version = version_of(connection, path)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts before the first table only
    if (mode := pragma("journal_mode = WAL")) != "wal":
        raise StoreError(f"store {path}: its file system allows no write-ahead log (journal mode {mode})")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    if version < len(STEPS):
        _migrate(connection, version)
    pragma(f"wal_autocheckpoint = {CHECKPOINT_PAGES}")
    pragma(f"journal_size_limit = {MAX_LOG_BYTES}")
    pragma("secure_delete = FAST")  # some builds write zeros over each page that is freed


def version_of(connection: Connection, path: Path) -> int:
    """Return the version of a store's tables, 0 for an empty file.

    Raises:
        StoreDamaged: the tables are not those of its version.
        StoreError: the file is another program's, or a newer release's.
    """
    owner, version = (connection.execute(f"PRAGMA {n}").fetchone()[0] for n in ("application_id", "user_version"))
    is_empty = not connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
    if not (owner == APPLICATION_ID or (owner == 0 and is_empty)):
        raise StoreError(f"{path} is another program's database; name another folder")
    if version > len(STEPS):
        raise StoreError(
            f"store {path} has version {version}, which is newer than this release (it reads up to version "
            f"{len(STEPS)}); start the release that wrote it, or name another folder"
        )
    if version < 0 or (version == 0) != is_empty or _schema(connection) != _schema_of(version):
        raise StoreDamaged(f"store {path} is damaged: its tables are not those of version {version}")
    return int(version)


def _migrate(connection: Connection, version: int) -> None:
    """Take all steps from `version` in one transaction."""
    steps = "".join(STEPS[version:])
    marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {len(STEPS)};"
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {steps} {marks} COMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _schema(connection: Connection) -> list[tuple[str, ...]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY type, name"
    return connection.execute(query).fetchall()


def _schema_of(version: int) -> list[tuple[str, ...]]:
    """The tables that a store of this version has."""
    with closing(sqlite3.connect(":memory:")) as pattern:
        pattern.executescript("".join(STEPS[:version]))
        return _schema(pattern)
