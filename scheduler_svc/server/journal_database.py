"""The journal's SQLite database: how it is made, what may be opened, and what can be read of a damaged one."""

import os
import sqlite3
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import set_aside
from common.errors import BatonError
from common.set_aside import beside
from common.trust import WAIVED, why_untrusted
from scheduler_svc.core.requests.journal_records import FORMAT_VERSION

APPLICATION_ID = 0x4261746E  # "Batn": tells our file from another program's
CHECKPOINT_PAGES = 1000  # of 4 KiB in the write-ahead log until they are copied into the database
MAX_LOG_BYTES = 8 << 20  # a log that grew beyond is cut after its checkpoint
_HEAD_BYTES = 4096  # in which the schema stands
_MARK = b"the journal of a Baton scheduler"  # in the schema: tells our file even if its header is damaged
_PLAIN_VERSIONS = range(101, 105)  # of releases whose records were messages of the protocol

# The trigger makes an insert and what it deletes one statement, and so one transaction and one call into SQLite.
_TABLE = f"""CREATE TABLE batches ( -- {_MARK.decode()}
number INTEGER PRIMARY KEY, keep_from INTEGER NOT NULL, stamp BLOB NOT NULL, payload BLOB NOT NULL)"""
_TRIGGER = "CREATE TRIGGER forget BEFORE INSERT ON batches BEGIN DELETE FROM batches WHERE number < NEW.keep_from; END"
_CREATE = f"""
PRAGMA auto_vacuum = INCREMENTAL;
BEGIN;
{_TABLE};
{_TRIGGER};
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {1 << 16 | 1};
COMMIT;
"""
# A row that failed can still be in the file, if the disk broke after the write; so a number may come again.
INSERT = "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?)"


class JournalError(BatonError):
    """The journal cannot be used: the message says which file, and what is wrong with it."""


class DamagedError(JournalError):
    """The file is ours, and its structure is broken."""


@dataclass(frozen=True)
class Row:
    """A batch as it stands in the file; a stamp or a payload may be damaged."""

    number: int
    stamp: bytes
    payload: bytes


def connect(path: Path, *, durable: bool) -> sqlite3.Connection:
    """A connection to a whole journal, or to a new one.

    Args:
        durable: whether each transaction waits until the disk has it.

    Raises:
        DamagedError: the file is ours and broken.
        JournalError: it cannot be opened, belongs to another program or version, or another user could have put one of
            its files there.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)  # no other user reads prompts
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):  # a pipe would never be read to its end
                raise JournalError(f"journal {path} is no regular file; name another file by --journal")
            is_ours = _MARK in os.read(fd, _HEAD_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        raise JournalError(f"journal {path} cannot be opened: {error.strerror}") from error
    connection = _open(path)
    try:
        require_trusted(path)  # also what has come since the lock was taken
        _prepare(connection, path, durable=durable, is_ours=is_ours)
    except JournalError:
        connection.close()
        raise
    except (sqlite3.Error, UnicodeDecodeError) as error:  # names in a damaged schema can be anything
        connection.close()
        raise _explained(error, path, is_ours=is_ours) from error
    return connection


def version_in(connection: sqlite3.Connection) -> int:
    """The version that a release must have, at least, to read the journal."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version & 0xFFFF


def say_version(connection: sqlite3.Connection, version: int) -> None:
    """Say which version that is, in the transaction that is open."""
    connection.execute(f"PRAGMA user_version = {version << 16 | version}")


def insert(connection: sqlite3.Connection, row: tuple[int, int, bytes, bytes]) -> None:
    """Insert number, keep_from, stamp and payload, and delete the rows below keep_from."""
    connection.execute(INSERT, row)


def read_damaged(path: Path) -> list[Row]:
    """All rows that can be read of a file that `connect` finds damaged, in order."""
    connection = _open(path)
    try:
        return read_rows(connection)[0]
    finally:
        connection.close()


