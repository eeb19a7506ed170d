"""An executor without a scheduler says so once a minute: where it looks, what it tried and what to check."""

import socket
import subprocess
import sys

import pytest
import zmq

from executor_svc.service.handshakes import Handshakes
from executor_svc.service.scheduler_address import try_to_connect
from scheduler_svc.client.processes.local_fleet import free_ports
from tests import ROOT
from tests.support.eventually import eventually


class Log:
    def __init__(self):
        self.lines = []

    def warning(self, event, **facts):
        self.lines.append({"event": event, **facts})


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def handshakes(log):
    """Those of a socket whose scheduler is not there."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    watch = Handshakes(log, has_keys=False)
    monitor = watch.watch(dealer, f"tcp://127.0.0.1:{free_ports(1)[0]}")
    yield watch
    dealer.disable_monitor()
    monitor.close(0)
    dealer.close(0)
    context.term()


def test_a_real_executor_names_where_it_looked_and_what_to_check():
    endpoint = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "tests.executor_svc.puppet", endpoint]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        line = next(line for line in process.stderr if "no answer from the scheduler" in line)
        process.kill()
    assert "level=warning" in line
    assert f"scheduler={endpoint}" in line
    assert 'tried="to connect: Connection refused"' in line
    assert "its --executor-endpoint has this address and port" in line


def test_it_is_said_after_some_seconds_and_then_once_a_minute(handshakes, log):
    for now in range(130):
        handshakes.has_none(float(now))
    eventually(lambda: len(log.lines) == 3)
    assert {line["waited_s"] for line in log.lines} == {5, 65, 125}


def test_nothing_is_said_of_a_scheduler_that_is_back_soon(handshakes, log):
    for now in range(0, 100, 4):
        handshakes.has_none(float(now))
        handshakes.has_scheduler()
    handshakes.has_none(100.0)
    handshakes.has_none(105.0)
    eventually(lambda: log.lines)
    assert [line["waited_s"] for line in log.lines] == [5]


def test_hellos_without_an_answer_are_told_apart_from_no_connection(handshakes, log):
    for now in range(6):
        handshakes.has_none(float(now))
        handshakes.said_hello()
    eventually(lambda: log.lines)
    assert log.lines[0]["tried"] == "to say Hello, 5 times: no answer"
    assert "stuck" in log.lines[0]["check"]


def test_each_way_to_be_out_of_reach_has_its_own_advice(tmp_path):
    tried, check = try_to_connect("tcp://no-such-scheduler.invalid:5555")
    assert tried.startswith("to look the name up: ")
    assert "DNS" in check
    assert try_to_connect(f"ipc://{tmp_path}/none")[0] == "to connect: No such file or directory"
    with socket.create_server(("127.0.0.1", 0)) as port:
        tried, check = try_to_connect(f"tcp://127.0.0.1:{port.getsockname()[1]}")
    assert tried == "to connect: a program answers, but not as a scheduler"
    assert "--executor-endpoint" in check
