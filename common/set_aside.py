"""Damaged files are kept under another name, so that they can still be looked at.

A module of its own, because journal and store, which know nothing of each other, both need it.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def beside(path: Path, suffix: str) -> Path:
    """`path` with something added to its name."""
    return path.with_name(path.name + suffix)


def move_aside(path: Path, suffixes: Sequence[str]) -> Path:
    """Rename a file and those beside it, as far as they are there, to `NAME.corrupt-TIME`, so that they stay together.

    Args:
        suffixes: of the names of the files beside it.

    Returns:
        The file's new name.

    Raises:
        OSError: the folder does not let us.
    """
    name = f".corrupt-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    moved_to, count = beside(path, name), 1
    while any(beside(moved_to, suffix).exists() for suffix in ("", *suffixes)):
        count += 1
        moved_to = beside(path, f"{name}-{count}")
    for suffix in ("", *suffixes):
        with suppress(FileNotFoundError):
            beside(path, suffix).rename(beside(moved_to, suffix))
    return moved_to
