"""Names of executors that were given none: unique on a host, and the same after a restart, whatever ended it."""

import signal
import socket
import subprocess
import sys

import pytest

from executor_svc.name_claim import NameClaim

CLAIM = """
import sys
from executor_svc.name_claim import NameClaim
claim = NameClaim()
print(claim.name, flush=True)
sys.stdin.read()
"""


def start():
    process = subprocess.Popen([sys.executable, "-c", CLAIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the name has the process id in it")
def test_a_successor_has_the_name_of_the_one_that_died():
    (one, first), (two, second) = start(), start()
    try:
        assert first != second
        host = socket.gethostname()
        assert first.startswith(f"{host}-")
        one.send_signal(signal.SIGKILL)
        one.wait()
        successor, name = start()
        assert name == first
        successor.kill()
    finally:
        for process in (one, two):
            process.kill()
            process.wait()


def test_the_longest_host_name_leaves_room(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 255)
    claim = NameClaim()
    assert len(claim.name) <= 128
    claim.release()
