"""Running `baton` against a fake service."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from scheduler_svc.client.cli import main
from tests.client.clocks import HurriedClock
from tests.client.fake_server import FakeServer


@pytest.fixture
def server():
    fake = FakeServer()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def clock():
    """By which commands wait that run in this process."""
    return HurriedClock()


@pytest.fixture
def baton(server, clock):
    """Run the command in this process, against the fake server: `baton("generate", "hi", input=...)`."""

    def run(*arguments, **options):
        environment = {"BATON_URL": server.url, "BATON_API_KEY": None}
        words = [str(argument) for argument in arguments]
        return CliRunner().invoke(main, words, env=environment, obj=clock, **options)

    return run


@pytest.fixture
def started():
    """A list for processes that a test starts; what is left of them is killed at its end."""
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def start_baton(server, started):
    """Start the command as a process, against the fake server."""

    def start(*arguments, **options):
        defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "scheduler_svc.client.cli", *map(str, arguments)]
        environment = {**os.environ, "BATON_URL": server.url, **options.pop("env", {})}
        process = subprocess.Popen(command, env=environment, **(defaults | options))
        started.append(process)
        return process

    return start
