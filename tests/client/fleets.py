"""Fleets of fake services, and waiting for things to happen to them."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from scheduler_svc.client.commands.up import FleetRunner
from scheduler_svc.client.processes.local_fleet import FleetSpec, free_ports

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch: pip install '.[executor]'"
)
# Without the script's folder on the path, where the tests of `client/http` would stand for Python's own `http`.
FAKE = (sys.executable, "-P", str(Path(__file__).with_name("fake_services.py")))


class NotedFleets(FleetRunner):
    """Notes what it would run: FleetSpec, folder of logs, Welcome; and the keys in its environment. Starts nothing."""

    def __init__(self) -> None:
        self.started: list[tuple] = []
        self.keys: str | None = None

    def run(self, *what) -> None:
        self.started.append(what)
        self.keys = os.environ.get("BATON_API_KEYS")


def fake_spec(**changes) -> FleetSpec:
    """A spec of fake services on free ports."""
    port, executor_port = free_ports(2)
    fields = {
        "port": port,
        "executor_port": executor_port,
        "scheduler_command": (*FAKE, "scheduler"),
        "executor_command": (*FAKE, "executor"),
    }
    return FleetSpec(**(fields | changes))
