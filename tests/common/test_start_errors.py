"""Whatever keeps a service from starting is one line, and of JSON where the log is."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests import ROOT

REFUSED = {  # an error of the start, or of an option, of each service
    "scheduler": (["scheduler_svc", "--no-journal", "--api-keys", "/none/keys.json"], "/none/keys.json"),
    "scheduler's option": (["scheduler_svc", "--port", "http"], "Invalid value for '--port': 'http'"),
    "executor": (
        ["executor_svc", "--model", "/none", "--no-keep"],
        "there is no folder /none" if find_spec("torch") else "an executor needs torch",
    ),
    "executor's option": (["executor_svc", "--block-size", "x"], "Invalid value for '--block-size'"),
    "keeper": (["keeper_svc", "--socket", "/dev/null/keeper.sock"], "/dev/null"),
    "frontend": (
        ["scheduler_svc.frontend", "--core-endpoint", "ipc://x", "--model", "/none"],
        "there is no folder /none",
    ),
    "worker": (["scheduler_svc.frontend.background", "--core-endpoint", "ipc://x", "--fd", "0"], "needs a --store"),
}


def refused(arguments, **variables):
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | variables)
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", REFUSED)
def test_a_start_that_fails_says_so_in_the_logs_format(name):
    arguments, said = REFUSED[name]
    lines = [json.loads(line) for line in refused([*arguments, "--log-format", "json"]).splitlines()]
    assert lines[-1]["event"] == "cannot start"
    assert lines[-1]["service"] == name.partition("'")[0]
    assert lines[-1]["level"] == "error"
    assert lines[-1]["exit_code"] == 2
    assert said in lines[-1]["error"]


@pytest.mark.parametrize("name", ["keeper", "scheduler's option"])
def test_without_json_it_is_a_text_for_people(name):
    arguments, said = REFUSED[name]
    last = refused(arguments).splitlines()[-1]
    assert last.startswith(("baton-keeper: ", "Error: "))
    assert said in last


def test_the_variable_counts_and_an_option_counts_more():
    arguments, _ = REFUSED["keeper"]
    assert json.loads(refused(arguments, BATON_LOG_FORMAT="json"))
    assert refused([*arguments, "--log-format=logfmt"], BATON_LOG_FORMAT="json").startswith("baton-keeper: ")
    assert json.loads(refused([*arguments, "--log-format=json"]))
