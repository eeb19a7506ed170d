"""An executor with keys: it gets in, or says why not and keeps trying."""

import re
import select
import subprocess
import sys
import time

import pytest
import zmq

from common import messages as m
from common.curve import certificate
from common.logging import DropLog, get_logger
from executor_svc.service.handshakes import Handshakes
from scheduler_svc.server.router import Router
from tests import ROOT
from tests.support.eventually import eventually
from tests.support.keyed import client_curve, key_ring, server_curve, stranger_curve


class Meeting:
    """A scheduler's socket, and an executor process."""

    def __init__(self, curve, *folder):
        self.drops = DropLog(get_logger("test"), "executors")
        self.router = Router("tcp://127.0.0.1:0", m.ExecutorToScheduler, self.drops, curve=curve)
        command = [sys.executable, "-m", "tests.executor_svc.puppet", self.router.endpoint, *map(str, folder)]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def hello(self, timeout_s):
        """The executor's Hello; None if none comes."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            select.select([self.router], [], [], 0.05)
            for peer, message in self.router.receive():
                if isinstance(message, m.Hello):
                    self.router.send(peer, m.Welcome(epoch=3))
                    return message
        return None

    def wait_for_line(self, text, timeout_s=15):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            readable, _, _ = select.select([self.router, self.process.stderr], [], [], 0.05)
            list(self.router.receive())  # handshakes, too, are this thread's work
            if self.process.stderr in readable and text in (line := self.process.stderr.readline()):
                return line
        raise AssertionError(f"never said {text}")

    def end(self):
        self.process.kill()
        log = self.process.communicate()[1]
        self.router.close()
        return log


@pytest.fixture
def ring(tmp_path):
    return key_ring(tmp_path / "keys", "gpu-1")


def test_it_joins_with_its_keys(ring):
    meeting = Meeting(server_curve(ring), ring.executor_folder("gpu-1"))
    assert meeting.hello(15).executor == "puppet"
    meeting.wait_for_line("event=joined epoch=3")
    assert "no way in" not in meeting.end()


@pytest.mark.slow
def test_a_key_that_is_let_in_later_needs_no_restart(ring):
    allowed = ring.scheduler / "executor-gpu-1.key"
    content = allowed.read_bytes()
    allowed.unlink()
    meeting = Meeting(server_curve(ring), ring.executor_folder("gpu-1"))
    line = meeting.wait_for_line("no way in to the scheduler")
    assert 'reason="this executor\'s key is not on its list"' in line
    assert meeting.hello(0.2) is None
    allowed.write_bytes(content)
    assert meeting.hello(15) is not None
    meeting.wait_for_line("event=joined epoch=3")
    assert "no way in" not in meeting.end(), "it says so once"


@pytest.mark.parametrize("side", ["executor", "scheduler"])
def test_keys_on_one_side_only_are_told(ring, side):
    on_executor = side == "executor"
    meeting = Meeting(None, ring.executor_folder("gpu-1")) if on_executor else Meeting(server_curve(ring))
    try:
        # Both sides see the mismatch and hang up; it is by chance which one does so first.
        reason = r"it has no keys|has another key .*, or none" if on_executor else r"it asks for keys \(--curve-keys\)"
        assert re.search(reason, meeting.wait_for_line("no way in"))
        assert meeting.hello(0.2) is None
    finally:
        meeting.end()


def test_another_scheduler_than_it_was_told_gets_nothing(ring, tmp_path):
    other = key_ring(tmp_path / "other", "gpu-1")
    (other.scheduler / "executor-gpu-1.key").write_text(certificate(client_curve(ring, "gpu-1").keys.public))
    meeting = Meeting(server_curve(other), ring.executor_folder("gpu-1"))
    try:
        assert "has another key than server.key says" in meeting.wait_for_line("no way in")
        assert meeting.hello(0.2) is None
    finally:
        meeting.end()


def test_the_same_reason_is_told_once_a_minute_and_the_socket_replaced_after_a_while(ring):
    lines = []

    class Log:
        def warning(self, event, **facts):
            lines.append(facts["reason"])

    context = zmq.Context()
    router = Router("tcp://127.0.0.1:0", m.ExecutorToScheduler, DropLog(get_logger("t"), "x"), curve=server_curve(ring))
    watch = Handshakes(Log(), has_keys=True)
    for now in (0.0, 2.0, 4.0, 61.0):
        dealer = context.socket(zmq.DEALER)
        stranger_curve(ring).protect(dealer)
        monitor = watch.watch(dealer, router.endpoint)
        assert not watch.retry_is_due(now + 99)
        dealer.connect(router.endpoint)
        eventually(lambda monitor=monitor: list(router.receive()) or monitor.poll(1))
        watch.take(monitor, now)
        assert not watch.retry_is_due(now + 1.9)
        assert watch.retry_is_due(now + 2.0)
        dealer.disable_monitor()
        monitor.close(0)
        dealer.close(0)
    assert lines == ["this executor's key is not on its list"] * 2
    router.close()
    context.term()