def read_rows(connection: sqlite3.Connection) -> tuple[list[Row], str]:
    """All rows that can be read, in order, and what kept the others from being read (empty if nothing did).

    The rows behind a broken page are read from the other end.
    """
    found: dict[int, Row] = {}
    reason = ""
    for direction in ("ASC", "DESC"):
        try:
            query = f"SELECT number, stamp, payload FROM batches ORDER BY number {direction}"  # noqa: S608
            for number, stamp, payload in connection.execute(query):
                if number in found:
                    break
                whole = isinstance(number, int) and isinstance(stamp, bytes) and isinstance(payload, bytes)
                if whole:
                    found[number] = Row(number, stamp, payload)
                else:
                    reason = f"row {number} is damaged"
        except (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError) as error:
            reason = str(error)
        else:
            break
    numbers = sorted(found)
    if numbers and numbers[-1] - numbers[0] >= len(numbers):
        reason = reason or f"batches are missing between {numbers[0]} and {numbers[-1]}"
    return [found[number] for number in numbers], reason


def require_trusted(path: Path) -> None:
    """Check the files of a journal, as far as they are there, and the folder.

    Raises:
        JournalError: another user could have put one of them there, or could change or read it.
    """
    for each in (path.parent, *(beside(path, suffix) for suffix in ("", "-wal", "-journal", ".lock"))):
        if fault := why_untrusted(each, is_private=True):
            raise JournalError(f"journal {path} is refused: {fault}; or name another file by --journal; or {WAIVED}")


def move_aside(path: Path) -> Path:
    """Rename the database and its log. Returns the database's new name.

    Raises:
        JournalError: the folder does not let us.
    """
    try:
        return set_aside.move_aside(path, ("-wal",))
    except OSError as error:
        raise JournalError(f"journal {path} is damaged and cannot be moved aside: {error.strerror}") from error


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    connection.text_factory = bytes  # damage can make text of anything
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, *, durable: bool, is_ours: bool) -> None:
    """Make the tables, or check before any change that the file is ours; then set the connection up.

    Args:
        is_ours: whether the file has our mark; if its header says otherwise, the header is damaged.
    """

    def pragma(text: str) -> Any:
        return connection.execute(f"PRAGMA {text}").fetchone()[0]

    pragma("locking_mode = EXCLUSIVE")  # before the first access: then the log's index is in memory, not in a file
    owner, version = pragma("application_id"), pragma("user_version")
    schema = connection.execute("SELECT sql FROM sqlite_schema").fetchall()
    if owner == 0 and not schema and not is_ours:
        connection.executescript(_CREATE)
    elif owner != APPLICATION_ID:
        foreign = JournalError(f"{path} is another program's database; name another file")
        raise DamagedError("its header is damaged") if is_ours else foreign
    else:
        _check_version(version, path)
        if schema != [(_TABLE.encode(),), (_TRIGGER.encode(),)]:
            raise DamagedError("its schema is damaged")
        if (verdict := pragma("quick_check(1)")) != b"ok":
            raise DamagedError(verdict.decode(errors="replace"))
    pragma("journal_mode = WAL")
    connection.execute("DELETE FROM batches WHERE number < 0")  # a damaged header can say that nothing may be written
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    pragma(f"wal_autocheckpoint = {CHECKPOINT_PAGES}")
    pragma(f"journal_size_limit = {MAX_LOG_BYTES}")
    pragma("secure_delete = FAST")  # some builds write zeros over each page that is freed


def _check_version(stored: int, path: Path) -> None:
    """Raise if the records are not of a version that we read.

    The version stands in both halves of the number, so that a damaged one is not taken for another version.
    """
    version = stored & 0xFFFF
    if stored in _PLAIN_VERSIONS:
        raise JournalError(
            f"journal {path} has version {stored}, this release reads version {FORMAT_VERSION}; let the release "
            "that wrote it finish its requests, or move the file away"
        )
    if stored >> 16 != version or version == 0:
        raise DamagedError(f"the version in its header is damaged ({stored:#x})")
    if version > FORMAT_VERSION:
        raise JournalError(
            f"journal {path} has version {version}, which is newer than this release (it reads up to version "
            f"{FORMAT_VERSION}); start the release that wrote it, or move the file away"
        )


def _explained(error: sqlite3.Error | UnicodeDecodeError, path: Path, *, is_ours: bool) -> JournalError:
    """What an error at the opening means."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of it is details
    signs = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_ERROR} if is_ours else set()
    if code in {sqlite3.SQLITE_CORRUPT, *signs} or isinstance(error, UnicodeDecodeError):
        return DamagedError(str(error))
    if code == sqlite3.SQLITE_NOTADB:
        return JournalError(f"{path} is not a journal: {error}; move it away or name another file")
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return JournalError(f"journal {path} cannot be opened: {error} ({name})")
