"""Notices that the files of a database are not what their only writer has left there."""

import os
import time
from contextlib import suppress
from pathlib import Path

from common.set_aside import beside
from scheduler_svc.server.journal_database import JournalError

LOOK_EVERY_S = 0.5


class LostError(JournalError):
    """A file of the journal was deleted, replaced or cut while we wrote to it."""


class FileWatch:
    """Compares the database and its log with what they were after our last operation.

    Each look costs the writer's thread system calls, and each of these the interpreter's lock: so before and after a
    row only that is asked which has to be known then, and the rest when `LOOK_EVERY_S` have passed.
    """

    def __init__(self, path: Path) -> None:
        self._names = (str(path), str(beside(path, "-wal")))
        self._fds: list[int] = []  # of our own; SQLite's locks would end with them, so they outlive its connection
        self._files: list[tuple[int, int]] = []
        self._sizes: list[int] = []
        self._looked_at = 0.0

    @property
    def num_bytes(self) -> int:
        """Of both together, when last looked at."""
        return sum(self._sizes)

    def begin(self) -> None:
        """These files are ours, and open. Raises LostError if one is missing."""
        self.end()
        try:
            self._fds = [os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in self._names]
        except OSError as error:
            raise LostError(f"{error.filename}: {error.strerror}") from error
        self._files = [(stat.st_dev, stat.st_ino) for stat in map(os.fstat, self._fds)]
        self._sizes = [os.lseek(fd, 0, os.SEEK_END) for fd in self._fds]
        self.look()

    def end(self) -> None:
        """They are closed."""
        for fd in self._fds:
            with suppress(OSError):
                os.close(fd)
        self._fds = []

    def before_write(self) -> None:
        """Raise LostError if a file is shorter than we have left it, or if a look is due and finds something."""
        if time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            self.look()
        for i, fd in enumerate(self._fds):
            if (size := os.lseek(fd, 0, os.SEEK_END)) < self._sizes[i]:
                raise LostError(f"{self._names[i]} has {size} bytes, it had {self._sizes[i]}")

    def after_write(self) -> None:
        """We have written to the files, and may have made them shorter.

        Raises:
            LostError: the database is not there any more, or the log has no name.
        """
        database, log = self._stat(0), os.fstat(self._fds[1])
        if log.st_nlink == 0:
            raise LostError(f"{self._names[1]} was deleted")
        self._sizes = [database.st_size, log.st_size]

    def look(self) -> None:
        """Raise LostError if a file is missing, is another one, or is shorter than we have left it."""
        self._looked_at = time.monotonic()
        for i, before in enumerate(self._sizes):
            if (size := self._stat(i).st_size) < before:
                raise LostError(f"{self._names[i]} has {size} bytes, it had {before}")

    def _stat(self, i: int) -> os.stat_result:
        """What is at the name of a file, if it is ours."""
        try:
            found = os.stat(self._names[i])
        except OSError as error:
            raise LostError(f"{self._names[i]}: {error.strerror}") from error
        if (found.st_dev, found.st_ino) != self._files[i]:
            raise LostError(f"{self._names[i]} is another file")
        return found
