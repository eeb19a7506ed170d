"""Users without a home, such as `docker run --user 54321` and OpenShift make: told which option helps, in one line."""

import os
import subprocess

import pytest

from tests import ROOT
from tests.support.other_user import command_as, needs_root

pytestmark = needs_root
UID = 54321  # no account has it
BEFORE = f"sys.path.insert(0, {str(ROOT)!r})\nfrom scheduler_svc.__main__ import main"
OPTIONS = ["--port", "0", "--executor-endpoint", "tcp://127.0.0.1:0", "--frontends", "0"]
OF_HOME = ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "BATON_KEYS_DIR")  # and what tests set instead
HOMES = pytest.mark.parametrize("home", [{"HOME": "/"}, {}], ids=["HOME=/", "without HOME"])


def start(home, *options, before=BEFORE, code="main(sys.argv[1:])"):
    """What a process of this user says, and its exit code. It has ended by itself."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_HOME} | home
    command = command_as(UID, code, *options, before=before)
    ended = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, [line for line in ended.stderr.splitlines() if not line.startswith("time=")]


@HOMES
def test_the_scheduler_names_what_gives_its_files_a_place(home):
    exit_code, [line] = start(home, *OPTIONS)
    assert exit_code == 2
    assert line.startswith("baton-scheduler: journal and store have no place: ")
    assert ("/.local: Permission denied" if home else "the user has no home") in line
    assert "--journal" in line
    assert "XDG_STATE_HOME" in line
    assert "--no-journal" in line


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--journal", "/journal"], "--journal"),
        (["--journal", "/nowhere/journal"], "--journal"),
        (["--no-journal", "--store", "/store"], "--store"),
    ],
)
def test_a_place_that_was_named_and_is_none_names_its_option(options, told):
    frontend = ["--frontends", "1"]  # without one there is no store
    exit_code, [line] = start({}, *OPTIONS, *frontend, *options)
    assert exit_code == 2
    assert f"name another {'file' if told == '--journal' else 'folder'} by {told}" in line


@HOMES
def test_a_model_in_the_home_is_not_there(home):
    exit_code, [line] = start(home, *OPTIONS, "--model", "~/model")
    assert exit_code == 2
    assert "there is no folder ~/model" in line


@HOMES
def test_cpu_kernels_are_told_where_they_could_be_kept(home):
    before = f"sys.path.insert(0, {str(ROOT)!r})\nfrom kernels.cpu import build, isa"
    code = "try: build.build(isa.ISAS[0], print)\nexcept build.BuildError as error: sys.exit(str(error))"
    exit_code, [line] = start(home, before=before, code=code)
    assert exit_code == 1
    assert "by XDG_CACHE_HOME" in line
