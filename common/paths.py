"""Tells what keeps a path from being used, in the words of messages: what cannot be looked at is never called missing.

`Path.exists` and `is_dir` answer False where a folder on the way may not be entered (all errors since Python 3.14).
"""

import os
import pwd
import stat
from pathlib import Path


def is_there(path: Path) -> bool:
    """Tell whether something is at a path, at the end of its links. Raises OSError if that cannot be known."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_folder(path: Path) -> bool:
    """Tell whether a folder is there. Raises OSError as `is_there` does."""
    return is_there(path) and stat.S_ISDIR(path.stat().st_mode)


def nearest(path: Path) -> Path:
    """Return a path, or the first folder above it that is there. Raises OSError as `is_there` does."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if is_there(each))


def user_name(uid: int) -> str:
    """Name a user: by the account's name, or by the number where there is no account."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"  # as sudo -u takes it


def why_not(error: OSError) -> str:
    """Say what an error of the system says, with the path and without its number."""
    reason = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, (str, bytes)) else reason
