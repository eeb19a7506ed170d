"""The journal's file: numbered rows of bytes in an SQLite database in WAL mode, and the lock on it."""

import fcntl
import os
import socket
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from common.errors import BatonError
from common.logging import get_logger
from common.messages import PROTOCOL_VERSION

FORMAT_VERSION = 100 + PROTOCOL_VERSION  # batches hold messages of the protocol
APPLICATION_ID = 0x4261746E  # "Batn": tells our file from another program's
CHECKPOINT_PAGES = 1000  # of 4 KiB in the write-ahead log until they are copied into the database
MAX_LOG_BYTES = 8 << 20  # a log that grew beyond is cut after its checkpoint
HOUSEKEEPING_EVERY = 64  # rows
SPARE_PAGES = 1024  # free pages that stay in the file for the rows to come
SHRINK_PAGES = 256  # given back in one go, so that a row waits a millisecond for it and not a second
_EVERY_ROW = 2**63 - 1

# The trigger makes an insert and what it deletes one statement, and so one transaction and one call into SQLite.
_CREATE = f"""
PRAGMA auto_vacuum = INCREMENTAL;
BEGIN;
CREATE TABLE batches (number INTEGER PRIMARY KEY, keep_from INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE TRIGGER forget BEFORE INSERT ON batches BEGIN DELETE FROM batches WHERE number < NEW.keep_from; END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""  # noqa: S608 (our own constants)
# A row that failed can still be in the file, if the disk broke after the write; so a number may come again.
_INSERT = "INSERT OR REPLACE INTO batches VALUES (?, ?, ?)"

log = get_logger(__name__)


class JournalError(BatonError):
    """The journal cannot be used: the message says which file, and what is wrong with it."""


class _DamagedError(JournalError):
    """The file is ours, and its structure is broken."""


class JournalFile:
    """The database. Every method may wait for the disk; one thread at a time may call them.

    Args:
        path: of the database; its folder has to exist.
        durable: whether each `save` waits until the disk has the row.

    Attributes:
        age_s: seconds from the last write of an earlier life to the opening; 0 for a new file.
        num_bytes: of the database and its log, when last looked at (at most `HOUSEKEEPING_EVERY` rows ago).

    Raises:
        JournalError: the file cannot be opened, or belongs to another program or version.
    """

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        written_at = [file.stat().st_mtime for file in self._files()]  # asked before opening, which can write
        self.age_s = max(0.0, time.time() - max(written_at)) if written_at else 0.0
        self.num_bytes = 0
        self._durable = durable
        self._num_saved = 0
        self._connection: sqlite3.Connection | None = self._open()

    def load(self) -> list[tuple[int, bytes]]:
        """Number and payload of every row, in order.

        Raises:
            JournalError: the disk cannot be read.
        """
        assert self._connection is not None
        try:
            return self._connection.execute("SELECT number, payload FROM batches ORDER BY number").fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"journal {self.path} cannot be read: {error}") from error

    def save(self, number: int, payload: bytes, keep_from: int, *, reset: bool) -> None:
        """Insert a row and delete those with numbers below `keep_from`, or with `reset` all others.

        Raises:
            sqlite3.Error: the disk is full or broken. Nothing has changed, and the next call opens the file anew.
            JournalError: the file could not be opened anew.
        """
        if self._connection is None:
            self._connection = self._open()
        try:
            if self._num_saved % HOUSEKEEPING_EVERY == 0:
                self._keep_house(self._connection)
            self._connection.execute(_INSERT, (number, _EVERY_ROW if reset else keep_from, payload))
        except sqlite3.Error:
            self.close()  # also copies what can be copied from the log, and so may make room on a full disk
            raise
        self._num_saved += 1

    def close(self) -> None:
        """Copy the log into the database and close it. It can be opened again by `save`."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _keep_house(self, connection: sqlite3.Connection) -> None:
        """Give unused pages back, and look at the size."""
        (num_free,) = connection.execute("PRAGMA freelist_count").fetchone()
        if num_free > SPARE_PAGES:
            num_pages = min(num_free - SPARE_PAGES, SHRINK_PAGES)
            connection.executescript(f"PRAGMA incremental_vacuum({num_pages})")  # `execute` would stop after one page
        self.num_bytes = sum(file.stat().st_size for file in self._files())

    def _files(self) -> list[Path]:
        return [file for file in (self.path, beside(self.path, "-wal")) if file.exists()]

    def _open(self) -> sqlite3.Connection:
        try:
            return _connect(self.path, self._durable)
        except _DamagedError as damage:
            moved_to = _move_aside(self.path)
            log.error("journal damaged, begun anew without its requests", moved_to=str(moved_to), reason=str(damage))
            return _connect(self.path, self._durable)


