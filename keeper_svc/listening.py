"""The keeper's socket file: only this user reaches it, and only one keeper listens at a path."""

import errno
import fcntl
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from common.errors import KeeperError
from common.keeper_socket import check_folder, require_linux
from common.paths import why_not
from common.socket_path import SocketPath

BACKLOG = 64
_ADVICE = "name a socket in another folder by --socket: a folder that is missing is made, for this user alone"


class Listening:
    """Listens at a path until it is closed. Makes the folder, if only that is missing.

    Args:
        path: of the socket. Beside it is a lock file, which stays: without it a second keeper would come in.

    Attributes:
        socket: does not block.

    Raises:
        KeeperError: another keeper listens there, or the folder is open to other users.
    """

    def __init__(self, path: Path) -> None:
        require_linux()
        self._path = path
        try:
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700)
            check_folder(path)
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except (KeeperError, OSError) as error:
            raise KeeperError(f"{why_not(error)}; {_ADVICE}") from error
        try:
            self.socket = self._listen()
        except BaseException:
            os.close(self._lock)
            raise
        status = path.lstat()
        self._file = (status.st_dev, status.st_ino)

    def __enter__(self) -> "Listening":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
        with suppress(OSError):
            status = self._path.lstat()
            if (status.st_dev, status.st_ino) == self._file:  # and not the one of another keeper
                self._path.unlink()
        os.close(self._lock)

    def _listen(self) -> socket.socket:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise KeeperError(f"another keeper listens at {self._path}") from error
        if self._answers():  # although its lock file is gone: something tidied up the folder
            raise KeeperError(f"another keeper listens at {self._path}") from OSError(errno.EADDRINUSE, "in use")
        if os.path.lexists(self._path) and not stat.S_ISSOCK(self._path.lstat().st_mode):
            raise KeeperError(f"{self._path} is there already, and no socket; name another path by --socket")
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        umask = os.umask(0o177)  # there is one thread yet
        try:
            with SocketPath(self._path) as place:
                listener.bind(place.path)
        except OSError as error:
            listener.close()
            raise KeeperError(f"{self._path}: {error.strerror or error}") from error
        finally:
            os.umask(umask)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return listener

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe, SocketPath(self._path) as place:
            probe.setblocking(False)
            try:
                probe.connect(place.path)
            except BlockingIOError:  # its backlog is full
                return True
            except OSError:
                return False
        return True
