"""Processes that a test did not start itself, by their ids."""

import contextlib
import os
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def open_files(pid: int) -> dict[Path, str]:
    """What a process has open: its descriptors in /proc, and the file of each. One may be closed meanwhile."""
    found = {}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[descriptor] = os.readlink(descriptor)
    return found