def lock(path: Path) -> int:
    """Lock the file `<name>.lock` beside the journal.

    The kernel releases the lock when the process dies, however it dies; so the file is never removed and never stale.

    Returns:
        Its descriptor. Closing it unlocks.

    Raises:
        JournalError: another process has the lock, or the folder is missing or cannot be written to.
    """
    try:
        fd = os.open(beside(path, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise JournalError(f"journal {path} cannot be opened: there is no folder {path.parent}") from error
    except OSError as error:
        raise JournalError(f"journal {path} cannot be opened: {path.parent}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(fd, 200).decode(errors="replace")
        os.close(fd)
        raise JournalError(f"journal {path} is in use by another scheduler ({holder})") from error
    except OSError as error:
        os.close(fd)
        raise JournalError(f"journal {path} cannot be locked: {error.strerror}") from error
    with suppress(OSError):  # on a full disk we go on: the holder's name is only for the message above
        os.ftruncate(fd, 0)
        os.write(fd, f"pid {os.getpid()} on {socket.gethostname()}".encode())
    return fd


def beside(path: Path, suffix: str) -> Path:
    """`path` with something added to its name."""
    return path.with_name(path.name + suffix)


def _connect(path: Path, durable: bool) -> sqlite3.Connection:
    """A connection to a whole journal, or to a new one."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # no other user may read prompts
    except OSError as error:
        raise JournalError(f"journal {path} cannot be opened: {error.strerror}") from error
    connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path, durable)
    except JournalError:
        connection.close()
        raise
    except sqlite3.Error as error:
        connection.close()
        match error.sqlite_errorcode & 0xFF:  # the rest of it is details
            case sqlite3.SQLITE_CORRUPT:
                raise _DamagedError(str(error)) from error
            case sqlite3.SQLITE_NOTADB:
                raise JournalError(f"{path} is not a journal: {error}; move it away or name another file") from error
        raise JournalError(f"journal {path} cannot be opened: {error} ({error.sqlite_errorname})") from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, durable: bool) -> None:
    """Make the tables, or check before any change that the file is ours; then set the connection up."""

    def pragma(text: str) -> int | str:
        value: int | str = connection.execute(f"PRAGMA {text}").fetchone()[0]
        return value

    pragma("locking_mode = EXCLUSIVE")  # before the first access: then the log's index is in memory, not in a file
    owner, version = pragma("application_id"), pragma("user_version")
    if owner == 0 and connection.execute("SELECT * FROM sqlite_schema").fetchone() is None:
        connection.executescript(_CREATE)
    elif owner != APPLICATION_ID:
        raise JournalError(f"{path} is another program's database; name another file")
    elif version != FORMAT_VERSION:
        raise JournalError(
            f"journal {path} has version {version}, this release reads version {FORMAT_VERSION}; let the release "
            "that wrote it finish its requests, or move the file away"
        )
    elif (verdict := pragma("quick_check(1)")) != "ok":
        raise _DamagedError(str(verdict))
    pragma("journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    pragma(f"wal_autocheckpoint = {CHECKPOINT_PAGES}")
    pragma(f"journal_size_limit = {MAX_LOG_BYTES}")
    pragma("secure_delete = FAST")  # some builds write zeros over each page that is freed


def _move_aside(path: Path) -> Path:
    """Rename the database and its log, so that they can still be looked at together."""
    moved_to = beside(path, f".corrupt-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    try:
        path.rename(moved_to)
        with suppress(FileNotFoundError):
            beside(path, "-wal").rename(beside(moved_to, "-wal"))
    except OSError as error:
        raise JournalError(f"journal {path} is damaged and cannot be moved aside: {error.strerror}") from error
    return moved_to
