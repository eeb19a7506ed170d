"""The folder that `baton keys` works on, and the operations on it.

scheduler/         for `baton-scheduler --curve-keys`: its secret key, and the public keys of executors
scheduler/api-keys.json                                   for `baton-scheduler --api-keys`
executors/NAME/    for `baton-executor --curve-keys` on NAME's machine: its secret key, the scheduler's public one

The service that reads these files runs as another user than root. So a file that is written again keeps its owner,
group and mode, and root makes new ones as the user whose folder it is.
"""

import contextlib
import fcntl
import grp
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from common import curve
from common.curve import KeyPair
from common.errors import BatonError
from common.installation import this_command
from common.paths import is_there, nearest, user_name, why_not
from scheduler_svc.api_key_file import (
    ApiKey,
    digest,
    encode_key_file,
    is_reserved,
    new_key,
    read_key_file,
)
from scheduler_svc.api_key_options import API_KEYS_FILE
from scheduler_svc.key_uses import name_of_use


class KeyRingError(BatonError):
    """The operation cannot be done; nothing has been changed."""


@dataclass(frozen=True)
class Entry:
    """One key as `baton keys list` shows it.

    Attributes:
        id: of an API key's client; empty for executors.
        created: in UTC, ISO 8601.
        key: an executor's public key in Z85, or the first digits of the SHA-256 of an API key.
        max_open_requests, requests_per_minute, tokens_per_minute, weight, admin, metrics: fields of an API key.
        expires, last_used: as `created`; empty for never, and where no use is known.
        is_old: whether its client has a newer one, and `revoke --old` takes this one away.
    """

    kind: Literal["executor", "api"]
    name: str
    id: str
    created: str
    key: str
    max_open_requests: int = 0
    admin: bool = False
    metrics: bool = False
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    weight: float = 1.0
    expires: str = ""
    last_used: str = ""
    is_old: bool = False


