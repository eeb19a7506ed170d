"""What travels to a borrowed GPU machine: the tree, wheels, and compiled kernels; how large and how fresh it is."""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

INSTALL_S = 10.0  # predicted, of a pack's 270 s
MOST_BYTES = 50 * 2**20
"""The limit of all that travels; a call takes 64 MiB."""
CACHE_ARCHIVE, CACHE_STAMP = "triton-cache.tar.gz", "triton-cache.of"


def kernel_sources() -> str:
    """Hash the text of the GPU's kernels. Each line counts: Triton's key of a compiled kernel has its line numbers."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "kernels" / "gpu").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def report(folder: Path) -> Iterator[str]:
    """Say how much travels, and what has to be made anew before it does."""
    if not (folder / "wheels").is_dir():
        yield f"{folder} is not there: tools/gpu_session.sh pack"
        return
    stamp = folder / CACHE_STAMP
    if not (folder / CACHE_ARCHIVE).exists() or not stamp.exists():
        yield "No compiled kernels travel, and the machine compiles all: tools/gpu_session.sh cache, then pack"
    elif stamp.read_text().strip() != kernel_sources():
        yield "The carried kernels are stale, since kernels/gpu has changed: tools/gpu_session.sh cache, then pack"
    else:
        yield "The carried kernels are those of the tree"
    tree, along = tree_bytes(), folder_bytes(folder)
    much = "" if tree + along <= MOST_BYTES else ": TOO MUCH"
    sizes = f"the tree {tree / 2**20:.1f}, {folder} {along / 2**20:.1f}"
    yield f"{(tree + along) / 2**20:.1f} MiB of {MOST_BYTES / 2**20:.0f} travel ({sizes}){much}"


def tree_bytes() -> int:
    """Bytes of all files that git tracks or would track."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(command, check=True, cwd=ROOT, capture_output=True).stdout.decode().split("\0")
    paths = (ROOT / name for name in names if name)
    return sum(path.stat().st_size for path in paths if path.is_file() and not path.is_symlink())


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
