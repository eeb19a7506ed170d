"""The file of API keys: `baton keys` writes it, frontends read it.

It does not contain keys, only the SHA-256 of each. That is enough: a key has 256 random bits, so there is nothing to
guess, and no need for the slow hashes that protect passwords, which would cost every request their time.
"""

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.errors import BatonError
from common.messages import Weight
from common.trust import why_changeable, why_foreign

Limit = Annotated[int, Meta(ge=0, le=2**31 - 1)]

KEY_PREFIX = "sk-baton-"
UNNAMED_PREFIX = "env-"
NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}\Z"
ID_DIGITS = 32
_KEY_BYTES = 32
_ID = re.compile(rf"[0-9a-f]{{{ID_DIGITS}}}")


class ApiKeysError(BatonError):
    """A file of API keys cannot be used."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key, as the file keeps it.

    Attributes:
        name: of its client, for people: in logs, metrics and lists. Another client may get it later.
        sha256: of the key, in hex.
        created: in UTC, ISO 8601.
        max_open_requests: sequences that its client may have open at once, 0 for no limit. A request with n=4 counts as
            four.
        requests_per_minute, tokens_per_minute: that its client may ask for, 0 for no limit.
        admin: the client may do everything.
        metrics: the client may read /status and /metrics.
        min_priority: the lowest priority value, which is served earliest, that its requests may have.
        cache_group: clients of one group share cached prefixes, and could find out by timing what the others send;
            None shares with no other client.
        id: of its client, where that is another key's: see `client_id`.
        expires: when it is accepted no longer, as `created`; None for never.
        weight: of its client's share, where clients compete: one of weight 2 gets twice what one of weight 1 does.
    """

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: str
    max_open_requests: Limit = 0
    admin: bool = False
    metrics: bool = False
    min_priority: Annotated[int, Meta(ge=-100, le=0)] = 0
    cache_group: Annotated[str, Meta(pattern=NAME_PATTERN)] | None = None
    id: Annotated[str, Meta(pattern=rf"^[0-9a-f]{{{ID_DIGITS}}}\Z")] | None = None
    requests_per_minute: Limit = 0
    tokens_per_minute: Limit = 0
    expires: Annotated[datetime, Meta(tz=True)] | None = None
    weight: Weight = 1.0

    @property
    def client_id(self) -> str:
        """Id of its client, to which all belongs that the client has; no other client ever gets it."""
        return self.id or client_id(self.sha256)


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    version: Literal[1]
    keys: tuple[ApiKey, ...]


def unnamed(key: str) -> ApiKey:
    """Describe a key of the environment as the file would. Such a key may do everything. Its name is `env-` and eight
    digits of its hash, so that the name stays the same when other keys change."""
    hashed = digest(key)
    return ApiKey(name=UNNAMED_PREFIX + hashed[:8], sha256=hashed, created="", admin=True)


def new_key() -> str:
    """A key that cannot be guessed."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def is_reserved(name: str) -> bool:
    """Tell whether a name looks like that of a key without one (`env-5f3a0c19`), or like an id."""
    return name.startswith(UNNAMED_PREFIX) or _ID.fullmatch(name) is not None


def client_id(sha256: str) -> str:
    """Make the id of a client from the hash of its first key: keys are random, so no id is given twice."""
    return sha256[:ID_DIGITS]


def digest(key: str) -> str:
    """The form in which a key is kept."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


def read_key_file(path: Path) -> tuple[ApiKey, ...]:
    """The keys in a file. Raises ApiKeysError, also if others could have written it."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # a pipe would never open
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ApiKeysError(f"{path} is no file")
            keys = msgspec.json.decode(file.read(), type=KeyFile).keys
    except OSError as error:
        raise ApiKeysError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ApiKeysError(f"{path} is no file of `baton keys api`: {error}") from error
    if fault := why_foreign(path, status) or why_changeable(path, status, spares_own_group=False):
        raise ApiKeysError(fault)
    return keys


def version_of(path: Path) -> tuple[int, ...] | None:
    """Return a value that is another one after each change of a file; None if the file cannot be looked at.

    The time of a change of status tells also of a new owner, which may be what lets the file be read again.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns, status.st_size


class KeyFileWatch:
    """Tells whether a file of keys can be read. Those who use it keep the keys of before, so that nothing else shows
    that a revoked key stays valid, and that the next start fails.

    Attributes:
        failure: why it could not be read when it was last looked at; empty if it could.
        keys: that it had when it was last read; none before its first change.
    """

    def __init__(self, path: Path) -> None:
        self.failure = ""
        self.keys: tuple[ApiKey, ...] = ()
        self._path = path
        self._version = version_of(path)

    def reload(self) -> None:
        """Look at the file, and read it if it has changed or could not be read."""
        version = version_of(self._path)
        if version == self._version and not self.failure:
            return
        self._version = version
        try:
            self.keys = read_key_file(self._path)
        except ApiKeysError as error:
            self.failure = str(error)
        else:
            self.failure = ""


def encode_key_file(keys: Sequence[ApiKey]) -> bytes:
    """The content of a file with these keys."""
    return msgspec.json.format(msgspec.json.encode(KeyFile(1, tuple(keys))), indent=2) + b"\n"
