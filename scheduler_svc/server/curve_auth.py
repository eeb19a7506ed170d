"""Which executors may connect: the keys in a folder, read again when they change, and the thread that checks them."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import zmq
from zmq.utils import z85

from common.curve import KeyFileError, ServerCurve, allowed_files, load_public, require_own_folder
from common.logging import QuietLog, get_logger

DOMAIN = "executors"
RELOAD_INTERVAL_S = 1.0

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_ZAP_FRAMES = 7  # version, request id, domain, address, identity, mechanism, key

log = get_logger(__name__)


class AllowList:
    """The executors that may connect. Read by any thread; `reload` belongs to one.

    Args:
        curve: names the folder. Raises KeyFileError if it cannot be read, or others could have changed it.
    """

    def __init__(self, curve: ServerCurve) -> None:
        self._folder = curve.folder
        self._seen: object = None
        self._names: Mapping[str, str] = {}
        try:
            self._seen = self._look()
            self._names = self._read()
        except OSError as error:
            raise KeyFileError(f"{self._folder} cannot be read: {error.strerror}") from error
        log.info("executors' keys read", folder=str(self._folder), executors=len(self._names))

    def __contains__(self, key: object) -> bool:
        """Whether the executor with this public key, in Z85, may connect."""
        return key in self._names

    def reload(self) -> None:
        """Read the folder again if anything in it has changed; keep the old list if it cannot be read, or trusted."""
        try:
            seen = self._look()
            if seen == self._seen:
                return
            names = self._read()
        except (OSError, KeyFileError) as error:
            if self._seen is not None:
                log.error("executors' keys cannot be read, keeping those of before", reason=str(error))
            self._seen = None
            return
        self._seen = seen
        added, removed = names.items() - self._names.items(), self._names.items() - names.items()
        self._names = names
        log.info("executors' keys changed", added=_words(added), removed=_words(removed), executors=len(names))

    def _look(self) -> object:
        """A value that changes when any file does: an editor may keep a file's size, and a mounted Secret its time."""
        require_own_folder(self._folder)
        status = {name: path.stat() for name, path in allowed_files(self._folder).items()}
        return {name: (stat.st_ino, stat.st_ctime_ns, stat.st_size) for name, stat in status.items()}

    def _read(self) -> dict[str, str]:
        """Names by key. A file that is no key, or that others could have changed, is left out."""
        names = {}
        for name, path in allowed_files(self._folder).items():
            try:
                names[load_public(path).decode()] = name
            except KeyFileError as error:
                log.error("executor's key left out", executor=name, reason=str(error))
        return names


class Authenticator(threading.Thread):
    """Answers libzmq, which asks about the key of each peer whose handshake succeeded (ZAP, RFC 27).

    The thread lives as long as the context. It is not asked about peers that do not know the scheduler's public key, or
    speak another mechanism or protocol: libzmq turns those away by itself.

    Args:
        context: of the sockets that ask; one authenticator for each.
        allowed: the list, which this thread keeps up to date.
    """

    def __init__(self, context: "zmq.Context[Any]", allowed: AllowList) -> None:
        super().__init__(name="authenticator", daemon=True)
        self._allowed = allowed
        self._refusals = QuietLog(log, "executor refused: its key is not on the list", link=DOMAIN)
        self._zap: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._zap.linger = 0
        self._zap.bind(_ZAP_ENDPOINT)

    def run(self) -> None:
        """Answer until the context is terminated."""
        reload_at = 0.0
        try:
            while True:
                if self._zap.poll(int(RELOAD_INTERVAL_S * 1000)):
                    self._zap.send_multipart(self._answer(self._zap.recv_multipart()))
                if (now := time.monotonic()) >= reload_at:
                    reload_at = now + RELOAD_INTERVAL_S
                    self._allowed.reload()
        except zmq.ContextTerminated:
            pass
        finally:
            self._zap.close()

    def _answer(self, request: list[bytes]) -> list[bytes]:
        """The reply's frames. The key in Z85 becomes the `User-Id` of every message on this connection."""
        request_id = request[1] if len(request) > 1 else b""
        if len(request) != _ZAP_FRAMES or request[0] != _ZAP_VERSION or request[5] != b"CURVE":
            return [_ZAP_VERSION, request_id, b"500", b"unexpected request", b"", b""]
        key = z85.encode(request[6]).decode()
        if key in self._allowed:
            return [_ZAP_VERSION, request_id, b"200", b"OK", key.encode(), b""]
        self._refusals.happened(address=request[3].decode(errors="replace"), key=key)
        return [_ZAP_VERSION, request_id, b"400", b"unknown key", b"", b""]


def _words(entries: set[tuple[str, str]]) -> str:
    return ",".join(sorted(name for _, name in entries)) or "none"
