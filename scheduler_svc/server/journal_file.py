"""The journal's file: numbered rows of bytes, each with a stamp, in an SQLite database in WAL mode."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from common.clocks import Clocks
from common.logging import get_logger
from common.paths import why_not
from common.set_aside import beside
from scheduler_svc.core.requests.group_commit import JournalBatch
from scheduler_svc.core.requests.journal_records import FORMAT_VERSION
from scheduler_svc.core.requests.journal_time import Stamp
from scheduler_svc.core.requests.recovery import Loaded
from scheduler_svc.server.journal_database import (
    DamagedError,
    JournalError,
    connect,
    insert,
    move_aside,
    read_damaged,
    read_rows,
    say_version,
    version_in,
)
from scheduler_svc.server.journal_wal import damage_of
from scheduler_svc.server.journal_watch import FileWatch, LostError

HOUSEKEEPING_EVERY = 64  # rows
SPARE_PAGES = 1024  # free pages that stay in the file for the rows to come
SHRINK_PAGES = 256  # given back in one go, so that a row waits a millisecond for it and not a second

log = get_logger(__name__)


class JournalFile:
    """The database. Every method may wait for the disk; one thread at a time may call them.

    Args:
        path: of the database; its folder has to exist.
        durable: whether each `save` waits until the disk has the row.
        read_clocks: what the clocks show.

    Raises:
        JournalError: the file cannot be opened, or belongs to another program or version.
    """

    def __init__(self, path: Path, *, durable: bool, read_clocks: Callable[[], Clocks]) -> None:
        self.path = path
        self._durable = durable
        self._read_clocks = read_clocks
        self._watch = FileWatch(path)
        self._num_saved = self._version = 0
        self._wall_offset_s = 0.0
        self._is_lost = False
        self._connection: sqlite3.Connection | None = None
        try:
            self._damage = damage_of(beside(path, "-wal"))  # looked at before SQLite does
            self._open()
        except DamagedError as damage:
            self._damage = str(damage)
        except OSError as error:
            raise JournalError(f"journal {path} cannot be opened: {why_not(error)}") from error

    @property
    def num_bytes(self) -> int:
        """Of the database and its log, when last looked at."""
        return self._watch.num_bytes

    def load(self) -> Loaded:
        """What is in the file, as far as it can be read. After damage, `set_aside` has to follow."""
        rows, reason = (read_damaged(self.path), "") if self._connection is None else read_rows(self._connection)
        damage = self._damage or reason
        clocks = self._read_clocks()
        age_s, self._wall_offset_s = 0.0, clocks.wall_s - clocks.monotonic_s
        stamps = (Stamp.unpack(row.stamp, row.number) for row in reversed(rows))
        if (last := next((stamp for stamp in stamps if stamp is not None), None)) is not None:
            age_s, self._wall_offset_s = last.age_s(clocks), last.wall_offset_s(clocks)
        if rows and Stamp.unpack(rows[-1].stamp, rows[-1].number) is None:
            damage = damage or "the time of its last row is damaged"
        return Loaded([(row.number, row.payload) for row in rows], age_s, self._wall_offset_s, damage)

    def set_aside(self, reason: str, whole: Sequence[tuple[int, bytes]] = (), **facts: object) -> None:
        """Keep a damaged file under another name, say so, and begin one with these batches, if there is room.

        Raises:
            JournalError: that is not possible.
        """
        moved_to = move_aside(self.path)
        self.close()
        log.error("journal damaged", moved_to=str(moved_to), reason=reason, **facts)
        self._open()
        assert self._connection is not None
        clocks = self._read_clocks()
        with suppress(sqlite3.Error), self._connection:
            self._connection.execute("BEGIN")
            for number, payload in whole:
                say_version(self._connection, FORMAT_VERSION)
                insert(self._connection, (number, 0, Stamp.at(clocks, self._wall_offset_s).pack(number), payload))
        self._version = version_in(self._connection)

    def save(self, batch: JournalBatch) -> None:
        """Insert a row and delete those with numbers below `keep_from`.

        The file's version is raised with the first row that needs it, and falls only when a new beginning is complete.

        Raises:
            sqlite3.Error: the disk is full or broken. Nothing has changed, and the next call opens the file anew.
            LostError: the file was lost before or meanwhile; only a row that `begins` begins another one.
            JournalError: the file could not be opened anew.
        """
        if self._connection is None:
            self._reopen(begins=batch.begins)
        assert self._connection is not None
        stamp = Stamp.at(self._read_clocks(), self._wall_offset_s).pack(batch.number)
        row = (batch.number, batch.keep_from, stamp, batch.payload)
        version = batch.version if batch.completes else max(batch.version, self._version)
        try:
            self._watch.before_write()
            if self._num_saved % HOUSEKEEPING_EVERY == 0:
                _give_pages_back(self._connection)
            if version == self._version:
                insert(self._connection, row)
            else:
                self._connection.execute("BEGIN")
                say_version(self._connection, version)
                insert(self._connection, row)
                self._connection.execute("COMMIT")
            self._watch.after_write()
        except sqlite3.Error:
            self.close()  # also copies what can be copied from the log, and so may make room on a full disk
            raise
        except LostError:
            self._lose()
            raise
        self._num_saved += 1
        self._version = version

    def check(self) -> None:
        """Raise LostError if the file is not what was written."""
        if self._connection is not None:
            self._look(self._watch.look)

    def close(self) -> None:
        """Copy the log into the database and close it. It can be opened again by `save`."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
            self._watch.end()

    def _look(self, look: Callable[[], None]) -> None:
        try:
            look()
        except LostError:
            self._lose()
            raise

    def _lose(self) -> None:
        """The files are lost: what is there in their place is kept under another name."""
        self._is_lost = True
        with suppress(JournalError):
            move_aside(self.path)  # first: closing the connection deletes the log that it finds
        self.close()

    def _reopen(self, *, begins: bool) -> None:
        if self._is_lost and not begins:
            raise JournalError("the file is lost")
        try:
            self._open()
        except DamagedError as damage:
            self.set_aside(str(damage))
        self._is_lost = False

    def _open(self) -> None:
        self._connection = connect(self.path, durable=self._durable)
        self._version = version_in(self._connection)
        self._look(self._watch.begin)


def _give_pages_back(connection: sqlite3.Connection) -> None:
    """Return unused pages to the disk."""
    (num_free,) = connection.execute("PRAGMA freelist_count").fetchone()
    if num_free > SPARE_PAGES:
        num_pages = min(num_free - SPARE_PAGES, SHRINK_PAGES)
        connection.executescript(f"PRAGMA incremental_vacuum({num_pages})")  # `execute` would stop after one page
