"""A core that fails again and again with the same requests: they are not taken up for ever."""

import os
import signal
import subprocess
import sys

import pytest

from common import messages as m
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.requests.journal_records import LifeRecord, encode
from scheduler_svc.core.requests.journal_replay import read_batches
from scheduler_svc.core.requests.recovery import MAX_CRASHES, SURVIVED_AFTER_S
from scheduler_svc.server.journal import Journal
from tests.support.core import FakeExecutor, FakeFrontend, Peer, running_core
from tests.support.hello import hello
from tests.support.service import Service

CRASHING = """
import sys
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.__main__ import main

def fail(self, epoch):
    raise ZeroDivisionError("a fault of ours")

Scheduler.plan = fail
main()
"""


def crash(journal, front, back):
    """A process of a scheduler that fails when it first plans."""
    options = ["--frontends", "0", "--journal", str(journal), "--frontend-endpoint", front, "--executor-endpoint", back]
    return subprocess.Popen([sys.executable, "-c", CRASHING, *options], stderr=subprocess.PIPE)


def submit_for_good(frontend, request_id):
    """Submit a request and wait until it is in the journal: what attaches to it is answered then."""
    frontend.submit(request_id, [1, 2, 3], is_resumable=True, max_tokens=5)
    frontend.send(m.Attach(request_id=request_id))
    assert frontend.receive(m.Attached).found


def test_requests_that_the_core_fails_of_are_given_up(tmp_path):
    path, front, back = tmp_path / "journal", f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    for life in range(MAX_CRASHES):
        process = crash(path, front, back)
        frontend = FakeFrontend(front)
        if life == 0:
            submit_for_good(frontend, "a")
        peer = Peer(back, m.SchedulerToExecutor)
        peer.send(hello())
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 70, errors
        assert b"ZeroDivisionError: a fault of ours" in errors
        peer.close()
        frontend.close()
    journal = Journal(path)
    assert read_batches([payload for _, payload in journal.load().batches]).life.crashes == MAX_CRASHES
    with running_core(tmp_path, journal=journal) as core:
        FakeExecutor(core.back)
        frontend = core.frontend()
        frontend.send(m.Attach(request_id="a"))
        assert frontend.receive(m.Attached).found
        frontend.gather(("a", 0))
        assert frontend.ends["a", 0].code == "internal_error"
        assert "failed 3 times in a row" in frontend.ends["a", 0].error
        frontend.submit("b", [1, 2, 3], max_tokens=5)
        frontend.gather(("b", 0))
        assert frontend.ends["b", 0].finish_reason == "length"


def test_a_kill_is_no_failure_of_the_core(tmp_path):
    path, front, back = tmp_path / "journal", f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    process = crash(path, front, back)
    frontend = FakeFrontend(front)
    submit_for_good(frontend, "a")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    frontend.close()
    journal = Journal(path)
    assert read_batches([payload for _, payload in journal.load().batches]).life.crashes == 0
    journal.close()


@pytest.mark.parametrize("seconds", [SURVIVED_AFTER_S - 1.0, SURVIVED_AFTER_S + 1.0])
def test_a_life_of_a_minute_wipes_the_slate_clean(seconds):
    service = Service(JournalState.OK)
    service.do(service.core.restore([], service.now, LifeRecord(2)))
    service.wait(seconds)
    assert service.core.crashed().payload == encode([LifeRecord(3 if seconds < SURVIVED_AFTER_S else 1)])
