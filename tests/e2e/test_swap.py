"""An executor is killed, or leaves, in the middle of an answer; the HTTP stream goes on with the same text."""

import os
import signal

import httpx
import pytest

from scheduler_svc.client.processes.local_fleet import SCHEDULER
from tests.e2e.conftest import API_KEY, client_of
from tests.support.eventually import eventually

REQUEST = {"model": "baton-demo", "prompt": "JULIET:\nO Romeo, Romeo! ", "max_tokens": 80}


def stream(fleet, **params):
    for chunk in client_of(fleet).completions.create(**REQUEST, **params, stream=True):
        if chunk.choices:
            yield chunk.choices[0].text


@pytest.mark.slow
def test_sigkill_in_the_middle_of_a_stream(fleet):
    """Of greedy tokens; `test_constraints.py` kills executors in the middle of sampled ones."""
    undisturbed = "".join(stream(fleet, temperature=0))
    pieces = []
    for piece in stream(fleet, temperature=0):
        pieces.append(piece)
        if len(pieces) == 20:
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
        if len(pieces) == 20:
            fleet.terminate_executor(0)
            assert fleet.wait_executor(0, timeout_s=20) == 0
    assert "".join(pieces) == undisturbed


def fleet_size(fleet):
    headers = {"authorization": f"Bearer {API_KEY}"}
    return len(httpx.get(f"{fleet.spec.url}/status", headers=headers).json()["executors"])


def test_the_running_scheduler_has_no_torch(one_fleet, imported):
    """What the processes of the service have really imported, as they say themselves when they end."""
    client_of(one_fleet).completions.create(**REQUEST | {"max_tokens": 2})
    os.kill(one_fleet.pids[SCHEDULER], signal.SIGTERM)
    eventually(one_fleet.poll)
    modules = [set(path.read_text().split()) for path in imported.iterdir()]
    assert any("scheduler_svc.core.scheduling.scheduler" in found for found in modules), "the core ended without a word"
    assert any("scheduler_svc.frontend.http.api" in found for found in modules), "the frontend ended without a word"
    for found in modules:
        assert not found & {"torch", "transformers", "executor_svc"}
