"""Paths of Unix sockets, which systems bound to about a hundred bytes: a folder in a build or a job's may be deeper."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

MAX_PATH_BYTES = 107  # of a socket, on Linux
_EVERYWHERE = 103  # bytes that other systems take, too
_IPC = "ipc://"


class SocketPath:
    """The path of a socket as a socket takes it.

    A longer one leads by a descriptor of its folder, where the system has these as files; it is this process's alone,
    and nothing is left of it. A context manager.

    Args:
        path: of the socket. Its folder is there if the path is long.

    Attributes:
        path: valid until `close`.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._folder: int | None = None
        descriptors = Path("/proc/self/fd")
        if len(os.fsencode(self.path)) > _EVERYWHERE and descriptors.is_dir():
            self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.path = str(descriptors / str(self._folder) / path.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the descriptor go."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


def endpoint_fault(endpoint: str) -> str | None:
    """Say so if the path of a ZeroMQ endpoint is too long: libzmq takes no longer ones than a socket."""
    path = endpoint.removeprefix(_IPC)
    if path == endpoint or (size := len(os.fsencode(path))) <= MAX_PATH_BYTES:
        return None
    return f"the endpoint's path has {size} bytes, the limit of a socket's is {MAX_PATH_BYTES}: take a shorter one"
