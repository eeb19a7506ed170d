"""A real process on a real socket; the test plays the scheduler."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import pytest
import zmq

from common import messages as m
from common.exit_codes import EXIT_CRASHED, EXIT_TRY_AGAIN
from common.heartbeats import LOSS_TIMEOUT_S
from common.wire import HEADER, Codec
from executor_svc.service.process import RECONNECT_INTERVAL_MS
from executor_svc.service.registration import HELLO_INTERVAL_S
from tests import ROOT
from tests.executor_svc.harness import Pool, Row, make_plan
from tests.executor_svc.puppet import IN_SLOW_STEP, LIMITS, SLOW_STEP_S
from tests.support.checkpoints import DEMO_MODEL_DIR, reference_greedy

Kind = TypeVar("Kind", bound=m.Message)


class Scheduler:
    """A ROUTER socket, and one executor process that connects to it."""

    def __init__(self, *command: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.sndhwm = 0  # a ROUTER silently drops what a slow peer has no room for
        self.endpoint = f"tcp://127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self.codec: Codec[m.ExecutorToScheduler] = Codec(m.ExecutorToScheduler)
        self.identity = b""
        arguments = [part.replace("ENDPOINT", self.endpoint) for part in command]
        self.process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def close(self) -> str:
        """Kill what is left of the process and return its log. Can be called again."""
        if not self.router.closed:
            self.process.kill()
            self.log = self.process.communicate()[1]
            self.router.close()
            self.context.term()
        return self.log

    def wait_for_slow_step(self) -> None:
        """Return when the puppet is in the middle of one."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == IN_SLOW_STEP

    def wait_for_log(self, event: str) -> None:
        """Return when the process has logged `event`. What it logged until then will be missing in `log`."""
        assert self.process.stderr is not None
        assert any(event in line for line in self.process.stderr), "the executor has ended"

    def send(self, message: m.Message) -> None:
        self.send_frames(*self.codec.encode(message))

    def send_frames(self, *frames: bytes) -> None:
        self.router.send_multipart([self.identity, *frames])

    def receive(self, timeout_s: float = 20.0) -> Any:
        assert self.router.poll(timeout_s * 1000), "the executor says nothing"
        self.identity, *frames = self.router.recv_multipart()
        return self.codec.decode(frames)

    def expect(self, kind: type[Kind], timeout_s: float = 20.0, beat: int = 0) -> Kind:
        """The next message that is no heartbeat, which must be of `kind`. Sends heartbeats of epoch `beat`."""
        deadline = time.monotonic() + timeout_s
        while True:
            if beat:
                self.send(m.SchedulerHeartbeat(epoch=beat))
            message = self.receive(max(0.0, deadline - time.monotonic()))
            if not isinstance(message, m.ExecutorHeartbeat) or kind is m.ExecutorHeartbeat:
                assert isinstance(message, kind), message
                return message

    def join(self, epoch: int = 1) -> m.Hello:
        hello = self.expect(m.Hello)
        self.send(m.Welcome(epoch=epoch))
        assert self.expect(m.ExecutorHeartbeat).epoch == epoch
        return hello

    def exit_code(self, timeout_s: float = 10.0) -> int:
        return self.process.wait(timeout_s)


SERVED = 'event="has served" unanswered=0 threads=1'  # no step is under way, and no other thread could begin one


@pytest.fixture
def puppet() -> Iterator[Scheduler]:
    scheduler = Scheduler("-m", "tests.executor_svc.puppet", "ENDPOINT", "0.5")
    yield scheduler
    scheduler.close()


def plan(token: int = 1, *, epoch: int = 1, step: int = 0, context_len: int = 5) -> m.Plan:
    table = Pool(64, 4).grow([], context_len)
    return make_plan([Row(0, [token], context_len, table)], LIMITS.block_size, epoch=epoch, step=step)


def tokens_of(result: m.StepResult) -> list[int]:
    return np.frombuffer(result.token_ids, "<i4").tolist()


def test_plans_are_answered_in_order(puppet: Scheduler) -> None:
    puppet.join(epoch=3)
    for step in range(20):
        puppet.send(plan(epoch=3, step=step, context_len=step + 1))
        if step:  # two are in flight
            result = puppet.expect(m.StepResult)
            assert (result.epoch, result.step, tokens_of(result)) == (3, step - 1, [step])


@pytest.mark.slow
def test_no_hello_piles_up_for_a_scheduler_that_is_not_there() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        router.unbind(f"tcp://127.0.0.1:{port}")
    listener = socket.create_server(("127.0.0.1", port))
    scheduler = Scheduler("-m", "tests.executor_svc.puppet", f"tcp://127.0.0.1:{port}")
    try:
        for _ in range(int(3 * HELLO_INTERVAL_S * 1000 / RECONNECT_INTERVAL_MS)):
            listener.accept()[0].close()  # so far the executor has only tried to connect
        listener.close()
        scheduler.router.bind(f"tcp://127.0.0.1:{port}")
        scheduler.join()
        scheduler.send(plan())
        assert tokens_of(scheduler.expect(m.StepResult)) == [5]
    finally:
        scheduler.close()


