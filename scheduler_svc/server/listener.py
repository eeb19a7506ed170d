"""A listening socket at a ZeroMQ endpoint: `tcp://host:port`, `ipc://path`, or `ipc://@name` without a file (Linux)."""

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from common.errors import BatonError
from common.socket_path import endpoint_fault

BACKLOG = 512
TURNED_AWAY_AT_ONCE = 200  # in one call of `accept`
MAX_PORT = 65535


class EndpointError(BatonError):
    """An endpoint that cannot be bound."""


class Listener:
    """A bound socket.

    Args:
        endpoint: to bind. Port 0 or `*` picks a port, and the host `*` stands for all IPv4 addresses.
        peer_of: tells process and user at the other end of a local connection.

    Attributes:
        endpoint: with the port that was picked.
        num_turned_away: connections of other users, so far.

    Raises:
        EndpointError: it is malformed, in use, or not on this machine.
    """

    def __init__(self, endpoint: str, peer_of: Callable[[socket.socket], tuple[int, int]] | None = None) -> None:
        self._peer_of = peer_of or credentials
        transport, _, address = endpoint.partition("://")
        self._path: Path | None = None
        self.num_turned_away = 0
        try:
            match transport:
                case "tcp":
                    self.socket = _bind_tcp(address)
                    port = self.socket.getsockname()[1]
                    host = address.rpartition(":")[0]
                    self.endpoint = f"tcp://{'0.0.0.0' if host == '*' else host}:{port}"  # noqa: S104
                case "ipc":
                    self.socket = _bind_unix(address)
                    self.endpoint = endpoint
                    self._path = None if address.startswith("@") else Path(address)
                case _:
                    raise EndpointError(f"{endpoint!r} is neither tcp://host:port nor ipc://path")
        except (OSError, ValueError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise EndpointError(f"{endpoint}: {reason}") from error
        self.socket.setblocking(False)

    def accept(self) -> tuple[socket.socket, str] | None:
        """A connection that waits, and who it is from, for people; None if none was found.

        A process of another user than root and this one is turned away from a local socket. Such a process may connect
        without end, so a call turns few away; they are many enough that those behind them do not wait for long.

        Raises:
            OSError: there are too few files or memory for it now.
        """
        for _ in range(TURNED_AWAY_AT_ONCE):
            try:
                connection, address = self.socket.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return None
            if (whom := self._welcome(connection, address)) is not None:
                connection.setblocking(False)
                return connection, whom
            connection.close()
            self.num_turned_away += 1
        return None

    def close(self) -> None:
        """Listen no longer."""
        self.socket.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _welcome(self, connection: socket.socket, address: tuple[object, ...]) -> str | None:
        """Who a connection is from; None if it is from another user of this machine."""
        if self.socket.family != socket.AF_UNIX:
            return f"{address[0]}:{address[1]}"
        pid, uid = self._peer_of(connection)
        return f"pid {pid}" if uid in (0, os.geteuid()) else None


def _bind_tcp(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    number = 0 if port == "*" else int(port)
    if not 0 <= number <= MAX_PORT:
        raise ValueError(f"port {number}, allowed are 0 to {MAX_PORT}")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    host = "0.0.0.0" if host == "*" else host.removeprefix("[").removesuffix("]")  # noqa: S104
    _, kind, protocol, _, target = socket.getaddrinfo(host, number, family, socket.SOCK_STREAM)[0]
    return _listening(socket.socket(family, kind, protocol), target)


def _bind_unix(address: str) -> socket.socket:
    if address.startswith("@"):
        return _listening(socket.socket(socket.AF_UNIX), "\0" + address[1:])
    if (fault := endpoint_fault(f"ipc://{address}")) is not None:
        raise ValueError(fault)
    path = Path(address)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode) and _is_abandoned(address):
            path.unlink()  # a process that was killed has left it
    return _listening(socket.socket(socket.AF_UNIX), address)


def _listening(bound: socket.socket, address: object) -> socket.socket:
    try:
        if bound.family != socket.AF_UNIX:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)  # type: ignore[arg-type]  # of whatever shape the family has
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def _is_abandoned(path: str) -> bool:
    """Whether nobody listens at a socket file. Any other answer than that comes from somebody, who may be busy."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end; where the system does not tell (macOS), only this user could open the file."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0, os.geteuid()
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid
