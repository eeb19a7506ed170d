"""Where the scheduler listens: an endpoint, or a file that names it, for a scheduler that moves to other machines."""

import re
from pathlib import Path

from common.errors import BatonError
from common.socket_path import endpoint_fault

FILE_PREFIX = "file:"
_ENDPOINT = re.compile(r"tcp://[^:/\s]+:\d{1,5}|tcp://\[[0-9a-fA-F:.]+\]:\d{1,5}|ipc://.+")

_MAX_BYTES = 1024


def why_no_endpoint(text: str) -> str | None:
    """Say so if a text names no endpoint that can be connected to."""
    if not _ENDPOINT.fullmatch(text):
        return f"{text[:100]!r} is no endpoint such as tcp://127.0.0.1:5555"
    return endpoint_fault(text)


class AddressFileError(BatonError):
    """A file was to name the scheduler's endpoint, and does not."""


class SchedulerAddress:
    """The endpoint to connect to.

    Args:
        text: an endpoint such as `tcp://127.0.0.1:5555`, or `file:PATH`; the file has an endpoint as its only line, and
            is replaced as a whole (renamed over) by what moves the scheduler.

    Raises:
        AddressFileError: the file cannot be read, or has no endpoint in it.

    Attributes:
        endpoint: what was read last.
    """

    def __init__(self, text: str) -> None:
        self._path = Path(text.removeprefix(FILE_PREFIX)) if text.startswith(FILE_PREFIX) else None
        self.endpoint = text if self._path is None else _read(self._path)

    def has_changed(self) -> bool:
        """Read the file again. Whether `endpoint` is another one now; a file that is no good changes nothing."""
        if self._path is None:
            return False
        try:
            read = _read(self._path)
        except AddressFileError:
            return False
        changed, self.endpoint = read != self.endpoint, read
        return changed


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode(errors="replace").strip()
    except OSError as error:
        raise AddressFileError(f"{path} cannot be read: {error.strerror}") from error
    if (fault := why_no_endpoint(text)) is not None:
        raise AddressFileError(f"{path}: {fault}")
    return text
