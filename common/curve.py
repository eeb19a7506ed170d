"""Keys of the link between scheduler and executors, and the folders that they lie in.

ZeroMQ's CURVE (RFC 26) encrypts a connection and makes both ends prove who they are. Each service reads one folder:

    scheduler    server.key_secret, and executor-NAME.key of every executor that may connect
    executor     executor.key_secret, and server.key

The files are the certificates of CZMQ and pyzmq: text, with keys as 40 characters of Z85. Folders are flat, so that
each can be a Kubernetes Secret. A file that another user than root and the service's own could have changed is refused.
So is such a public key: public keys decide which executors may connect, and which scheduler an executor believes.
"""

import os
import re
import stat
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import zmq
import zmq.auth
from zmq.utils import z85

from common.errors import BatonError
from common.trust import why_changeable, why_foreign

SERVER_SECRET = "server.key_secret"  # noqa: S105  (names of files)
SERVER_PUBLIC = "server.key"
EXECUTOR_SECRET = "executor.key_secret"  # noqa: S105
ALLOWED_PREFIX, ALLOWED_SUFFIX = "executor-", ".key"
HANDSHAKE_TIMEOUT_MS = 5000  # a peer that connects and proves nothing is cut off

KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY_CHARS = 40


class KeyFileError(BatonError):
    """A key cannot be used: its file is missing, malformed, or open to others."""


@dataclass(frozen=True)
class KeyPair:
    """A public and a secret key as Z85 text, the way libzmq takes them."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> "KeyPair":
        """A new pair."""
        return cls(*zmq.curve_keypair())

    @classmethod
    def load(cls, path: Path) -> "KeyPair":
        """Read a secret file. Raises KeyFileError, also if another user could have read it."""
        _require_private(path)
        public, secret = _read(path)
        if secret is None:
            raise KeyFileError(f"{path} has no secret key")
        if zmq.curve_public(_checked(path, secret)) != public:
            raise KeyFileError(f"{path} has a public and a secret key that do not belong together")
        return cls(public, secret)


@dataclass(frozen=True)
class ServerCurve:
    """What a scheduler needs: its own keys, and the folder with the keys of executors that may connect."""

    keys: KeyPair
    folder: Path

    @classmethod
    def load(cls, folder: Path) -> "ServerCurve":
        """Read a scheduler's folder. Raises KeyFileError."""
        keys = KeyPair.load(folder / SERVER_SECRET)
        require_own_folder(folder)
        return cls(keys, folder)

    def protect(self, socket: "zmq.Socket[Any]", domain: str) -> None:
        """Make a socket that is not bound yet ask every peer for its key, and a ZAP handler about it.

        Args:
            socket: of any type.
            domain: tells the handler which socket asks. Without a handler no peer is let in.
        """
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = self.keys.public, self.keys.secret
        socket.setsockopt_string(zmq.ZAP_DOMAIN, domain)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


@dataclass(frozen=True)
class ClientCurve:
    """What an executor needs: its own keys, and the public key that its scheduler has to prove."""

    keys: KeyPair
    server_public: bytes

    @classmethod
    def load(cls, folder: Path) -> "ClientCurve":
        """Read an executor's folder. Raises KeyFileError."""
        keys, server_public = KeyPair.load(folder / EXECUTOR_SECRET), load_public(folder / SERVER_PUBLIC)
        require_own_folder(folder)
        return cls(keys, server_public)

    def protect(self, socket: "zmq.Socket[Any]") -> None:
        """Make a socket that is not connected yet prove its key, and talk to the scheduler only."""
        socket.curve_publickey, socket.curve_secretkey = self.keys.public, self.keys.secret
        socket.curve_serverkey = self.server_public


def load_public(path: Path) -> bytes:
    """The public key in a file. Raises KeyFileError, also if another user could have changed it."""
    status = _status_of_own(path)
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"{path} is no file")
    _require_unchangeable(path, status)
    return _read(path)[0]


def require_own_folder(folder: Path) -> None:
    """Refuse a folder in which another user could add or remove a key.

    With the sticky bit, other users can touch their own files only, and those are refused when they are read.
    Kubernetes mounts Secrets like that.

    Raises:
        KeyFileError: it is such a folder, or is not there.
    """
    _require_unchangeable(folder, _status_of_own(folder))


def allowed_files(folder: Path) -> dict[str, Path]:
    """Files with the public keys of a scheduler's executors, by the executors' names. Raises OSError."""
    found = (path.name for path in folder.iterdir())
    names = sorted(name for name in found if name.startswith(ALLOWED_PREFIX) and name.endswith(ALLOWED_SUFFIX))
    return {name.removeprefix(ALLOWED_PREFIX).removesuffix(ALLOWED_SUFFIX): folder / name for name in names}


def certificate(public: bytes, secret: bytes | None = None) -> str:
    """The content of a public file or, with a secret, of a secret one."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines = ["metadata", "    created-by = baton keys", f"    created = {now}", "curve"]
    lines.append(f'    public-key = "{public.decode()}"')
    if secret is not None:
        lines.append(f'    secret-key = "{secret.decode()}"')
    return "\n".join(lines) + "\n"


def _read(path: Path) -> tuple[bytes, bytes | None]:
    try:
        with path.open("rb"):  # for the reason: pyzmq calls what it cannot look at missing
            public, secret = zmq.auth.load_certificate(path)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise KeyFileError(f"{path} has no public key") from error
    except Exception as error:  # IndexError so far; pyzmq raises whatever it comes across in a file that is malformed
        raise KeyFileError(f"{path} is no file of keys") from error
    return _checked(path, public), secret


def _checked(path: Path, key: bytes) -> bytes:
    try:
        if len(key) == _KEY_CHARS and len(z85.decode(key)) == 32:
            return key
    except (KeyError, struct.error):  # a foreign character; five characters beyond 32 bits
        pass
    raise KeyFileError(f"{path} has a key that is not {_KEY_CHARS} characters of Z85")


def _require_private(path: Path) -> None:
    """PostgreSQL's rule for its key: others may do nothing; a group may read root's files, as secrets are mounted."""
    status = _status_of_own(path)
    mode = stat.S_IMODE(status.st_mode)
    if mode & (0o037 if status.st_uid == 0 else 0o077):
        raise KeyFileError(f"{path} is open to others (mode {mode:04o}); make it private: chmod 600 {path}")


def _status_of_own(path: Path) -> os.stat_result:
    """Status of a file that belongs to root or to this user: any other owner could change it. Raises KeyFileError."""
    try:
        status = path.stat()
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
    if fault := why_foreign(path, status):
        raise KeyFileError(fault)
    if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode) or stat.S_ISCHR(status.st_mode):
        raise KeyFileError(f"{path} is no file")  # before it is opened: a pipe would never be read to its end
    return status


def _require_unchangeable(path: Path, status: os.stat_result) -> None:
    if fault := why_changeable(path, status, spares_own_group=False):
        raise KeyFileError(fault)
