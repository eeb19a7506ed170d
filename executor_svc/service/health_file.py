"""A file whose age tells a probe whether this executor does its duty. `deploy/executor_health.py` reads the age."""

from contextlib import suppress
from pathlib import Path


class HealthFile:
    """Touched whenever the scheduler is heard in an epoch, and removed when the epoch ends; and touched by a standby
    that waits, and removed when it waits no more.

    Args:
        path: of the file; None keeps none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.remove()  # a file of an earlier process says nothing about this one

    def set(self, is_well: bool) -> None:
        """Touch the file, or remove it."""
        if is_well:
            self.touch()
        else:
            self.remove()

    def touch(self) -> None:
        """The scheduler has just been heard, or a standby's keeper is there. A full disk must not end what works."""
        if self._path is not None:
            with suppress(OSError):
                self._path.touch()

    def remove(self) -> None:
        """There is no epoch, and no waiting."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
