"""The API keys that a frontend accepts, and the client that each stands for."""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from common.clocks import Clocks, read_clocks
from common.logging import get_logger
from common.messages import MAX_PRIORITY
from scheduler_svc.api_key_file import ApiKey, ApiKeysError, digest, read_key_file, unnamed, version_of
from scheduler_svc.key_uses import KeyUses

RELOAD_INTERVAL_S = 1.0
REVOKED_AFTER_S = 10.0  # for which a key is missing: whoever writes the file may take several steps

log = get_logger(__name__)


@dataclass(frozen=True)
class ApiClient:
    """The sender of a request; middleware puts it into the ASGI scope as `baton.client`.

    Attributes:
        id: to which belongs what it has, empty without keys.
        name: of its API key, for people; empty without keys.
        max_open_requests: sequences that it may have open at once, 0 for no limit.
        is_admin: it may ask executors to leave.
        may_read_status: it may read /status and /metrics, which tell of all clients.
        min_priority: the lowest priority value that its requests may have.
        cache_domain: cached prefixes are shared within it only; empty without keys.
        sha256: of the key that was sent; empty without one. A client may have two.
        requests_per_minute, tokens_per_minute: that it may ask for, 0 for no limit.
        expires_at: in seconds since 1970, infinity for never.
        weight: of its share, where clients compete.
        address: network that the request came from; empty with keys, and for what comes without a request.
    """

    id: str
    name: str
    max_open_requests: int
    is_admin: bool
    may_read_status: bool
    min_priority: int = -MAX_PRIORITY
    cache_domain: str = ""
    sha256: str = field(default="", repr=False)
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    expires_at: float = inf
    weight: float = 1.0
    address: str = field(default="", repr=False)

    def has_expired(self, now: float) -> bool:
        """Whether its key is accepted no longer, `now` in seconds since 1970."""
        return now >= self.expires_at


class ApiKeys:
    """The keys of a service: those it was started with, and those of a file that is read again when it changes.

    Args:
        plain: keys themselves, without names (`api_key_file.unnamed`).
        path: of the file; None for no file. With a file that has no keys, no request is let in.
        uses: is told when a key of the file is used.
        clocks: what the machine's clocks show.

    Raises:
        ApiKeysError: the file cannot be used now. When that happens later, the previous keys stay.
    """

    def __init__(
        self,
        plain: Sequence[str] = (),
        path: Path | None = None,
        uses: KeyUses | None = None,
        *,
        clocks: Callable[[], Clocks] = read_clocks,
    ) -> None:
        self._uses = uses
        self._clocks = clocks
        self._plain = [_client_of(unnamed(key)) for key in plain]
        self._path = path
        self._seen = self._look()
        self._clients = [*self._plain, *self._read()]
        self._look_at = clocks().monotonic_s + RELOAD_INTERVAL_S
        self._failure = ""  # why the file could not be read the last time
        self._missing: dict[str, tuple[ApiClient, float]] = {}  # by id, since when

    @property
    def are_required(self) -> bool:
        """Whether a request needs a key at all."""
        return bool(self._plain) or self._path is not None

    def known_ids(self) -> frozenset[str] | None:
        """Return the ids of all clients as the file is now; None if it cannot be read, or nobody needs a key."""
        return self._ids if self.are_required and self._reload() else None

    @property
    def _ids(self) -> frozenset[str]:
        return frozenset(client.id for client in self._clients)

    def client_of(self, key: str) -> ApiClient | None:
        """The client with this key; None if there is none, or it has expired."""
        found = self._client_of(key)
        if found is None or self._has_expired(found):
            return None
        if self._uses is not None and found not in self._plain:
            self._uses.used(found.sha256)
        return found

    def expired_client_of(self, key: str) -> ApiClient | None:
        """The client whose key this was until it expired; None if it is no such key."""
        found = self._client_of(key)
        return found if found is not None and self._has_expired(found) else None

    def _client_of(self, key: str) -> ApiClient | None:
        self._reload_if_due()
        sent, found = digest(key), None
        for client in self._clients:  # all of them, so that the time this takes tells nothing about any key
            if hmac.compare_digest(sent, client.sha256):
                found = client
        return found

    def has(self, client: ApiClient) -> bool:
        """Tell whether the key with which a client came is still there, with the same rights, and has not expired."""
        self._reload_if_due()
        return not self.are_required or (client in self._clients and not self._has_expired(client))

    def of_id(self, client_id: str) -> ApiClient | None:
        """Find the client with this id, for what it has left to be done; None if it has no key, or none that has not
        expired. Without keys there is one client, whose id is empty. Of several keys the newest says what the client
        may do."""
        if not self.are_required:
            return ApiClient("", "", 0, is_admin=False, may_read_status=False) if not client_id else None
        self._reload_if_due()
        own = (client for client in reversed(self._clients) if client.id == client_id and not self._has_expired(client))
        return next(own, None)

    def newly_revoked(self) -> list[ApiClient]:
        """Return the clients whose keys were there, and were missing when the file was read whole, and again
        `REVOKED_AFTER_S` later. Each is returned once. To be called every second or so."""
        self._reload_if_due()
        now = self._clocks().monotonic_s
        due = [client_id for client_id, (_, since) in self._missing.items() if now - since >= REVOKED_AFTER_S]
        if not due or not self._reload():
            return []
        return [self._missing.pop(client_id)[0] for client_id in due if client_id in self._missing]

    def _has_expired(self, client: ApiClient) -> bool:
        return client.has_expired(self._clocks().wall_s)

    def _reload_if_due(self) -> None:
        now = self._clocks().monotonic_s
        if now < self._look_at:
            return
        self._look_at = now + RELOAD_INTERVAL_S
        seen = self._look()
        if seen != self._seen or self._failure:
            self._seen = seen
            if self._reload():
                log.info("API keys changed", keys=len(self._clients))

    def _reload(self) -> bool:
        """Read the file. Returns whether it could be read."""
        try:
            clients = [*self._plain, *self._read()]
        except ApiKeysError as error:
            if (reason := str(error)) != self._failure:
                log.error("API keys cannot be read, keeping those of before", reason=reason)
            self._failure = reason
            return False
        self._failure = ""
        before, self._clients = self._clients, clients
        ids, now = self._ids, self._clocks().monotonic_s
        self._missing = {client_id: found for client_id, found in self._missing.items() if client_id not in ids}
        for client in before:
            if client.id not in ids:
                self._missing.setdefault(client.id, (client, now))
        return True

    def _read(self) -> list[ApiClient]:
        return [_client_of(key) for key in read_key_file(self._path)] if self._path is not None else []

    def _look(self) -> tuple[int, ...] | None:
        return version_of(self._path) if self._path is not None else None


def _client_of(key: ApiKey) -> ApiClient:
    return ApiClient(
        key.client_id,
        key.name,
        key.max_open_requests,
        key.admin,
        may_read_status=key.admin or key.metrics,
        min_priority=-MAX_PRIORITY if key.admin else key.min_priority,
        cache_domain=f"key {key.client_id}" if key.cache_group is None else f"group {key.cache_group}",
        sha256=key.sha256,
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        expires_at=inf if key.expires is None else key.expires.timestamp(),
        weight=key.weight,
    )
