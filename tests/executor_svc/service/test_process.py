"""A real process on a real socket; the test plays the scheduler."""

import re
import signal
import socket
import time
from collections.abc import Iterator

import pytest
import zmq

from common import messages as m
from common.exit_codes import EXIT_CRASHED, EXIT_REJECTED
from common.heartbeats import LOSS_TIMEOUT_S
from common.wire import HEADER
from executor_svc.service.process import RECONNECT_INTERVAL_MS
from executor_svc.service.registration import HELLO_INTERVAL_S
from tests.executor_svc.puppet import IN_SLOW_STEP, SLOW_STEP_S
from tests.executor_svc.service.steps import greedy, plan, tokens_of
from tests.support.checkpoints import DEMO_MODEL_DIR, reference_greedy
from tests.support.fake_scheduler import FakeScheduler

SERVED = 'event="has served" unanswered=0 threads=1'  # no step is under way, and no other thread could begin one


def start_puppet() -> FakeScheduler:
    return FakeScheduler("-m", "tests.executor_svc.puppet", "ENDPOINT")


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeScheduler]:
    scheduler = start_puppet()
    yield scheduler
    scheduler.close()


@pytest.fixture
def puppet(shared: FakeScheduler) -> Iterator[FakeScheduler]:
    """One that has joined an epoch, and is left to the next test when its last epoch is over."""
    shared.forget_log()
    shared.join()
    yield shared
    shared.send(m.EpochOver(epoch=shared.epoch, reason="the test is over"))


@pytest.fixture
def mortal() -> Iterator[FakeScheduler]:
    """One whose process the test ends."""
    scheduler = start_puppet()
    yield scheduler
    scheduler.close()


# --- a process that lives on ---


def test_plans_are_answered_in_order(puppet: FakeScheduler) -> None:
    for step in range(20):
        puppet.send(plan(epoch=puppet.epoch, step=step, context_len=step + 1))
        if step:  # two are in flight
            result = puppet.expect(m.StepResult)
            assert (result.epoch, result.step, tokens_of(result)) == (puppet.epoch, step - 1, [step])
    assert puppet.expect(m.StepResult).step == 19


def test_nonsense_is_dropped_and_the_log_is_not_flooded(puppet: FakeScheduler) -> None:
    for _ in range(200):
        puppet.send_frames(b"GET / HTTP/1.1", b"")
        puppet.send_frames(HEADER, b"\xc1garbage")
        puppet.send_frames(HEADER)
        puppet.send_frames(b"baton/999", b"\x90")
        puppet.send_frames(*puppet.codec.encode(m.Leaving(epoch=puppet.epoch)))  # ours, but of the other direction
        puppet.send(plan(epoch=puppet.epoch + 1))
        puppet.send(m.EpochOver(epoch=puppet.epoch + 8, reason="not this one"))
        puppet.send(m.Reject(reason="too late"))
    puppet.send(plan(epoch=puppet.epoch, step=7))
    assert puppet.expect(m.StepResult, beat=puppet.epoch).step == 7
    assert 1 <= puppet.log.count("message dropped") <= 5
    assert "since_last=1\n" in puppet.log


def assert_joins_again(puppet: FakeScheduler) -> None:
    """It says Hello; nothing of the epoch that is over comes any more."""
    puppet.join()
    puppet.send(plan(epoch=puppet.epoch))
    result = puppet.expect(m.StepResult)
    assert (result.epoch, tokens_of(result)) == (puppet.epoch, [5])


def test_malformed_plan_is_answered_and_the_next_epoch_works(puppet: FakeScheduler) -> None:
    good = plan(epoch=puppet.epoch, step=4)
    puppet.send(m.Plan(**{**{f: getattr(good, f) for f in good.__struct_fields__}, "block_ids": b"\xff" * 8}))
    failed = puppet.expect(m.StepFailed)
    assert (failed.epoch, failed.step) == (puppet.epoch, 4)
    assert failed.error == "the plan is malformed: block_ids has -1, allowed are 0 to 63"
    assert_joins_again(puppet)


@pytest.mark.parametrize(
    ("token", "error"),
    [
        (101, "MemoryError: no memory for this step"),
        (102, "RuntimeError: [enforce"),
        (104, "RuntimeError: a kernel failed after its launch"),
    ],
)
def test_failed_step_ends_the_epoch_and_not_the_process(puppet: FakeScheduler, token: int, error: str) -> None:
    puppet.send(plan(token, epoch=puppet.epoch, step=8))
    puppet.send(plan(1, epoch=puppet.epoch, step=9))
    failed = puppet.expect(m.StepFailed)
    assert failed.step == 8
    assert failed.error.startswith(error)
    assert_joins_again(puppet)  # without a result of step 9
    assert "step failed" in puppet.log


def test_next_step_is_launched_while_a_device_is_busy(puppet: FakeScheduler) -> None:
    puppet.send(plan(105, epoch=puppet.epoch, step=0))
    puppet.send(plan(106, epoch=puppet.epoch, step=1))
    assert [puppet.expect(m.StepResult).step for _ in range(2)] == [0, 1]


