"""Where the keeper's socket is, and how to reach the keeper behind it."""

import errno
import os
import socket
import struct
import sys
from pathlib import Path

from common.errors import KeeperError
from common.paths import user_name
from common.socket_path import SocketPath
from common.trust import can_be_ours, first_of_ours, why_not_ours_alone

NAME = "keeper.sock"

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid; SO_PEERCRED


def default_socket() -> Path:
    """`keeper.sock` in `$XDG_RUNTIME_DIR/baton`, or where that cannot be used in `/tmp/baton-UID` or `~/.baton-HOST`.

    Anyone could have made the folder in /tmp before, so it is not the last. Of the two, the one in which there is a
    socket comes first, so that keeper, executors and client find the same one.
    """
    runtime_dir, home = os.environ.get("XDG_RUNTIME_DIR"), os.path.expanduser("~")  # "~" for a user without one
    if runtime_dir and _is_usable(folder := Path(runtime_dir, "baton")):
        return folder / NAME
    usual, other = Path(f"/tmp/baton-{os.geteuid()}"), Path(home, f".baton-{socket.gethostname()}")  # noqa: S108  (checked)
    return first_of_ours([usual, other] if _is_usable(other) else [usual], NAME) / NAME


def _is_usable(folder: Path) -> bool:
    return folder.is_absolute() and can_be_ours(folder)


def require_linux() -> None:
    """Raise KeeperError on a system without memfds and pidfds."""
    if sys.platform != "linux":
        raise KeeperError(f"a keeper needs Linux, this is {sys.platform}")


def check_folder(socket_path: Path) -> None:
    """Check that no other user can put a socket of their own into the socket's folder.

    Raises:
        KeeperError: the folder is not there, is a link or a file, is of another user, or is open to others.
    """
    if fault := why_not_ours_alone(socket_path.parent):
        raise KeeperError(fault)


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
        # Python's own timeout would make the socket non-blocking, and such a one fails at once if the backlog is full.
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
        with SocketPath(socket_path) as place:
            _connect(connecting, place.path)
        connecting.settimeout(timeout_s)
        if (uid := peer_of(connecting)[1]) != os.geteuid():
            raise KeeperError(f"{socket_path} is of user {user_name(uid)}, this process of {user_name(os.geteuid())}")
    except BlockingIOError as error:
        connecting.close()
        raise KeeperError(f"the keeper at {socket_path} has taken no connection for {timeout_s:g} s") from error
    except OSError as error:
        connecting.close()
        raise KeeperError(f"no keeper at {socket_path}: {error.strerror or error}") from error
    except KeeperError:
        connecting.close()
        raise
    return connecting


def _connect(connecting: socket.socket, path: str) -> None:
    """Connect, whatever signals come.

    A signal that interrupts the wait for a place in the backlog leaves the socket as it was, and Python, which expects
    the kernel to go on with it, returns as if it were connected.
    """
    while True:
        connecting.connect(path)
        try:
            connecting.getpeername()
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        else:
            return


def _timeval(seconds: float) -> bytes:
    """As setsockopt takes it: whole seconds, and the microseconds beyond them."""
    return struct.pack("ll", int(seconds), int(seconds % 1.0 * 1e6))
