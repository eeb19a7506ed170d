"""Notices that the files of a database are not what their only writer has left there."""

import os
from pathlib import Path

from scheduler_svc.server.journal_database import JournalError, beside


class LostError(JournalError):
    """A file of the journal was deleted, replaced or cut while we wrote to it."""


class FileWatch:
    """Compares the database and its log with what they were after our last operation.

    Attributes:
        num_bytes: of both together, when last looked at.
    """

    def __init__(self, path: Path) -> None:
        self._names = (str(path), str(beside(path, "-wal")))
        self._files: list[tuple[int, int]] = []
        self._sizes: list[int] = []
        self.num_bytes = 0

    def begin(self) -> None:
        """These files are ours. Raises LostError if one is missing."""
        self._files = []
        self.changed_by_us()

    def check(self) -> None:
        """Raise LostError if a file is missing, is another one, or is shorter than we have left it."""
        sizes = self._look()
        for name, size, before in zip(self._names, sizes, self._sizes, strict=True):
            if size < before:
                raise LostError(f"{name} has {size} bytes, it had {before}")

    def changed_by_us(self) -> None:
        """We have written to the files, and may have made them shorter. Raises LostError if one is missing, or another
        one."""
        self._sizes = self._look()
        self.num_bytes = sum(self._sizes)

    def _look(self) -> list[int]:
        """Sizes of the files, if they are ours."""
        found = [self._stat(name) for name in self._names]
        files = [(stat.st_dev, stat.st_ino) for stat in found]
        if self._files and files != self._files:
            raise LostError(f"{self._names[0]}, or its log, is another file")
        self._files = files
        return [stat.st_size for stat in found]

    def _stat(self, name: str) -> os.stat_result:
        try:
            return os.stat(name)
        except OSError as error:
            raise LostError(f"{name}: {error.strerror}") from error
