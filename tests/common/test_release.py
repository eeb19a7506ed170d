"""The commit in the version: read from a checkout without git, written down by builds, told, and deciding nothing."""

import ast
import importlib
import os
import shutil
import subprocess
import sys
from importlib import metadata

import pytest
from click.testing import CliRunner

from common import __version__
from common.release import BUILD, COMMIT_FILE, build_of, commit_of
from tests import ROOT

COMMIT = "0123456789abcdef" * 2 + "01234567"
COMMANDS = {
    "scheduler_svc.client.cli": "baton",
    "scheduler_svc.__main__": "baton-scheduler",
    "scheduler_svc.frontend.__main__": "baton-frontend",
    "scheduler_svc.frontend.background.__main__": "baton-worker",
    "executor_svc.__main__": "baton-executor",
    "keeper_svc.__main__": "baton-keeper",
}


def git(folder, *arguments):
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "first")
    return folder


def as_it_is(folder):
    return folder


def on_a_branch_with_a_slash(folder):
    git(folder, "switch", "--quiet", "--create", "a/b")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "second")
    return folder


def packed(folder):
    git(folder, "branch", "another-main")
    git(folder, "pack-refs", "--all")
    return folder


def detached(folder):
    git(folder, "switch", "--quiet", "--detach")
    return folder


def worktree(folder):
    other = folder.with_name("worktree")
    git(folder, "worktree", "add", "--quiet", "-b", "other", str(other))
    git(other, "commit", "--quiet", "--allow-empty", "--message", "second")
    return other


def packed_worktree(folder):
    return packed(worktree(folder))


@pytest.mark.parametrize("shape", [as_it_is, on_a_branch_with_a_slash, packed, detached, worktree, packed_worktree])
def test_a_checkout_says_its_commit(checkout, shape):
    folder = shape(checkout)
    commit = git(folder, "rev-parse", "HEAD")
    assert commit_of(folder) == commit
    assert build_of(folder) == f"{__version__}+g{commit[:10]}"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {".git/HEAD": b""},
        {".git/HEAD": b"\xff\xfe"},
        {".git/HEAD": b"ref: refs/heads/unborn\n"},
        {".git/HEAD": b"ref: refs/heads/x\n", ".git/refs/heads/x": b"ref: refs/heads/y\n"},
        {".git/HEAD": b"ref: refs/heads/x\n", ".git/packed-refs": b"# pack-refs\n"},
        {".git/HEAD": b"ref: refs/heads/x\n", ".git/commondir": b"nowhere\n"},
        {".git/HEAD/a": b"a folder"},
        {".git": b"gitdir: /nowhere\n"},
        {".git": b"\0"},
    ],
    ids=repr,
)
def test_whatever_git_has_there_the_written_one_is_next(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert build_of(tmp_path) == __version__
    (tmp_path / "common").mkdir()
    (tmp_path / COMMIT_FILE).write_text(f"{COMMIT}\n")
    assert build_of(tmp_path) == f"{__version__}+g{COMMIT[:10]}"
    (tmp_path / COMMIT_FILE).write_text("v1\n")
    assert build_of(tmp_path) == __version__


@pytest.fixture
def source(tmp_path):
    """What `setup.py` is run in: a small part of the tree, without .git."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "common").mkdir()
    for name in ("__init__.py", "release.py"):
        shutil.copy(ROOT / "common" / name, tmp_path / "common")
    return tmp_path


def build(source, commit=""):
    """Run the build's step; return what it writes down."""
    # Looked up and not imported: setuptools puts its own distutils in the place of the one that others have imported.
    if not any(int(found.version.partition(".")[0]) >= 77 for found in metadata.distributions(name="setuptools")):
        pytest.skip("needs what builds Baton: pip install 'setuptools>=77'")
    environment = os.environ | {"BATON_COMMIT": commit, "PATH": ""}  # no git either
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", "built"]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.splitlines()[-1]
    file = source / "built" / COMMIT_FILE
    return file.read_text().strip() if file.exists() else ""


def test_a_build_writes_down_the_commit_that_it_was_told(source):
    assert build(source) == ""
    assert build(source, COMMIT[:12]) == COMMIT[:12]
    assert build_of(source / "built") == f"{__version__}+g{COMMIT[:10]}"
    assert build(source) == ""  # and leaves none that an earlier build has written
    assert build(source, "main") == "BATON_COMMIT is 'main', which is no commit: 7 to 64 hexadecimal digits"


def test_a_build_in_a_checkout_writes_down_what_is_checked_out(source):
    git(source, "init", "--quiet")
    git(source, "commit", "--quiet", "--allow-empty", "--message", "first")
    assert build(source) == git(source, "rev-parse", "HEAD")


@pytest.mark.parametrize("module", COMMANDS)
def test_every_command_says_it(module):
    done = CliRunner().invoke(importlib.import_module(module).main, ["--version"])
    assert (done.exit_code, done.output) == (0, f"{COMMANDS[module]}, version {BUILD}\n")


def test_nothing_is_decided_by_it():
    """It is in what commands, status, metrics and Hello tell: in no key of a cache or ledger, and in no comparison."""
    told_by = {
        *("executor_svc/__main__.py", "executor_svc/startup.py", "keeper_svc/__main__.py", "scheduler_svc/__main__.py"),
        *("scheduler_svc/client/cli.py", "scheduler_svc/core/observability/status_report.py"),
        *("scheduler_svc/frontend/__main__.py", "scheduler_svc/frontend/background/__main__.py"),
    }
    uses = {}
    for folder in ("common", "executor_svc", "keeper_svc", "kernels", "scheduler_svc", "benchmarks", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            nodes = ast.walk(ast.parse(text)) if "BUILD" in text else ()
            if count := sum(isinstance(node, ast.Name) and node.id == "BUILD" for node in nodes):
                uses[str(path.relative_to(ROOT))] = count
    del uses["common/release.py"]
    assert uses == dict.fromkeys(told_by, 1)
