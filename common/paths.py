"""Tells what keeps a path from being used, in the words of messages: what cannot be looked at is never called missing.

`Path.exists` and `is_dir` answer False where a folder on the way may not be entered (all errors since Python 3.14).
"""

import contextlib
import os
import pwd
import stat
from pathlib import Path
from typing import Any

import click


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
    """Return a path, or the first folder above it that is there and that this user may look at."""
    path = path.absolute()
    for each in (path, *path.parents):
        with contextlib.suppress(OSError):
            if is_there(each):
                return each
    return Path("/")


def user_name(uid: int) -> str:
    """Name a user: by the account's name, or by the number where there is no account."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"  # as sudo -u takes it


def why_not(error: Exception) -> str:
    """Say what an error says: one of the system with its path and without its number."""
    if not isinstance(error, OSError):
        return str(error)
    reason = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, (str, bytes)) else reason


class ExistingPath(click.Path):
    """A path that has to be there, for an option. Click itself calls missing what this user may not look at."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(exists=True, path_type=Path, **rules)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check it; click fails with one line."""
        try:
            os.stat(value)
        except (FileNotFoundError, NotADirectoryError):
            pass  # click says so, and takes "-" where that is stdin
        except OSError as error:
            self.fail(f"{click.format_filename(value)} cannot be read: {error.strerror}", param, ctx)
        return super().convert(value, param, ctx)
