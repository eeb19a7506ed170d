"""A file whose age tells a probe whether this executor does its duty. `deploy/executor_health.py` reads the age."""

import errno
from contextlib import suppress
from pathlib import Path

from common.errors import BatonError
from common.logging import QuietLog, get_logger
from common.paths import is_there

_PASSING = (errno.ENOSPC, errno.EDQUOT)
log = get_logger(__name__)


class HealthFile:
    """Touched whenever the scheduler is heard in an epoch, and removed when the epoch ends; and touched by a standby
    that waits, and removed when it waits no more.

    Args:
        path: of the file; None keeps none.

    Raises:
        BatonError: no file can be made there, so that a probe would kill this executor again and again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._untouched = QuietLog(log, "health file not touched")
        if path is not None:
            try:
                if is_there(path) and not path.is_file():
                    raise BatonError(f"--health-file {path} is no regular file")
                path.touch()
                path.unlink()  # a file of an earlier process says nothing about this one
            except OSError as error:
                if error.errno not in _PASSING:
                    raise BatonError(f"--health-file {path} cannot be made: {error.strerror}") from error

    def set(self, is_well: bool) -> None:
        """Touch the file, or remove it."""
        if is_well:
            self.touch()
        else:
            self.remove()

    def touch(self) -> None:
        """The scheduler has just been heard, or a standby's keeper is there. A full disk must not end what works."""
        if self._path is not None:
            try:
                self._path.touch()
            except OSError as error:
                self._untouched.happened(path=str(self._path), reason=error.strerror)

    def remove(self) -> None:
        """There is no epoch, and no waiting."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
