"""Where the scheduler listens: an endpoint, or a file that names it, for a scheduler that moves to other machines."""

import os
import re
import socket
from pathlib import Path

from common.errors import BatonError
from common.socket_path import SocketPath, endpoint_fault

FILE_PREFIX = "file:"
_ENDPOINT = re.compile(r"tcp://[^:/\s]+:\d{1,5}|tcp://\[[0-9a-fA-F:.]+\]:\d{1,5}|ipc://.+")

_MAX_BYTES = 1024
_CONNECT_TIMEOUT_S = 5.0


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


def try_to_connect(endpoint: str) -> tuple[str, str]:
    """Connect to an endpoint once, without a word of ZeroMQ. It may take long.

    Returns:
        What was tried and came of it; what an operator should check.
    """
    try:
        if endpoint.startswith("ipc://"):
            with SocketPath(Path(endpoint.removeprefix("ipc://"))) as short, socket.socket(socket.AF_UNIX) as unix:
                unix.connect(short.path)
        else:
            host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except socket.gaierror as error:
        return f"to look the name up: {error.strerror}", "the name in --scheduler, and DNS on this machine"
    except TimeoutError:
        tried = f"to connect: no answer within {_CONNECT_TIMEOUT_S:.0f} s"
        return tried, "the address, and firewalls and network policies between the machines"
    except OSError as error:
        check = "whether the scheduler runs, and whether its --executor-endpoint has this address and port"
        return f"to connect: {error.strerror}", f"{check} (it listens at 127.0.0.1 alone unless told)"
    check = "whether that is the port of executors (--executor-endpoint)"
    return "to connect: a program answers, but not as a scheduler", check


def _read(path: Path) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # a pipe would never open
            text = file.read(_MAX_BYTES).decode(errors="replace").strip()
    except OSError as error:
        raise AddressFileError(f"{path} cannot be read: {error.strerror}") from error
    if (fault := why_no_endpoint(text)) is not None:
        raise AddressFileError(f"{path}: {fault}")
    return text
