"""The API keys that a frontend accepts, and the client that each stands for."""

import hmac
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.logging import get_logger
from common.messages import MAX_PRIORITY
from scheduler_svc.api_key_file import UNNAMED_PREFIX, ApiKey, ApiKeysError, digest, read_key_file

RELOAD_INTERVAL_S = 1.0
API_KEYS_VARIABLE = "BATON_API_KEYS"  # not an option: every user of the machine can read a process's arguments

log = get_logger(__name__)


@dataclass(frozen=True)
class ApiClient:
    """The sender of a request; middleware puts it into the ASGI scope as `baton.client`.

    Attributes:
        name: of its API key, empty without keys.
        max_open_requests: at once, 0 for no limit.
        is_admin: it may ask executors to leave.
        may_read_status: it may read /status and /metrics, which tell of all clients.
        min_priority: the lowest priority value that its requests may have.
        cache_domain: cached prefixes are shared within it only; empty without keys.
    """

    name: str
    max_open_requests: int
    is_admin: bool
    may_read_status: bool
    min_priority: int = -MAX_PRIORITY
    cache_domain: str = ""


class ApiKeys:
    """The keys of a service: those it was started with, and those of a file that is read again when it changes.

    Args:
        plain: keys themselves. They may do everything. Each is named `env-` and eight digits of its hash: such a name
            stays with its key when the other keys change, as accepted requests belong to it, also after a restart.
        path: of the file; None for no file. With a file that has no keys, no request is let in.

    Raises:
        ApiKeysError: the file cannot be used now. When that happens later, the previous keys stay.
    """

    def __init__(self, plain: Sequence[str] = (), path: Path | None = None) -> None:
        self._plain = [(digest(key), _unnamed_client(key)) for key in plain]
        self._path = path
        self._seen = self._look()
        self._clients = [*self._plain, *self._read()]
        self._look_at = time.monotonic() + RELOAD_INTERVAL_S

    @property
    def are_required(self) -> bool:
        """Whether a request needs a key at all."""
        return bool(self._plain) or self._path is not None

    def client_of(self, key: str) -> ApiClient | None:
        """The client with this key; None if there is none."""
        self._reload_if_due()
        sent, found = digest(key), None
        for kept, client in self._clients:  # all of them, so that the time this takes tells nothing about any key
            if hmac.compare_digest(sent, kept):
                found = client
        return found

    def named(self, name: str) -> ApiClient | None:
        """The client of the key with this name, for what it has left to be done; None if the key is gone. Without keys
        there is one client, without a name."""
        if not self.are_required:
            return ApiClient("", 0, is_admin=False, may_read_status=False) if not name else None
        self._reload_if_due()
        return next((client for _, client in self._clients if client.name == name), None)

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
        return [(key.sha256, _client_of(key)) for key in keys]

    def _look(self) -> tuple[int, ...] | None:
        """A value that is equal as long as the file has not changed; None if there is no file."""
        try:
            status = os.stat(self._path) if self._path is not None else None
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode) if status is not None else None


def plain_keys() -> list[str]:
    """Keys of the environment."""
    return [key.strip() for key in os.environ.get(API_KEYS_VARIABLE, "").split(",") if key.strip()]


def _unnamed_client(key: str) -> ApiClient:
    """The client of a key that was given without a name."""
    name = UNNAMED_PREFIX + digest(key)[:8]
    return ApiClient(name, 0, is_admin=True, may_read_status=True, cache_domain=f"key {name}")


def _client_of(key: ApiKey) -> ApiClient:
    return ApiClient(
        key.name,
        key.max_open_requests,
        key.admin,
        may_read_status=key.admin or key.metrics,
        min_priority=-MAX_PRIORITY if key.admin else key.min_priority,
        cache_domain=f"key {key.name}" if key.cache_group is None else f"group {key.cache_group}",
    )
