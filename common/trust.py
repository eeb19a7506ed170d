"""Decides whether another user could have put a file or a folder in its place, could have changed it, or can read it.

A service believes what it reads back: keys, sockets, prompts that it wrote. So whatever leads there has to be root's
or this user's, and other users may not write it. A folder with the sticky bit, such as /tmp, may be written by others:
there they can touch only what is theirs, and that is refused by its owner. A group counts as another user, unless only
this user is in it.

`kernels/cpu/trust.py` has the same rules for code that is loaded: `kernels` imports nothing of ours.
"""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.paths import user_name

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
MAX_LINKS = 40  # as many as Linux follows
# How deep a folder lies that is not the system's: /etc/baton, /var/lib/baton. Nowhere below those with 99.
_OWN_FROM = {"var": 3, "run": 3} | dict.fromkeys(("dev", "proc", "sys", "usr", "bin", "sbin", "lib", "boot"), 99)
WAIVER = "BATON_TRUST_FOLDERS"  # a variable of the environment
WAIVED = f"set {WAIVER}=1 in a container in which there is no other user"


def why_untrusted(path: Path, *, is_private: bool = False) -> str | None:
    """Name what is wrong with a path, or with what leads there: folders, links, and folders that links lead through.

    What does not exist is no fault: it is still to be made, in a folder that is looked at. Files in a folder that
    nobody else may enter may have any mode. `WAIVER` takes everything.

    Args:
        is_private: it is a file that only this user may read.

    Returns:
        The reason, with the command that helps if there is one; None if nothing is wrong.
    """
    if is_waived():
        return None
    try:
        for step, status in _way_to(path):
            if fault := why_foreign(step, status):
                return fault
            if not stat.S_ISDIR(status.st_mode) and not _can_be_reached(step):
                continue
            if fault := why_changeable(step, status):
                return fault
            if is_private and stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH:
                return f"{step} can be read by others (mode {_mode(status)}){_advice('chmod o-rwx', step, status)}"
    except OSError as error:
        return f"{error.filename or path} cannot be looked at: {error.strerror}"
    return None


def is_waived() -> bool:
    """Tell whether the operator says that there are no other users."""
    return os.environ.get(WAIVER) == "1"


def why_foreign(path: Path, status: os.stat_result) -> str | None:
    """Say so if a path belongs to another user than root and this one: any other owner could change it."""
    if status.st_uid in (0, os.geteuid()):
        return None
    readers = f"root or user {user_name(os.geteuid())}" if os.geteuid() else "root"
    return f"{path} belongs to user {user_name(status.st_uid)}, not to {readers}, who reads it"


def why_changeable(
    path: Path, status: os.stat_result, *, spares_own_group: bool = True, spares_sticky: bool = True
) -> str | None:
    """Say so if others may write a file, or may add, rename and remove what is in a folder.

    Args:
        spares_own_group: a group in which there is only this user may.
        spares_sticky: others may add to a folder with the sticky bit, as every file in there is looked at.
    """
    mode = status.st_mode
    if stat.S_ISLNK(mode) or (spares_sticky and stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return None
    if fault := _why_of_all(path, mode):
        return fault
    others = mode & OTHERS_WRITE
    if not others or (others == stat.S_IWGRP and spares_own_group and _is_own_group(status.st_gid)):
        return None
    return f"{path} can be changed by others (mode {_mode(status)}){_advice('chmod go-w', path, status)}"


def why_not_ours_alone(folder: Path) -> str | None:
    """Say so if a folder, which is not to be a link, is not this user's, or others may do anything in it.

    The caller knows what helps: to close a folder may break what else is in it.
    """
    try:
        status = folder.lstat()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder (or a link to one)"
    if status.st_uid != os.geteuid():
        owner, own = user_name(status.st_uid), user_name(os.geteuid())
        return f"{folder} belongs to user {owner}, this process runs as user {own}"
    if stat.S_IMODE(status.st_mode) & 0o077:
        return f"{folder} is open to other users (mode {_mode(status)})"
    return None


def _advice(command: str, path: Path, status: os.stat_result) -> str:
    """Name the command that closes a path, unless more than this user's own work depends on how that is: folders of the
    system with what is in them, and devices."""
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return ""
    parts = (path if stat.S_ISDIR(status.st_mode) else path.parent).parts[1:]
    return f": {command} {path}" if len(parts) >= _OWN_FROM.get(parts[0] if parts else "", 2) else ""


def _why_of_all(folder: Path, mode: int) -> str | None:
    """Say so of a folder in which every user may make files, such as /tmp and the images' /var/lib/baton."""
    if not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX and mode & stat.S_IWOTH):
        return None
    return f"in {folder} all users may make files: name a folder below it, which is made for this user alone"


def first_of_ours(folders: Sequence[Path], holds: str) -> Path:
    """Choose one of several places for a folder of this user alone, so that all processes of the user choose the same.

    Args:
        folders: in order of preference.
        holds: name of a file; a place where that one is already comes before all others.

    Returns:
        The first place that is this user's alone or can be made so, or the first of all if there is none, so that the
        message about it names the usual place.
    """
    usable = [folder for folder in folders if can_be_ours(folder)]
    found = (folder for folder in usable if os.path.lexists(folder / holds))
    return next(found, usable[0] if usable else folders[0])


def can_be_ours(folder: Path) -> bool:
    """Tell whether a folder is this user's alone, or is missing and can be made so."""
    if os.path.lexists(folder):
        return why_not_ours_alone(folder) is None
    return os.access(folder.parent, os.W_OK | os.X_OK)


def _way_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Go where the system goes: each folder and link on the way with its status, and the path itself if it is there.
    No step is named by way of a link."""
    current, num_links = Path("/"), 0
    rest = [*reversed(path.absolute().parts[1:])]
    yield current, current.lstat()
    while rest:
        part = rest.pop()
        if part == "..":
            current = current.parent
            continue
        step = current / part
        try:
            status = step.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return  # what opens it says so
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            current = step
            continue
        if (num_links := num_links + 1) > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(step))
        if target.is_absolute():
            current = Path("/")
        rest += [part for part in reversed(target.parts) if part != "/"]


def _can_be_reached(file: Path) -> bool:
    """Tell whether others may enter each folder that a file is in."""
    folders = [folder.lstat() for folder in file.parents]
    return all(
        each.st_mode & stat.S_IXOTH or (each.st_mode & stat.S_IXGRP and not _is_own_group(each.st_gid))
        for each in folders
    )


def _is_own_group(gid: int) -> bool:
    """Tell whether nobody else is in a group. Three kinds are so: root's; the one that many systems make for each user
    alone; and one that no account has and that this process was given, such as Kubernetes' `fsGroup`."""
    if gid == 0:
        return True
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid in (os.getegid(), *os.getgroups()) and all(user.pw_gid != gid for user in _other_users())
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and not group.gr_mem


def _other_users() -> list[pwd.struct_passwd]:
    return [user for user in pwd.getpwall() if user.pw_uid != os.geteuid()]


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"
