"""Whether a file may be loaded as code: only root and this user may have been able to put it there, or change it."""

import grp
import os
import pwd
import stat
from pathlib import Path


def why_untrusted(file: Path) -> str | None:
    """What is wrong with a file, or with a folder above it; None if nothing is.

    Args:
        file: absolute, and without links in it: what lies above the target of a link counts, too.

    A folder with the sticky bit, such as /tmp, is fine: there other users can touch only what is theirs.
    """
    for path in (file, *file.parents):
        try:
            status = path.stat()
        except OSError as error:
            return f"{path} cannot be looked at: {error.strerror}"
        if status.st_uid not in (0, os.geteuid()):
            return f"{path} belongs to user {status.st_uid}, not to root or user {os.geteuid()}, who loads it"
        mode = stat.S_IMODE(status.st_mode)
        is_sticky = stat.S_ISDIR(status.st_mode) and mode & stat.S_ISVTX
        others_write = mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_own_group(status.st_gid))
        if others_write and not is_sticky:
            return f"{path} can be changed by others (mode {mode:04o}): chmod go-w {path}"
    return None


def _is_own_group(gid: int) -> bool:
    """Whether it is root's, or the group that many systems make for each user alone."""
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and not group.gr_mem
