"""The real scheduler with keys, and strangers at its executors' port: they get nothing and cost nothing.

Nothing here may depend on who the strangers are: whether they have no key, a wrong one, or no idea of the protocol.
"""

import os
import random
import re
import resource
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from common import messages as m
from common.wire import HEADER
from scheduler_svc.server.strangers import MAX_STRANGERS
from tests.server.scheduler_process import SchedulerProcess
from tests.support.core import FakeExecutor, FakeFrontend, Peer
from tests.support.hello import LIMITS, hello
from tests.support.keyed import client_curve, key_ring, stranger_curve
from tests.support.oracle import expected_output

SOFT_FILE_LIMIT = 128  # fewer than the connections of strangers
NUM_SILENT = 300  # more than may stay
PROMPT = [1, 2, 3, 4]


class Scheduler(SchedulerProcess):
    """Without HTTP, and with few files."""

    def __init__(self, folder, ring):
        self.front = f"ipc://{folder}/core"
        options = ("--frontends", 0, "--no-journal", "--executor-endpoint", "tcp://0.0.0.0:0")
        options += ("--frontend-endpoint", self.front, "--curve-keys", ring.scheduler)
        few_files = ("sh", "-c", f'ulimit -S -n {SOFT_FILE_LIMIT}; exec "$@"', "sh")
        super().__init__(folder, *options, prefix=few_files)
        self.start(lambda: "core started" in self.log)
        self.port = int(re.search(r"executors=tcp://0\.0\.0\.0:(\d+)", self.log)[1])
        self.back = f"tcp://127.0.0.1:{self.port}"

    @property
    def num_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def resident_mb(self):
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20


@pytest.fixture
def ring(tmp_path):
    return key_ring(tmp_path / "keys", "one", "two")


@pytest.fixture
def scheduler(tmp_path, ring):
    scheduler = Scheduler(tmp_path, ring)
    yield scheduler
    scheduler.stop()


class Crowd:
    """Strangers of all kinds in a thread, who go on until they are told to stop."""

    def __init__(self, scheduler, ring):
        self.rounds = 0
        self._scheduler, self._ring = scheduler, ring
        self._stop = threading.Event()
        self._silent = [self._connect() for _ in range(NUM_SILENT)]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _connect(self):
        return socket.create_connection(("127.0.0.1", self._scheduler.port))

    def _run(self):
        rng = random.Random(0)
        while not self._stop.is_set():
            peers = [
                Peer(self._scheduler.back, m.SchedulerToExecutor, curve)
                for curve in (None, stranger_curve(self._ring))
                for _ in range(5)
            ]
            for peer in peers:
                for message in (hello("stranger"), m.StepResult(epoch=1, step=0, token_ids=b"", compute_us=0)):
                    with suppress(zmq.Again):
                        peer.socket.send_multipart([HEADER, peer.codec.encode(message)[1]], zmq.NOBLOCK)
            for start in (
                b"GET / HTTP/1.0\r\n\r\n",
                b"\xff\0\0\0\0\0\0\0\x01\x7f",
                b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL",
            ):
                for _ in range(5):
                    with self._connect() as connection, suppress(OSError):
                        connection.sendall(start + rng.randbytes(rng.randrange(20_000)))
            for peer in peers:
                peer.close()
            self.rounds += 1

    def stop(self):
        self._stop.set()
        self._thread.join()
        for connection in self._silent:
            connection.close()


@pytest.mark.slow
def test_strangers_get_nothing_and_cost_nothing(scheduler, ring):
    executor = FakeExecutor(scheduler.back, "early", step_s=0.005, curve=client_curve(ring, "one"))
    front = FakeFrontend(scheduler.front)
    scheduler.wait_for(lambda: front.status().executors)
    front.submit("warm up", PROMPT, max_tokens=10)
    front.gather(("warm up", 0))
    files, resident_mb, lines = scheduler.num_files, scheduler.resident_mb, scheduler.log.count("\n")
    soft, hard = re.search(r"Max open files\s+(\d+)\s+(\d+)", limits_of(scheduler)).groups()
    assert soft == hard, "strangers could use up the files"

    crowd = Crowd(scheduler, ring)
    start = time.monotonic()
    try:
        scheduler.wait_for(lambda: scheduler.num_files >= files + MAX_STRANGERS // 2)
        number = 0
        while crowd.rounds < 20:
            number += 1
            front.submit(f"r{number}", PROMPT, max_tokens=50)
            front.gather((f"r{number}", 0))
            assert scheduler.num_files <= files + MAX_STRANGERS + 1
            assert front.tokens[f"r{number}", 0] == expected_output(
                PROMPT, m.SamplingParams(max_tokens=50), LIMITS.vocab_size
            )
        late = FakeExecutor(scheduler.back, "late", curve=client_curve(ring, "two"))
        scheduler.wait_for(lambda: len(front.status().executors) == 2)
    finally:
        crowd.stop()
    seconds = time.monotonic() - start
    status = front.status()
    assert sorted(known.executor for known in status.executors) == ["early", "late"]
    assert status.executors_lost == 0
    assert status.messages_dropped == 0, "nothing that a stranger sends becomes a message"
    scheduler.wait_for(lambda: scheduler.num_files <= files + 5)
    assert scheduler.resident_mb - resident_mb < 30
    assert scheduler.log.count("\n") - lines < 10 + 2 * seconds
    unknown = Peer(scheduler.back, m.SchedulerToExecutor, stranger_curve(ring))
    scheduler.wait_for(lambda: 'event="executor refused: its key is not on the list"' in scheduler.log)
    unknown.close()
    for legit in (executor, late):
        assert legit.error is None
        legit.kill()


def limits_of(scheduler):
    return Path(f"/proc/{scheduler.process.pid}/limits").read_text()


def test_a_revoked_executor_loses_its_place_and_its_sequences_go_on(scheduler, ring):
    front = FakeFrontend(scheduler.front)
    revoked = FakeExecutor(scheduler.back, "revoked", step_s=0.02, curve=client_curve(ring, "one"))
    scheduler.wait_for(lambda: front.status().executors)
    front.submit("a", PROMPT, max_tokens=190)
    front.take(front.receive(m.Outputs))
    ring.revoke("one")
    scheduler.wait_for(lambda: not front.status().executors)
    assert 'event="connection closed: its key has been revoked"' in scheduler.log
    second = FakeExecutor(scheduler.back, "second", curve=client_curve(ring, "two"))
    front.gather(("a", 0))
    assert front.tokens["a", 0] == expected_output(PROMPT, m.SamplingParams(max_tokens=190), LIMITS.vocab_size)
    assert [known.executor for known in front.status().executors] == ["second"]
    revoked.kill()
    second.kill()