def test_heartbeats_go_out_during_a_slow_step(puppet: FakeScheduler) -> None:
    puppet.send(plan(103, epoch=puppet.epoch))
    start, beats = time.monotonic(), 0
    while isinstance(message := puppet.receive(), m.ExecutorHeartbeat):
        puppet.send(m.SchedulerHeartbeat(epoch=puppet.epoch))
        beats += 1
    assert isinstance(message, m.StepResult)
    assert message.compute_us >= SLOW_STEP_S * 1e6
    assert time.monotonic() - start >= SLOW_STEP_S
    assert beats >= 4


def test_silent_scheduler_is_given_up_and_found_again(puppet: FakeScheduler) -> None:
    first_identity, start = puppet.identity, time.monotonic()
    assert_joins_again(puppet)
    assert time.monotonic() - start > LOSS_TIMEOUT_S - 0.5
    assert puppet.identity != first_identity  # a fresh connection


def test_restarted_scheduler_is_found_again(puppet: FakeScheduler) -> None:
    puppet.restart()
    assert_joins_again(puppet)


# --- a process that ends ---


@pytest.mark.slow
def test_no_hello_piles_up_for_a_scheduler_that_is_not_there() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        router.unbind(f"tcp://127.0.0.1:{port}")
    listener = socket.create_server(("127.0.0.1", port))
    scheduler = FakeScheduler("-m", "tests.executor_svc.puppet", f"tcp://127.0.0.1:{port}")
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


def test_lost_device_ends_the_process(mortal: FakeScheduler) -> None:
    mortal.join()
    mortal.send(plan(107))
    assert mortal.exit_code() == EXIT_CRASHED
    log = mortal.close()
    assert "cannot go on after it" in log
    assert "has served" not in log


def test_sigterm_finishes_its_plans_and_waits_to_be_released(mortal: FakeScheduler) -> None:
    mortal.join()
    mortal.send(plan(103, step=0))
    mortal.send(plan(1, step=1))
    mortal.wait_for_output(IN_SLOW_STEP)
    mortal.process.send_signal(signal.SIGTERM)
    assert mortal.expect(m.Leaving).epoch == 1, "before the step's answer"
    assert [mortal.expect(m.StepResult, beat=1).step for _ in range(2)] == [0, 1]
    assert mortal.process.poll() is None
    mortal.send(m.EpochOver(epoch=1, reason="left"))
    assert mortal.exit_code() == 0
    log = mortal.close()
    assert "event=leaving epoch=1" in log
    assert log.index('event="epoch over"') < log.index(SERVED)


def test_released_in_the_middle_of_a_step(mortal: FakeScheduler) -> None:
    mortal.join()
    mortal.send(plan(103))
    mortal.wait_for_output(IN_SLOW_STEP)
    mortal.process.send_signal(signal.SIGINT)
    mortal.expect(m.Leaving)
    mortal.send(m.EpochOver(epoch=1, reason="left"))
    assert mortal.exit_code(SLOW_STEP_S + 2) == 0
    log = mortal.close()
    # After the step, which may write a pool that is kept. One that takes longer than the grace is not waited for.
    assert (SERVED in log) != ("stopped in the middle of a step" in log)


def test_second_signal_exits_at_once(mortal: FakeScheduler) -> None:
    mortal.join()
    mortal.process.send_signal(signal.SIGTERM)
    mortal.expect(m.Leaving)
    mortal.process.send_signal(signal.SIGINT)
    assert mortal.exit_code(2.0) == 128 + signal.SIGINT
    assert "has served" not in mortal.close()


def test_reject_exits_with_78(mortal: FakeScheduler) -> None:
    mortal.expect(m.Hello)
    mortal.send(m.Reject(reason="another block size"))
    assert mortal.exit_code() == EXIT_REJECTED
    log = mortal.close()
    assert 'event=rejected reason="another block size"' in log
    assert SERVED in log


def test_baton_executor_serves_the_demo_model() -> None:
    prompt = list(range(20))
    expected = reference_greedy(DEMO_MODEL_DIR, prompt, 8)
    options = "--scheduler ENDPOINT --threads 1 --num-blocks 32 --name demo --max-num-seqs 4"
    scheduler = FakeScheduler("-m", "executor_svc", *options.split())
    try:
        hello = scheduler.join()
        assert (hello.executor, hello.dtype, hello.num_blocks, hello.max_model_len) == ("demo", "float32", 32, 512)
        assert greedy(scheduler, prompt, 8) == expected
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


def test_sigterm_ends_the_pause_after_a_scheduler_of_another_version(mortal: FakeScheduler) -> None:
    mortal.expect(m.Hello)
    mortal.send_frames(b"baton/999", b"whatever it means by that")
    mortal.wait_for_log("peer speaks protocol version 999")
    mortal.process.send_signal(signal.SIGTERM)
    assert mortal.exit_code() == 0
