"""Copies a store into one file while services use it, and makes a store of such a file.

SQLite's online backup copies all pages as they are in one moment: writers go on meanwhile, and the log grows as long as
that takes. A copy is checked before it gets its name, so a file that has the name is whole.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from sqlite3 import Connection

from scheduler_svc.store.check import check
from scheduler_svc.store.database import (
    BUSY_TIMEOUT_S,
    FILE_NAME,
    FILE_NAMES,
    SCHEDULER_LOCK,
    USERS_NAME,
    explained,
    require_trusted,
    version_of,
)
from scheduler_svc.store.errors import StoreBusy, StoreDamaged, StoreError
from scheduler_svc.store.schema import STEPS

_RECORDS = ("responses", "files", "batches")
_MAX_FAULTS = 3  # that are told
_PART = ".part"  # what a copy is called until it is whole


def back_up(folder: Path, target: Path) -> dict[str, int]:
    """Copy the store in a folder into a new file, which only this user may read.

    Returns:
        Number of bytes, and of records of each kind.

    Raises:
        StoreError: there is no store, it is damaged or another user's, the file exists or cannot be written.
    """
    _require_store(folder / FILE_NAME)
    require_trusted(folder, FILE_NAMES)
    if os.path.lexists(target):
        raise _exists(target)
    return _copy(folder / FILE_NAME, target)


def restore(source: Path, folder: Path) -> dict[str, int]:
    """Make a store of a backup, in a folder without one.

    Returns:
        As `back_up`.

    Raises:
        StoreError: the file is no whole store, a service owns the folder, or it has a store already.
        StoreBusy: a service owns the folder.
    """
    _require_store(source)
    require_trusted(folder, (SCHEDULER_LOCK, *FILE_NAMES))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error.strerror}; name another folder by --store") from error
    require_trusted(folder, (SCHEDULER_LOCK, *FILE_NAMES))  # another user may have been faster to make the folder
    with _owned(folder):
        left = [name for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm") if os.path.lexists(folder / name)]
        if left:
            raise StoreError(
                f"{folder} has a store already ({left[0]}), and it is not overwritten: mv {folder} {folder}.old"
            )
        return _copy(source, folder / FILE_NAME)


def _exists(path: Path) -> StoreError:
    return StoreError(f"{path} exists, and is not overwritten; name another file")


def _give_name(part: Path, target: Path) -> None:
    """Rename a file, unless there is another one meanwhile."""
    try:
        os.link(part, target)
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise _exists(target) from None
        os.rename(part, target)
    else:
        part.unlink()


def _require_store(path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except FileNotFoundError as error:
        raise StoreError(f"there is no {path}") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error


def _copy(source: Path, target: Path) -> dict[str, int]:
    part = target.with_name(target.name + _PART)
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError as error:
        raise StoreError(
            f"{part} is left of a copy that was cut off, or another one is being made: rm {part}"
        ) from error
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    try:
        facts = _filled(source, part)
        _give_name(part, target)
        _sync(target.parent)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreError(f"{target} cannot be written: {error.strerror}") from error
        raise
    return facts


def _filled(source: Path, part: Path) -> dict[str, int]:
    """Fill an empty file with a store, and check what is in it then."""
    try:
        with closing(_opened(source)) as original, closing(sqlite3.connect(part, isolation_level=None)) as copy:
            version = version_of(original, source)
            if version == 0:
                raise StoreError(f"{source} is empty, and no store")
            original.backup(copy)  # all pages in one step: none of a later moment
            copy.execute("PRAGMA journal_mode = DELETE")  # one file is all of it
            faults = _faults(copy, version)
            counts = {name: copy.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in _RECORDS}
    except sqlite3.Error as error:
        raise explained(error, f"{source} cannot be copied to {part}") from error
    if faults:
        raise StoreDamaged(f"{source} is damaged, and was not copied: {'; '.join(faults[:_MAX_FAULTS])}")
    _sync(part)
    return {"bytes": part.stat().st_size, **counts}


def _opened(path: Path) -> Connection:
    """Open a file that is there, without making its tables those of this release."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    except sqlite3.Error as error:
        raise explained(error, f"{path} cannot be opened") from error


def _faults(connection: Connection, version: int) -> list[str]:
    """Return what is wrong; the counts of an older release are not ours."""
    if version == len(STEPS):
        return check(connection)
    return [verdict for (verdict,) in connection.execute("PRAGMA integrity_check(20)") if verdict != "ok"]


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Keep schedulers out, and who has the store open. Raises StoreBusy if there is one."""
    locks: list[int] = []
    try:
        for name in (SCHEDULER_LOCK, USERS_NAME):
            lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            locks.append(lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.read(lock, 200).decode(errors="replace")
                who = f" ({holder})" if holder else ""
                raise StoreBusy(f"a service has the store in {folder}{who}; stop it before you restore") from error
        yield
    except OSError as error:
        raise StoreError(f"{folder} cannot be locked: {error.strerror}") from error
    finally:
        for lock in locks:
            os.close(lock)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
