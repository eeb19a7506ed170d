"""Which Baton this is: its version, and the commit where that is known. Both are told, and decide nothing."""

import contextlib
import re
from pathlib import Path

from common import __version__

COMMIT_FILE = "common/commit.txt"  # in a wheel or an image, below the folder of the packages; no checkout has it
COMMIT = re.compile(r"[0-9a-f]{7,64}")

_DIGITS_SHOWN = 10


def commit_of(root: Path) -> str:
    """Return the commit that is checked out in a folder, else the one that a build has written there, else nothing.

    Changes on top of the commit do not show. Git is not called, and whatever it has in its files raises nothing.
    """
    for read in (_checked_out, _written):
        with contextlib.suppress(OSError, ValueError):
            if COMMIT.fullmatch(commit := read(root)):
                return commit
    return ""


def _checked_out(root: Path) -> str:
    git = root / ".git"
    if git.is_file():  # a worktree, or a submodule
        git = root / git.read_text().removeprefix("gitdir: ").strip()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    branch = head.removeprefix("ref: ")
    folders = [git]
    if (git / "commondir").exists():  # where a worktree has its branches
        folders.append(git / (git / "commondir").read_text().strip())
    for folder in folders:
        if (folder / branch).exists():
            return (folder / branch).read_text().strip()
    packed = (folders[-1] / "packed-refs").read_text().splitlines()
    return next((line.removesuffix(f" {branch}") for line in packed if line.endswith(f" {branch}")), "")


def _written(root: Path) -> str:
    return (root / COMMIT_FILE).read_text().strip()


def build_of(root: Path) -> str:
    """Return the version of what lies in a folder, with its commit: `0.2.0+g1be32f87d0`."""
    commit = commit_of(root)
    return f"{__version__}+g{commit[:_DIGITS_SHOWN]}" if commit else __version__


BUILD = build_of(Path(__file__).parents[1])
"""The one that runs, as it was when this process began."""
