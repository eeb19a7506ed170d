"""Users without a home, such as `docker run --user 54321` and OpenShift make: told which option helps, in one line."""

import multiprocessing
import os

import pytest

from tests.support.forked_commands import Call, ForkedCommands
from tests.support.other_user import needs_root

pytestmark = needs_root
UID = 54321  # no account has it
OPTIONS = ["--port", "0", "--executor-endpoint", "tcp://127.0.0.1:0", "--frontends", "0"]
# Of a home, and what tests set instead.
NO_HOME = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "BATON_KEYS_DIR"))
HOMES = pytest.mark.parametrize("home", [{"HOME": "/"}, {}], ids=["HOME=/", "without HOME"])


@pytest.fixture(scope="module")
def commands():
    running = ForkedCommands()
    yield running
    running.close()


@pytest.fixture
def start(commands):
    """What a scheduler of this user says, and its exit code. It has ended by itself."""

    def started(home, *options):
        done = commands.run(Call(("baton-scheduler", *options), NO_HOME | home, uid=UID))
        return done.exit_code, [line for line in done.stderr.splitlines() if not line.startswith("time=")]

    return started


@HOMES
def test_the_scheduler_names_what_gives_its_files_a_place(start, home):
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
def test_a_place_that_was_named_and_is_none_names_its_option(start, options, told):
    frontend = ["--frontends", "1"]  # without one there is no store
    exit_code, [line] = start({}, *OPTIONS, *frontend, *options)
    assert exit_code == 2
    assert f"name another {'file' if told == '--journal' else 'folder'} by {told}" in line


@HOMES
def test_a_model_in_the_home_is_not_there(start, home):
    exit_code, [line] = start(home, *OPTIONS, "--model", "~/model")
    assert exit_code == 2
    assert "there is no folder ~/model" in line


@HOMES
def test_cpu_kernels_are_told_where_they_could_be_kept(home):
    from kernels.cpu import build, isa

    def told(said):
        for name in NO_HOME:
            os.environ.pop(name, None)
        os.environ.update(home)
        os.setgid(UID)
        os.setuid(UID)
        try:
            build.build(isa.ISAS[0], print)
        except build.BuildError as error:
            said.put(str(error))

    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()
    process = context.Process(target=told, args=(said,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert not said.empty()
    assert "by XDG_CACHE_HOME" in said.get()
