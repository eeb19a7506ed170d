"""Several real processes write into one store; some are killed in the middle of it."""

import signal
import subprocess
import sys
from contextlib import closing, contextmanager

from scheduler_svc.store import batches, check, files
from scheduler_svc.store.database import connect
from tests.store import rows
from tests.store.busy_process import LINES, one_round
from tests.support.eventually import eventually


@contextmanager
def busy(folder, name, count=0):
    """A process that writes `count` rounds, or until it is killed (0). Its output is the number of each round done."""
    command = [sys.executable, "-m", "tests.store.busy_process", str(folder), name, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def check_round(store, owner, number):
    """All that a round has written is there."""
    one = f"{owner}-{number}"
    assert rows.get_response(store, owner, one, 5.0).status == "completed"
    assert files.get(store, owner, one, 5.0).num_bytes == 5100
    found = batches.get(store, owner, one, 5.0)
    assert (found.status, found.completed, found.failed) == ("completed", LINES - 1, 1)
    lines = files.read(store, owner, f"{one}-out", 5.0, offset=0, limit=1000)
    assert lines == b'{"line": 0}\n{"line": 2}\n{"line": 3}\n'


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    with busy(tmp_path, "ann", 15) as one, busy(tmp_path, "bob", 15) as other:
        assert one.wait(60) == 0
        assert other.wait(60) == 0
    with closing(connect(tmp_path)) as store:
        for number in range(15):
            check_round(store, "ann", number)
            check_round(store, "bob", number)
        assert check.check(store) == []


def test_a_process_that_is_killed_in_the_middle_loses_nothing_that_it_has_been_told(tmp_path):
    """Killed at a moment that its own speed chooses, while another process goes on writing."""
    told = {}
    with busy(tmp_path, "survivor") as survivor:
        survivor.stdout.readline()
        for name, rounds in (("first", 1), ("second", 3), ("third", 6)):
            with busy(tmp_path, name) as victim:
                for _ in range(rounds):
                    told[name] = int(victim.stdout.readline())
                victim.send_signal(signal.SIGKILL)
                told[name] += len(victim.stdout.readlines())
        before = int(survivor.stdout.readline())
        assert eventually(lambda: int(survivor.stdout.readline()) > before + 3)
        survivor.kill()
        told["survivor"] = before + 4
    with closing(connect(tmp_path)) as store:
        assert check.check(store) == []
        for name, last in told.items():
            for number in range(last + 1):
                check_round(store, name, number)
        one_round(store, "next", "next-0")
        check_round(store, "next", 0)
