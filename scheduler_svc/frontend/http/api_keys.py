"""API keys: the clients they stand for, the file they are kept in, and what a key that is sent is held against.

The file has no key in it but the SHA-256 of each. That is enough: a key has 256 random bits, so there is nothing to
guess, and no need for the slow hashes that protect passwords, which would cost every request their time.
"""

import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.errors import BatonError
from common.logging import get_logger

KEY_PREFIX = "sk-baton-"
RELOAD_INTERVAL_S = 1.0
_KEY_BYTES = 32
_UNNAMED_PREFIX = "env-"

log = get_logger(__name__)


class ApiKeysError(BatonError):
    """A file of API keys cannot be used."""


@dataclass(frozen=True)
class ApiClient:
    """Whoever sends a request; middleware leaves it in the ASGI scope as `baton.client`.

    Attributes:
        name: of its API key, empty without keys.
        max_open_requests: at once, 0 for no limit.
        is_admin: may ask executors to leave.
        may_watch: may read how the service is doing, which tells of all its clients.
    """

    name: str
    max_open_requests: int
    is_admin: bool
    may_watch: bool


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of a key.

    Attributes:
        sha256: of the key, in hex.
        created: in UTC, ISO 8601.
        max_open_requests: that its client may have at once, 0 for no limit.
        admin: may do everything.
        metrics: may read /status and /metrics.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: str
    max_open_requests: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    admin: bool = False
    metrics: bool = False

    def client(self) -> ApiClient:
        """Whom it stands for."""
        return ApiClient(self.name, self.max_open_requests, self.admin, may_watch=self.admin or self.metrics)


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as a whole."""

    version: Literal[1]
    keys: tuple[ApiKey, ...]


def new_key() -> str:
    """A key that nobody can guess."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def is_reserved(name: str) -> bool:
    """Whether it could be the name of a key that was given none (`env-5f3a0c19`)."""
    return name.startswith(_UNNAMED_PREFIX)


def digest(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


def read_key_file(path: Path) -> tuple[ApiKey, ...]:
    """The keys in a file. Raises ApiKeysError, also if others could have written it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            keys = msgspec.json.decode(file.read(), type=KeyFile).keys
    except OSError as error:
        raise ApiKeysError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ApiKeysError(f"{path} is no file of `baton keys api`: {error}") from error
    if status.st_uid not in (0, os.geteuid()):
        raise ApiKeysError(f"{path} belongs to user {status.st_uid}, not to root or user {os.geteuid()}, who reads it")
    if (mode := stat.S_IMODE(status.st_mode)) & 0o022:
        raise ApiKeysError(f"{path} can be written by others (mode {mode:04o}): chmod 600 {path}")
    return keys


def encode_key_file(keys: Sequence[ApiKey]) -> bytes:
    """What a file with these keys has in it."""
    return msgspec.json.format(msgspec.json.encode(KeyFile(1, tuple(keys))), indent=2) + b"\n"


class ApiKeys:
    """The keys of a service: those it was started with, and those of a file that is read again when it changes.

    Args:
        plain: keys themselves. They may do everything, and are called `env-` and eight digits of their hash: a name
            stays with its key when there are others, as accepted requests belong to it, also after a restart.
        path: of the file; None is for none. A file that has no keys lets nobody in.

    Raises:
        ApiKeysError: the file cannot be used now. When that happens later, the keys of before stay.
    """

    def __init__(self, plain: Sequence[str] = (), path: Path | None = None) -> None:
        self._plain = [(digest(key), _unnamed(key)) for key in plain]
        self._path = path
        self._seen = self._look()
        self._clients = [*self._plain, *self._read()]
        self._look_at = time.monotonic() + RELOAD_INTERVAL_S

    @property
    def are_required(self) -> bool:
        """Whether a request needs a key at all."""
        return bool(self._plain) or self._path is not None

    def client_of(self, key: str) -> ApiClient | None:
        """Who sent this key; None if it is nobody's."""
        self._reload_if_due()
        sent, found = digest(key), None
        for kept, client in self._clients:  # all of them, so that the time it takes says nothing about any
            if hmac.compare_digest(sent, kept):
                found = client
        return found

    def _reload_if_due(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + RELOAD_INTERVAL_S
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._clients = [*self._plain, *self._read()]
        except ApiKeysError as error:
            log.error("API keys cannot be read, keeping those of before", reason=str(error))
        else:
            log.info("API keys changed", keys=len(self._clients))

    def _read(self) -> list[tuple[str, ApiClient]]:
        keys = read_key_file(self._path) if self._path is not None else ()
        return [(key.sha256, key.client()) for key in keys]

    def _look(self) -> tuple[int, ...] | None:
        """What is equal as long as the file has not changed; None if it is not there."""
        try:
            status = os.stat(self._path) if self._path is not None else None
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode) if status is not None else None


def _unnamed(key: str) -> ApiClient:
    """Who sends a key that came without a name."""
    return ApiClient(_UNNAMED_PREFIX + digest(key)[:8], 0, is_admin=True, may_watch=True)