def test_nonsense_is_dropped_and_the_log_is_not_flooded(puppet: Scheduler) -> None:
    puppet.join()
    for _ in range(200):
        puppet.send_frames(b"GET / HTTP/1.1", b"")
        puppet.send_frames(HEADER, b"\xc1garbage")
        puppet.send_frames(HEADER)
        puppet.send_frames(b"baton/999", b"\x90")
        puppet.send_frames(*puppet.codec.encode(m.Leaving(epoch=1)))  # ours, but of the other direction
        puppet.send(plan(epoch=2))
        puppet.send(m.EpochOver(epoch=9, reason="not this one"))
        puppet.send(m.Reject(reason="too late"))
    puppet.send(plan(step=7))
    assert puppet.expect(m.StepResult).step == 7
    log = puppet.close()
    assert 1 <= log.count("message dropped") <= 5
    assert "since_last=1\n" in log


def test_malformed_plan_is_answered_and_the_next_epoch_works(puppet: Scheduler) -> None:
    puppet.join()
    good = plan(step=4)
    puppet.send(m.Plan(**{**{f: getattr(good, f) for f in good.__struct_fields__}, "block_ids": b"\xff" * 8}))
    failed = puppet.expect(m.StepFailed)
    assert (failed.epoch, failed.step) == (1, 4)
    assert failed.error == "the plan is malformed: block_ids has -1, allowed are 0 to 63"
    puppet.join(epoch=2)
    puppet.send(plan(epoch=2))
    assert tokens_of(puppet.expect(m.StepResult)) == [5]


@pytest.mark.parametrize("token", [101, 102])
def test_failed_step_ends_the_epoch_and_not_the_process(puppet: Scheduler, token: int) -> None:
    puppet.join()
    puppet.send(plan(token, step=8))
    puppet.send(plan(1, step=9))
    failed = puppet.expect(m.StepFailed)
    assert failed.step == 8
    assert failed.error.startswith("MemoryError: no memory for this step" if token == 101 else "RuntimeError: [enforce")
    puppet.join(epoch=2)  # a Hello, and no result of step 9
    puppet.send(plan(epoch=2, step=0))
    assert puppet.expect(m.StepResult).epoch == 2
    assert "step failed" in puppet.close()


def test_next_step_is_launched_while_a_device_is_busy(puppet: Scheduler) -> None:
    puppet.join()
    puppet.send(plan(105, step=0))
    puppet.send(plan(106, step=1))
    assert [puppet.expect(m.StepResult).step for _ in range(2)] == [0, 1]


def test_step_that_fails_after_its_launch_ends_the_epoch(puppet: Scheduler) -> None:
    puppet.join()
    puppet.send(plan(104, step=8))
    puppet.send(plan(1, step=9))
    failed = puppet.expect(m.StepFailed)
    assert (failed.step, failed.error) == (8, "RuntimeError: a kernel failed after its launch")
    puppet.join(epoch=2)  # a Hello, and no result of step 9
    puppet.send(plan(epoch=2, step=0))
    assert puppet.expect(m.StepResult).epoch == 2


def test_lost_device_ends_the_process(puppet: Scheduler) -> None:
    puppet.join()
    puppet.send(plan(107))
    assert puppet.exit_code() == EXIT_CRASHED
    log = puppet.close()
    assert "cannot go on after it" in log
    assert "has served" not in log


def test_heartbeats_go_out_during_a_slow_step(puppet: Scheduler) -> None:
    puppet.join()
    puppet.send(plan(103))
    start, beats = time.monotonic(), 0
    while isinstance(message := puppet.receive(), m.ExecutorHeartbeat):
        puppet.send(m.SchedulerHeartbeat(epoch=1))
        beats += 1
    assert isinstance(message, m.StepResult)
    assert message.compute_us >= SLOW_STEP_S * 1e6
    assert time.monotonic() - start >= SLOW_STEP_S
    assert beats >= 4


def test_epoch_over_says_hello_again(puppet: Scheduler) -> None:
    puppet.join()
    puppet.send(m.EpochOver(epoch=1, reason="rebalanced"))
    puppet.join(epoch=2)
    puppet.send(plan(epoch=2))
    assert puppet.expect(m.StepResult).epoch == 2
    assert 'event="epoch over" epoch=1 reason=rebalanced' in puppet.close()


def test_silent_scheduler_is_given_up_and_found_again(puppet: Scheduler) -> None:
    puppet.join()
    first_identity, start = puppet.identity, time.monotonic()
    puppet.join(epoch=2)
    assert time.monotonic() - start > LOSS_TIMEOUT_S - 0.5
    assert puppet.identity != first_identity  # a fresh connection
    puppet.send(plan(epoch=2))
    assert puppet.expect(m.StepResult).epoch == 2


