"""Where the keeper's socket is, and how to reach the keeper behind it."""

import os
import socket
import stat
import struct
import sys
from pathlib import Path

from common.errors import KeeperError

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid; SO_PEERCRED


def default_socket() -> Path:
    """`$XDG_RUNTIME_DIR/baton/keeper.sock`, or `/tmp/baton-UID/keeper.sock` where there is no such folder."""
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime_dir, "baton") if runtime_dir else Path(f"/tmp/baton-{os.geteuid()}")  # noqa: S108  (checked)
    return folder / "keeper.sock"


def require_linux() -> None:
    """Raise KeeperError on a system without memfds and pidfds."""
    if sys.platform != "linux":
        raise KeeperError(f"a keeper needs Linux, this is {sys.platform}")


def check_folder(socket_path: Path) -> None:
    """Check that no other user can put a socket of their own into the socket's folder.

    Raises:
        KeeperError: the folder is not there, is a link or a file, is of another user, or is open to others.
    """
    folder = socket_path.parent
    try:
        status = folder.lstat()
    except OSError as error:
        raise KeeperError(f"{folder}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise KeeperError(f"{folder} is not a folder (or a link to one)")
    if status.st_uid != os.geteuid():
        raise KeeperError(f"{folder} belongs to user {status.st_uid}, this process runs as user {os.geteuid()}")
    if mode := stat.S_IMODE(status.st_mode) & 0o077:
        raise KeeperError(f"{folder} is open to other users (mode bits {mode:03o}): chmod 700 {folder}")


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Process and user id of the process that made the other end; 0 is a process of another PID namespace."""
    pid, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def connect_to_keeper(socket_path: Path, timeout_s: float) -> socket.socket:
    """A connection to the keeper of this user.

    Args:
        timeout_s: for this, and for each later call of the socket.

    Raises:
        KeeperError: there is none, or the socket may be somebody else's; the message names the path.
    """
    require_linux()
    check_folder(socket_path)
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connecting.settimeout(timeout_s)
        connecting.connect(str(socket_path))
        if (uid := peer_of(connecting)[1]) != os.geteuid():
            raise KeeperError(f"{socket_path} is of user {uid}, this process runs as user {os.geteuid()}")
    except OSError as error:
        connecting.close()
        raise KeeperError(f"no keeper at {socket_path}: {error.strerror or error}") from error
    except KeeperError:
        connecting.close()
        raise
    return connecting
