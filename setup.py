"""What pyproject.toml cannot say: a build writes down the commit that it is made from, for common/release.py.

The commit is `BATON_COMMIT` where that is set, as for images, which are built without .git; else the one that
is checked out, if any.
"""

import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from common.release import COMMIT, COMMIT_FILE, commit_of  # noqa: E402


def write_commit(folder: Path) -> None:
    """Write the file below this folder, or remove one of an earlier build."""
    commit = os.environ.get("BATON_COMMIT") or commit_of(ROOT)
    if commit and not COMMIT.fullmatch(commit):
        sys.exit(f"BATON_COMMIT is {commit!r}, which is no commit: 7 to 64 hexadecimal digits")
    path = folder / COMMIT_FILE
    path.unlink(missing_ok=True)  # it may be a hard link to the file that is read
    if commit:
        path.write_text(f"{commit}\n")


class BuildWithCommit(build_py):
    """Builds packages for a wheel. An editable one is a checkout, which needs no such file."""

    def run(self) -> None:
        """Build, and write the file."""
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib))


class SourceWithCommit(sdist):
    """Packs a source archive."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, and write the one."""
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SourceWithCommit})