def test_restarted_scheduler_is_found_again(puppet: Scheduler) -> None:
    puppet.join()
    puppet.router.close()
    puppet.wait_for_log("epoch over")
    puppet.router = puppet.context.socket(zmq.ROUTER)
    puppet.router.linger = 0
    puppet.router.bind(puppet.endpoint)
    puppet.join(epoch=1)
    puppet.send(plan())
    assert puppet.expect(m.StepResult).epoch == 1


def test_sigterm_finishes_its_plans_and_waits_to_be_released(puppet: Scheduler) -> None:
    puppet.join()
    puppet.send(plan(103, step=0))
    puppet.send(plan(1, step=1))
    puppet.wait_for_slow_step()
    asked = time.monotonic()
    puppet.process.send_signal(signal.SIGTERM)
    assert puppet.expect(m.Leaving).epoch == 1
    assert time.monotonic() - asked < 1.0  # in the middle of the step
    assert [puppet.expect(m.StepResult, beat=1).step for _ in range(2)] == [0, 1]
    assert puppet.process.poll() is None
    puppet.send(m.EpochOver(epoch=1, reason="left"))
    assert puppet.exit_code() == 0
    log = puppet.close()
    assert "event=leaving epoch=1" in log
    assert log.index('event="epoch over"') < log.index(SERVED)


def test_sigterm_without_an_epoch(puppet: Scheduler) -> None:
    puppet.expect(m.Hello)
    puppet.process.send_signal(signal.SIGTERM)
    assert puppet.exit_code() == 0


def test_released_in_the_middle_of_a_step(puppet: Scheduler) -> None:
    puppet.join()
    puppet.send(plan(103))
    puppet.wait_for_slow_step()
    puppet.process.send_signal(signal.SIGINT)
    puppet.expect(m.Leaving)
    puppet.send(m.EpochOver(epoch=1, reason="left"))
    assert puppet.exit_code(SLOW_STEP_S + 2) == 0
    log = puppet.close()
    # After the step, which may write a pool that is kept. One that takes longer than the grace is not waited for.
    assert (SERVED in log) != ("stopped in the middle of a step" in log)


def test_second_signal_exits_at_once(puppet: Scheduler) -> None:
    puppet.join()
    puppet.process.send_signal(signal.SIGTERM)
    puppet.expect(m.Leaving)
    puppet.process.send_signal(signal.SIGINT)
    assert puppet.exit_code(2.0) == 128 + signal.SIGINT
    assert "has served" not in puppet.close()


def test_reject_exits_with_78(puppet: Scheduler) -> None:
    puppet.expect(m.Hello)
    puppet.send(m.Reject(reason="another block size"))
    assert puppet.exit_code() == 78
    log = puppet.close()
    assert 'event=rejected reason="another block size"' in log
    assert SERVED in log


def test_baton_executor_serves_the_demo_model() -> None:
    prompt = list(range(20))
    expected = reference_greedy(DEMO_MODEL_DIR, prompt, 8)
    options = "--scheduler ENDPOINT --threads 1 --num-blocks 32 --name demo --max-num-seqs 4"
    scheduler = Scheduler("-m", "executor_svc", *options.split())
    try:
        hello = scheduler.join()
        assert (hello.executor, hello.dtype, hello.num_blocks, hello.max_model_len) == ("demo", "float32", 32, 512)
        table, tokens = Pool(32, 16).grow([], 30), []
        for step in range(8):
            context_len = len(prompt) + step
            row = Row(2, prompt if step == 0 else [-1], context_len, table)
            scheduler.send(make_plan([row], 16, step=step))
            tokens += tokens_of(scheduler.expect(m.StepResult, beat=1))
        assert tokens == expected
        scheduler.process.send_signal(signal.SIGTERM)
        scheduler.expect(m.Leaving)
        scheduler.send(m.EpochOver(epoch=1, reason="left"))
        assert scheduler.exit_code() == 0
    finally:
        log = scheduler.close()
    for event in ("serving the embedded demo model", "model loaded", "pool", "joined", "leaving", "stopped"):
        assert event in log
    assert log.count("service=executor") == log.count("\n")
    assert re.search(r'event=pool blocks=\d+ .*token_bytes=\d+ room="[\d,]+ sequences? of [\d,]+ tokens"', log)


def test_a_scheduler_of_another_version_ends_it_for_another_start(puppet: Scheduler) -> None:
    puppet.expect(m.Hello)
    puppet.send_frames(b"baton/999", b"whatever it means by that")
    assert puppet.exit_code() == EXIT_TRY_AGAIN
    assert "peer speaks protocol version 999" in puppet.close()


def test_sigterm_ends_the_pause_before_another_start() -> None:
    waiting = Scheduler("-m", "tests.executor_svc.puppet", "ENDPOINT", "600")
    try:
        waiting.expect(m.Hello)
        waiting.send_frames(b"baton/999", b"whatever it means by that")
        waiting.wait_for_log("peer speaks protocol version 999")
        waiting.process.send_signal(signal.SIGTERM)
        assert waiting.exit_code() == 0
    finally:
        waiting.close()
