"""A file whose age tells a probe whether this executor is in a fleet. `deploy/executor_health.py` reads the age."""

from contextlib import suppress
from pathlib import Path


class HealthFile:
    """Touched whenever the scheduler is heard in an epoch, and removed when the epoch ends.

    Args:
        path: of the file; None keeps none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.remove()  # a file of an earlier process says nothing about this one

    def touch(self) -> None:
        """The scheduler has just been heard. A full disk must not end an executor that works."""
        if self._path is not None:
            with suppress(OSError):
                self._path.touch()

    def remove(self) -> None:
        """There is no epoch."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
