"""`baton keeper`, and the command line of `baton-keeper`."""

import json
import os
import pwd
import subprocess
import sys

import pytest
from click.testing import CliRunner

from scheduler_svc.client.cli import main
from scheduler_svc.client.keeper.view import size
from tests.keeper_svc.processes import ROOT
from tests.support.eventually import eventually
from tests.support.other_user import UID, needs_root


@pytest.fixture
def baton(keeper):
    def run(*arguments):
        return CliRunner().invoke(main, ["keeper", *arguments], env={"BATON_KEEPER_SOCKET": str(keeper.path)})

    return run


def test_status_shows_an_empty_keeper(baton):
    result = baton("status")
    assert (result.exit_code, result.stdout.splitlines()[2:]) == (0, ["", "no pools", "", "no weights"])


def test_status_and_drop_show_what_is_kept(baton, keeper, puppet):
    holder = puppet(keeper, "holder")
    holder.tell("deposit")
    holder.hear()
    (pool,) = json.loads(baton("status", "--json").stdout)["pools"]
    assert (pool["holder"], pool["lease"], pool["kind"]["dtype"]) == ("holder", 1, "bfloat16")
    lines = baton("status").stdout.splitlines()
    assert lines[1].startswith("4.0 MiB of ")
    assert lines[3].split()[:3] == ["pool", "size", "blocks"]
    assert [pool["pool"], "held", "holder"] == [
        word for word in lines[4].split() if word in (pool["pool"], "held", "holder")
    ]
    assert baton("drop").stdout == "dropped 0 pools and 0 sets of weights, 0 B\n"  # it is held
    holder.kill()
    eventually(lambda: keeper.report().pools[0].holder == "", 10.0, keeper.log)
    assert baton("drop", pool["pool"]).stdout == "dropped 1 pool and 0 sets of weights, 4.0 MiB\n"


def test_no_keeper_is_a_clear_line(folder):
    result = CliRunner().invoke(main, ["keeper", "status", "--socket", str(folder / "keeper.sock")])
    assert result.exit_code == 3
    assert f"no keeper at {folder}/keeper.sock" in result.stderr
    assert "baton-keeper" in result.stderr


def test_sizes_are_for_people():
    assert [size(n) for n in (0, 1023, 1536, 3 * 2**20, 2**45)] == ["0 B", "1023 B", "1.5 KiB", "3.0 MiB", "32.0 TiB"]


def test_options_of_the_keeper_are_checked():
    for wrong in (["--max-memory", "0"], ["--keep-for", "-1"]):
        refused = subprocess.run(
            [sys.executable, "-m", "keeper_svc", *wrong], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2


@needs_root
@pytest.mark.parametrize("command", [["status"], ["drop"]])
def test_the_keeper_of_another_user_is_asked_as_that_user(folder, command):
    os.chown(folder, UID, UID)
    (folder / "keeper.sock").touch()
    os.chown(folder / "keeper.sock", UID, UID)
    result = CliRunner().invoke(main, ["keeper", *command, "--socket", str(folder / "keeper.sock")])
    name = pwd.getpwuid(UID).pw_name
    assert result.exit_code == 3
    assert f"{folder} belongs to user {name}, this process runs as user root" in result.stderr
    assert f"sudo -u {name} baton keeper status --socket {folder}/keeper.sock" in result.stderr


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o1777])
def test_a_keeper_asks_for_another_folder_and_not_for_a_change_of_one_that_others_use(folder, mode):
    folder.chmod(mode)
    command = [sys.executable, "-m", "keeper_svc", "--socket", folder / "keeper.sock"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "name a socket in another folder by --socket" in refused.stderr
    assert "chmod" not in refused.stderr


def test_a_file_at_the_path_of_the_socket_stays(folder):
    (folder / "keeper.sock").write_text("precious")
    command = [sys.executable, "-m", "keeper_svc", "--socket", folder / "keeper.sock"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (refused.returncode, "no socket" in refused.stderr) == (2, True)
    assert (folder / "keeper.sock").read_text() == "precious"
