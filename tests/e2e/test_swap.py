"""An executor is killed, or leaves, in the middle of an answer; the HTTP stream goes on with the same text."""

import os
import subprocess
import sys

import httpx
import pytest

from tests import ROOT
from tests.e2e.conftest import client_of, running_fleet
from tests.support.eventually import eventually

REQUEST = {"model": "baton-demo", "prompt": "JULIET:\nO Romeo, Romeo! ", "max_tokens": 120}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with running_fleet(tmp_path_factory.mktemp("logs")) as running:
        yield running


def stream(fleet, **params):
    for chunk in client_of(fleet).completions.create(**REQUEST, **params, stream=True):
        if chunk.choices:
            yield chunk.choices[0].text


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.8, "seed": 42, "extra_body": {"top_k": 40, "min_p": 0.02}},
        pytest.param({"temperature": 0}, marks=pytest.mark.slow),
    ],
)
def test_sigkill_in_the_middle_of_a_stream(fleet, params):
    undisturbed = "".join(stream(fleet, **params))
    pieces = []
    for piece in stream(fleet, **params):
        pieces.append(piece)
        if len(pieces) == 25:
            fleet.kill_executor(0)
            fleet.start_executor(0)
    assert "".join(pieces) == undisturbed


def test_two_executors_and_a_rolling_swap(fleet):
    """SIGTERM hands the sequence over at the next step; the one that left exits with 0."""
    undisturbed = "".join(stream(fleet, temperature=0))
    fleet.start_executor(1)
    eventually(lambda: fleet_size(fleet) >= 2)
    pieces = []
    for piece in stream(fleet, temperature=0):
        pieces.append(piece)
        if len(pieces) == 25:
            fleet.terminate_executor(0)
            assert fleet.wait_executor(0, timeout_s=20) == 0
    assert "".join(pieces) == undisturbed


def fleet_size(fleet):
    return len(httpx.get(f"{fleet.spec.url}/status").json()["executors"])


def test_the_running_scheduler_has_no_torch(tmp_path):
    """What the processes of the service have really imported, as they say themselves when they end."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, pathlib, sys\n"
        "atexit.register(lambda: pathlib.Path(os.environ['DUMP'], str(os.getpid())).write_text("
        "' '.join([*sys.argv, *sys.modules])))\n"
    )
    dump = tmp_path / "dump"
    dump.mkdir()
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "DUMP": str(dump)}
    command = [sys.executable, "-m", "scheduler_svc", "--port", "0", "--executor-endpoint", "tcp://127.0.0.1:0"]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "core found" in line:  # by the frontend, so both processes run
            break
    process.terminate()
    process.communicate(timeout=20)
    modules = [set(path.read_text().split()) for path in dump.iterdir()]
    assert any("scheduler_svc.core.scheduling.scheduler" in found for found in modules), "the core ended without a word"
    assert any("scheduler_svc.frontend.http.api" in found for found in modules), "the frontend ended without a word"
    for found in modules:
        assert not found & {"torch", "transformers", "executor_svc"}
