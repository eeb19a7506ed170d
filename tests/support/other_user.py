"""Another user of the machine, who really is one: a process of its own does what it is told."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UID = 65534  # nobody
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start a process of another user")


def as_other_user(code: str, *arguments: object) -> None:
    """Run Python code as this user; `sys.argv[1:]` are the arguments."""
    subprocess.run(command_as(UID, code, *arguments), check=True, cwd="/")


def command_as(uid: int, code: str, *arguments: object, before: str = "") -> list[str]:
    """A command that runs Python code as a user without rights.

    Args:
        before: code that root runs, to import what this user may not read.
    """
    become = f"import os, socket, sys\n{before}\nos.setgroups([]); os.setgid({uid}); os.setuid({uid}); os.umask(0)"
    return [sys.executable, "-c", f"{become}\n{code}", *map(str, arguments)]


@contextmanager
def folder_of_all(mode: int = 0o1777) -> Iterator[Path]:
    """A folder that the other user can get to, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="baton-test-")).resolve()
    folder.chmod(mode)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