class KeyRing:
    """Makes, lists and revokes keys. Several processes may do so at once. Methods raise BatonError and OSError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.scheduler = root / "scheduler"
        self.api_keys = self.scheduler / API_KEYS_FILE
        self._executors = root / "executors"
        self._server_secret = self.scheduler / curve.SERVER_SECRET

    def init(self) -> bool:
        """Make the scheduler's keys. Returns False, and changes nothing, if they exist."""
        self._make_folders()
        with self._locked():
            if is_there(self._server_secret):
                KeyPair.load(self._server_secret)  # raises if the file is damaged
                return False
            _make_secret(self._server_secret)
            return True

    def executor_folder(self, name: str) -> Path:
        """The folder that an executor's machine needs."""
        return self._executors / name

    def add_executor(self, name: str) -> bool:
        """Make an executor's keys, and put it on the scheduler's list. Returns False if it is on the list already."""
        _check_name(name)
        server = self._server_keys()
        with self._locked():
            self._check_free(name, "executor")
            folder, allowed = self.executor_folder(name), self._allowed_file(name)
            secret = folder / curve.EXECUTOR_SECRET
            if is_there(allowed) and not is_there(secret):
                raise KeyRingError(f"{name} is on the scheduler's list, and {secret} is gone: revoke {name} first")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_there(secret):
                _make_secret(secret)
            _put_public(folder / curve.SERVER_PUBLIC, server.public)
            return _put_public(allowed, KeyPair.load(secret).public)  # last: only now may it connect

    def add_api_key(self, name: str, *, rotate: bool = False, **rights: Any) -> str:
        """Make a client's API key, and return it: only its hash is kept.

        Args:
            rotate: make a second key of the client with this name. It has the rights of the first one, except for
                `rights`, and all that belongs to the client.
            rights: fields of `ApiKey`.
        """
        _check_name(name)
        if rights.get("cache_group") is not None:
            _check_name(rights["cache_group"])
        if is_reserved(name):
            raise KeyRingError(f"{name} is how keys of BATON_API_KEYS, or ids, are written; take another name")
        self._make_folders()
        key, now = new_key(), _written(datetime.now(UTC))
        with self._locked():
            self._check_free(name, "api")
            keys = self._read_api_keys()
            known = [each for each in keys if each.name == name]
            if rotate:
                if not known:
                    raise KeyRingError(f"{name} has no API key that could be rotated")
                if len(known) > 1:
                    raise KeyRingError(f"{name} has {len(known)} API keys: baton keys revoke {name} --old leaves one")
                if known[0].expires is not None and "expires" not in rights:
                    until = f"{name}'s key expires at {_written(known[0].expires)}"
                    raise KeyRingError(
                        f"{until}: --expires says when the new one does, --expires never that it does not"
                    )
                made = {"sha256": digest(key), "created": now, "id": known[0].client_id}
                entry = msgspec.structs.replace(known[0], **made, **rights)
            elif known:
                raise KeyRingError(f"{name} has an API key, which cannot be shown again: --rotate makes another")
            else:
                entry = ApiKey(name=name, sha256=digest(key), created=now, **rights)
            _replace(self.api_keys, encode_key_file([*keys, entry]), 0o600)
        return key

    def entries(self, uses: Mapping[str, float]) -> list[Entry]:
        """All keys but the scheduler's: executors by name, then API keys in the order made.

        Args:
            uses: when API keys were last used (`key_uses.last_uses`).
        """
        if not is_there(self.root):
            raise KeyRingError(f"there is no folder {self.root}; `baton keys init` makes it, and `baton keys api NAME`")
        executors = [
            Entry("executor", name, "", _modified(path), curve.load_public(path).decode())
            for name, path in curve.allowed_files(self.scheduler).items()
        ]
        keys = self._read_api_keys()
        newest = {key.client_id: key for key in keys}
        clients = [
            Entry(
                "api",
                key.name,
                key.client_id,
                key.created,
                f"{key.sha256[:12]}...",
                key.max_open_requests,
                key.admin,
                key.metrics,
                key.requests_per_minute,
                key.tokens_per_minute,
                key.weight,
                "" if key.expires is None else _written(key.expires),
                "" if (at := uses.get(name_of_use(key.sha256))) is None else _written(datetime.fromtimestamp(at, UTC)),
                newest[key.client_id] is not key,
            )
            for key in keys
        ]
        return [*executors, *clients]

    def revoke(self, name: str, *, only_old: bool = False) -> Literal["executor", "api"]:
        """Take an executor's key off its list and its secret from this folder, or all API keys of a client.

        Args:
            name: of the executor or the client, or the client's id.
            only_old: leave the client the newest of its keys, and all that belongs to it.

        Returns:
            Its kind.
        """
        _check_name(name)
        if not is_there(self.root):
            raise KeyRingError(f"there is no folder {self.root}; `baton keys init` makes it, and `baton keys api NAME`")
        with self._locked():
            allowed = self._allowed_file(name)
            if is_there(allowed) and not only_old:
                allowed.unlink()
                shutil.rmtree(self.executor_folder(name), ignore_errors=True)
                return "executor"
            keys = self._read_api_keys()
            found = [key for key in keys if name in (key.name, key.client_id)]
            if not found:
                raise KeyRingError(f"there is no key of {name} in {self.root}")
            if only_old and len(found) == 1:
                raise KeyRingError(f"{name} has one API key, and no older one")
            gone = found[:-1] if only_old else found
            _replace(self.api_keys, encode_key_file([key for key in keys if key not in gone]), 0o600)
            return "api"

    def _make_folders(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.root.mkdir(mode=0o700, parents=True)
            _replace(self.root / ".gitignore", b"*\n", 0o644)
        for folder in (self.scheduler, self._executors):
            folder.mkdir(mode=0o700, exist_ok=True)

    def _server_keys(self) -> KeyPair:
        if not is_there(self._server_secret):
            raise KeyRingError(f"there is no {self._server_secret}; `baton keys init` makes it")
        return KeyPair.load(self._server_secret)

    def _allowed_file(self, name: str) -> Path:
        return self.scheduler / f"{curve.ALLOWED_PREFIX}{name}{curve.ALLOWED_SUFFIX}"

    def _read_api_keys(self) -> tuple[ApiKey, ...]:
        return read_key_file(self.api_keys) if is_there(self.api_keys) else ()

    def _check_free(self, name: str, kind: Literal["executor", "api"]) -> None:
        """Names are unique among executors and clients together, so that `revoke` needs only the name."""
        if kind == "executor" and any(key.name == name for key in self._read_api_keys()):
            raise KeyRingError(f"{name} is the name of an API key; take another")
        if kind == "api" and is_there(self._allowed_file(name)):
            raise KeyRingError(f"{name} is the name of an executor; take another")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other processes, so that the files do not change between a read and a write."""
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def as_owner_of(root: Path) -> Iterator[None]:
    """Work on a folder of keys, or make it, as the user that it belongs to, if this is root: nothing in there can lead
    root elsewhere, and what is made there is the owner's to read.

    Raises:
        KeyRingError: this user may not; the message says which one may, or what has to be given to the owner.
        OSError: anything else about a file, with its path.
    """
    owner = nearest(root).stat()
    is_other = os.geteuid() == 0 != owner.st_uid
    try:
        with _acting_as(owner.st_uid, owner.st_gid) if is_other else contextlib.nullcontext():
            yield
    except (PermissionError, BatonError) as error:
        reason = error if isinstance(error, PermissionError) else error.__cause__
        if not isinstance(reason, PermissionError):
            raise
        words = why_not(error) if error is reason else str(error)
        if remedy := _of_another(root, reason.filename, owner):
            raise KeyRingError(f"{words}; {remedy}") from error
        if owner.st_uid == os.geteuid():
            raise
        name = user_name(owner.st_uid)
        command = f"sudo -u {name} {this_command(by_sudo=True)} keys ..."
        raise KeyRingError(f"{words}; {root} is for user {name}: {command}") from error


def _of_another(root: Path, path: Any, owner: os.stat_result) -> str:
    """Name what on the way from the folder of keys to a path in it belongs to another user than the folder does, with
    the command that gives it to this one; empty if nothing does."""
    if not isinstance(path, str) or not Path(path).is_relative_to(root):
        return ""
    for step in (*reversed(Path(path).relative_to(root).parents), Path(path).relative_to(root)):
        place = root / step
        try:
            status = place.stat()
        except OSError:
            return ""
        if status.st_uid != owner.st_uid:
            name, whose = user_name(status.st_uid), user_name(owner.st_uid)
            command = f"chown {'-R ' * place.is_dir()}{whose.removeprefix('#')}:{_group_name(owner.st_gid)} {place}"
            return f"{place} belongs to user {name}, and {root} to user {whose}; as root: {command}"
    return ""


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@contextlib.contextmanager
def _acting_as(uid: int, gid: int) -> Iterator[None]:
    """Have the rights of a user for a while, instead of root's."""
    own = os.getgroups(), os.getegid()
    with contextlib.suppress(KeyError):
        gid = pwd.getpwuid(uid).pw_gid
    try:
        os.setgroups(os.getgrouplist(user_name(uid), gid))
        os.setegid(gid)
        os.seteuid(uid)
        yield
    finally:
        os.seteuid(os.getuid())
        os.setegid(own[1])
        os.setgroups(own[0])


def _check_name(name: str) -> None:
    if not curve.KEY_NAME.fullmatch(name) or name.startswith("."):
        raise KeyRingError(f"{name!r} is no name: 1 to 64 letters, digits, dots, dashes or underscores, no dot first")


def _put_public(path: Path, public: bytes) -> bool:
    """Write a public file unless it is there with this key. Returns whether it was written."""
    if is_there(path) and curve.load_public(path) == public:
        return False
    _replace(path, curve.certificate(public).encode(), 0o644)
    return True


def _make_secret(path: Path) -> None:
    keys = KeyPair.generate()
    _replace(path, curve.certificate(keys.public, keys.secret).encode(), 0o600)


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically: a reader sees the whole old file, if there was one, or the whole new one.

    Args:
        mode: of a file that is new.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with open(descriptor, "wb") as file:
            if is_there(path):
                _make_like(descriptor, path)
            else:
                os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:  # such as of a full disk
            raise KeyRingError(f"{path} cannot be written: {error.strerror}") from error
        raise


def _make_like(descriptor: int, path: Path) -> None:
    """Give a file the owner, group and mode of the one that it takes the place of. Raises KeyRingError if that needs
    rights that this user does not have."""
    old, new = path.stat(), os.fstat(descriptor)
    acting = os.geteuid()
    os.seteuid(os.getuid())  # root may, also where it acts as the folder's owner
    try:
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & 0o777)
    except PermissionError as error:
        holders = f"user {user_name(old.st_uid)} and group {_group_name(old.st_gid)}"
        raise KeyRingError(f"{path} belongs to {holders}, which only root can keep: run this as root") from error
    finally:
        os.seteuid(acting)


def _modified(path: Path) -> str:
    return _written(datetime.fromtimestamp(path.stat().st_mtime, UTC))


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
