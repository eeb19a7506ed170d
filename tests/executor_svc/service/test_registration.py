"""The executor's side of the protocol, in virtual time and without a socket."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common import messages as m
from common.exit_codes import EXIT_CRASHED
from common.heartbeats import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S
from executor_svc.service.registration import (
    LEAVE_TIMEOUT_S,
    PAUSE_S,
    STUCK_TIMEOUT_S,
    DropMessage,
    LogEvent,
    Reconnect,
    Registration,
    RegistrationAction,
    RegistrationState,
    RunPlan,
    SendToScheduler,
    StopProcess,
    TagPool,
)
from tests.support.effort import examples
from tests.support.hello import hello

HELLO = hello()


def plan(epoch: int = 1, step: int = 0) -> m.Plan:
    fields = ("lanes", "query_lens", "context_lens", "token_ids", "slot_mapping")
    empty: dict[str, Any] = dict.fromkeys((*fields, "block_counts", "block_ids", "sample_rows"), b"")
    return m.Plan(epoch=epoch, step=step, **empty)


def result(epoch: int = 1, step: int = 0) -> m.StepResult:
    return m.StepResult(epoch=epoch, step=step, token_ids=b"", compute_us=1)


def failed(epoch: int = 1, step: int = 0) -> m.StepFailed:
    return m.StepFailed(epoch=epoch, step=step, error="out of memory")


def sent(actions: list[RegistrationAction]) -> list[m.Message]:
    return [action.message for action in actions if isinstance(action, SendToScheduler)]


def kinds(actions: list[RegistrationAction]) -> list[type]:
    return [type(action) for action in actions]


@pytest.fixture
def registration() -> Registration:
    return Registration(HELLO, 0.0)


@pytest.fixture
def joined(registration: Registration) -> Registration:
    registration.tick(0.0, writable=True)
    registration.message_received(m.Welcome(epoch=1), 0.0)
    return registration


def test_hello_waits_for_a_connection_and_is_repeated_every_second(registration: Registration) -> None:
    assert registration.tick(0.0, writable=False) == []
    assert registration.hello_due(0.5)
    assert sent(registration.tick(0.5, writable=True)) == [HELLO]
    assert registration.tick(1.49, writable=True) == []
    assert registration.next_tick() == 1.5
    assert sent(registration.tick(1.5, writable=True)) == [HELLO]


def test_heartbeats_in_an_epoch_only(registration: Registration) -> None:
    assert sent(registration.tick(0.0, writable=True)) == [HELLO]
    assert kinds(registration.message_received(m.Welcome(epoch=4), 0.1)) == [LogEvent]
    assert registration.state is RegistrationState.JOINED
    assert sent(registration.tick(0.1, writable=False)) == [m.ExecutorHeartbeat(epoch=4)]
    assert registration.tick(0.1 + HEARTBEAT_INTERVAL_S - 0.01, writable=False) == []
    assert sent(registration.tick(0.1 + HEARTBEAT_INTERVAL_S, writable=False)) == [m.ExecutorHeartbeat(epoch=4)]


def test_plans_run_and_results_go_out(joined: Registration) -> None:
    assert joined.message_received(plan(step=1), 0.1) == [RunPlan(plan(step=1))]
    assert joined.message_received(plan(step=2), 0.1) == [RunPlan(plan(step=2))]
    assert sent(joined.plan_answered(result(step=1), 0.2)) == [result(step=1)]
    assert sent(joined.plan_answered(result(step=2), 0.2)) == [result(step=2)]


@pytest.mark.parametrize(
    "message",
    [
        plan(epoch=2),
        m.Leave(epoch=2),
        m.SchedulerHeartbeat(epoch=2),
        m.Reject(reason="x"),
    ],
)
def test_messages_of_another_epoch_are_dropped(joined: Registration, message: m.SchedulerToExecutor) -> None:
    assert kinds(joined.message_received(message, 0.1)) == [DropMessage]
    assert joined.epoch == 1


def test_the_end_of_another_epoch_is_no_news(joined: Registration) -> None:
    assert joined.message_received(m.EpochOver(epoch=2, reason="old"), 0.1) == []
    assert joined.epoch == 1


@pytest.mark.parametrize("message", [plan(), m.Leave(epoch=1), m.SchedulerHeartbeat(epoch=1)])
def test_messages_before_a_welcome_are_dropped(registration: Registration, message: m.SchedulerToExecutor) -> None:
    assert kinds(registration.message_received(message, 0.1)) == [DropMessage]


def test_epoch_over_says_hello_at_once(joined: Registration) -> None:
    assert kinds(joined.message_received(m.EpochOver(epoch=1, reason="drained"), 0.3)) == [LogEvent]
    assert joined.epoch is None
    assert sent(joined.tick(0.3, writable=True)) == [HELLO]


def test_a_step_that_never_ends_ends_the_process(joined: Registration) -> None:
    joined.message_received(plan(step=1), 0.1)
    joined.message_received(m.EpochOver(epoch=1, reason="hung"), 0.2)
    assert joined.tick(0.1 + STUCK_TIMEOUT_S, writable=True) == []
    assert joined.tick(0.2 + STUCK_TIMEOUT_S, writable=True)[-1] == StopProcess(EXIT_CRASHED)


def test_hello_waits_until_old_plans_are_out_of_the_way(joined: Registration) -> None:
    joined.message_received(plan(step=1), 0.1)
    joined.message_received(plan(step=2), 0.1)
    joined.message_received(m.EpochOver(epoch=1, reason="lost"), 0.2)
    assert joined.tick(0.3, writable=True) == []
    assert joined.next_tick() == 0.2 + STUCK_TIMEOUT_S  # no use in looking again before they are, or never will be
    assert joined.plan_answered(result(step=1), 5.0) == []
    assert joined.tick(5.0, writable=True) == []
    assert joined.plan_answered(None, 5.0) == []
    assert sent(joined.tick(5.0, writable=True)) == [HELLO]


def test_failed_step_ends_the_epoch(joined: Registration) -> None:
    joined.message_received(plan(step=1), 0.1)
    joined.message_received(plan(step=2), 0.1)
    actions = joined.plan_answered(failed(step=1), 0.2)
    assert sent(actions) == [failed(step=1)]
    assert joined.epoch is None
    assert joined.plan_answered(None, 0.2) == []
    assert sent(joined.tick(0.2, writable=True)) == [HELLO]


def test_silence_ends_the_epoch_and_renews_the_connection(joined: Registration) -> None:
    assert Reconnect() not in joined.tick(LOSS_TIMEOUT_S - 0.01, writable=False)
    joined.message_received(m.SchedulerHeartbeat(epoch=1), 1.0)
    assert Reconnect() not in joined.tick(LOSS_TIMEOUT_S, writable=False)
    assert kinds(joined.tick(1.0 + LOSS_TIMEOUT_S, writable=False)) == [LogEvent, Reconnect]
    assert sent(joined.tick(3.0, writable=True)) == [HELLO]


def test_broken_connection_ends_the_epoch(joined: Registration, registration: Registration) -> None:
    assert kinds(joined.connection_lost(0.2)) == [LogEvent, Reconnect]
    assert joined.connection_lost(0.2) == []


def test_second_welcome(joined: Registration) -> None:
    assert joined.message_received(m.Welcome(epoch=1), 0.1) == []
    assert kinds(joined.message_received(m.Welcome(epoch=2), 0.1)) == [LogEvent, LogEvent]
    assert joined.epoch == 2
    assert kinds(joined.message_received(plan(epoch=1), 0.1)) == [DropMessage]


def test_too_many_plans_fail(joined: Registration) -> None:
    for step in range(16):
        assert kinds(joined.message_received(plan(step=step), 0.1)) == [RunPlan]
    assert isinstance(sent(joined.message_received(plan(step=16), 0.1))[0], m.StepFailed)
    assert joined.epoch is None


def test_reject_stops_with_78(registration: Registration) -> None:
    assert registration.message_received(m.Reject(reason="another dtype"), 0.1)[-1] == StopProcess(78)
    assert registration.tick(9.0, writable=True) == []


def test_another_protocol_version_stops_with_75_after_a_pause(registration: Registration) -> None:
    assert kinds(registration.version_differs("peer speaks protocol version 999", 0.1)) == [LogEvent]
    assert registration.next_tick() == 0.1 + PAUSE_S
    assert registration.tick(PAUSE_S, writable=True) == [], "and no Hello"
    assert registration.tick(0.1 + PAUSE_S, writable=True) == [StopProcess(75)]
    assert registration.tick(99.0, writable=True) == []


def test_a_reject_that_may_pass_stops_with_75_after_a_pause(registration: Registration) -> None:
    assert kinds(registration.message_received(m.Reject(reason="not that of a", may_pass=True), 0.1)) == [LogEvent]
    assert registration.tick(PAUSE_S, writable=True) == [], "and no Hello"
    assert registration.tick(0.1 + PAUSE_S, writable=True) == [StopProcess(75)]


def test_the_pause_ends_at_once_for_the_operator(registration: Registration) -> None:
    registration.version_differs("peer speaks protocol version 999", 0.1)
    assert not registration.leaving, "the first signal is not taken for a second one"
    assert registration.leave_requested(0.2)[-1] == StopProcess(0)
    assert registration.tick(99.0, writable=True) == []


def test_another_version_in_the_middle_of_an_epoch_is_dropped(joined: Registration) -> None:
    assert kinds(joined.version_differs("peer speaks protocol version 999", 0.1)) == [DropMessage]
    assert joined.epoch == 1


def test_leaving_without_an_epoch_stops_at_once(registration: Registration) -> None:
    assert registration.leave_requested(0.1)[-1] == StopProcess(0)


def test_leaving_goes_on_until_released(joined: Registration) -> None:
    joined.message_received(plan(step=1), 0.1)
    assert sent(joined.leave_requested(0.2)) == [m.Leaving(epoch=1)]
    assert joined.leaving
    assert joined.message_received(plan(step=2), 0.3) == [RunPlan(plan(step=2))]
    assert sent(joined.plan_answered(result(step=1), 0.4)) == [result(step=1)]
    assert sent(joined.tick(0.5, writable=False)) == [m.ExecutorHeartbeat(epoch=1)]
    assert kinds(joined.message_received(m.Welcome(epoch=2), 0.5)) == [DropMessage]
    assert joined.message_received(m.EpochOver(epoch=1, reason="left"), 0.6)[-1] == StopProcess(0)


def test_leave_does_what_sigterm_does_and_only_once(joined: Registration) -> None:
    assert sent(joined.message_received(m.Leave(epoch=1), 0.2)) == [m.Leaving(epoch=1)]
    assert joined.state is RegistrationState.LEAVING
    assert joined.message_received(m.Leave(epoch=1), 0.3) == []
    assert joined.message_received(plan(step=2), 0.3) == [RunPlan(plan(step=2))], "it may have been on its way"
    assert joined.next_tick() <= 0.2 + LEAVE_TIMEOUT_S
    assert joined.message_received(m.EpochOver(epoch=1, reason="drained"), 0.4)[-1] == StopProcess(0)


def test_leave_after_sigterm_does_not_prolong_the_wait(joined: Registration) -> None:
    joined.leave_requested(0.0)
    joined.message_received(m.Leave(epoch=1), LEAVE_TIMEOUT_S - 0.1)
    assert StopProcess(0) in joined.tick(LEAVE_TIMEOUT_S, writable=False)


@pytest.mark.parametrize("end", ["timeout", "silence", "failure", "connection"])
def test_leaving_ends_anyway(joined: Registration, end: str) -> None:
    joined.leave_requested(0.0)
    joined.message_received(plan(), 0.0)
    if end == "timeout":
        joined.message_received(m.SchedulerHeartbeat(epoch=1), LEAVE_TIMEOUT_S - 0.1)
        assert joined.next_tick() <= LEAVE_TIMEOUT_S
        actions = joined.tick(LEAVE_TIMEOUT_S, writable=False)
    elif end == "silence":
        actions = joined.tick(LOSS_TIMEOUT_S, writable=False)
    elif end == "failure":
        actions = joined.plan_answered(failed(), 0.1)
    else:
        actions = joined.connection_lost(0.1)
    assert StopProcess(0) in actions


class RegistrationMachine(RuleBasedStateMachine):
    """Any order of events: answers are counted right, and nothing of a dead epoch goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.registration = Registration(HELLO, 0.0)
        self.running: list[m.Plan] = []
        self.stopped = False

    def take(self, actions: list[RegistrationAction], epoch_before: int | None) -> None:
        for action in actions:
            assert not self.stopped
            match action:
                case SendToScheduler(message) if isinstance(message, m.Hello):
                    assert epoch_before is None
                    assert not self.running
                case SendToScheduler(message):
                    assert message.epoch == epoch_before
                case RunPlan(started):
                    assert started.epoch == self.registration.epoch
                    self.running.append(started)
                case StopProcess():
                    self.stopped = True

    @precondition(lambda self: not self.stopped)
    @rule(seconds=st.floats(0, 3), writable=st.booleans())
    def wait(self, seconds: float, writable: bool) -> None:
        self.now += seconds
        self.take(self.registration.tick(self.now, writable=writable), self.registration.epoch)

    @precondition(lambda self: not self.stopped)
    @rule(kind=st.sampled_from(["welcome", "over", "beat", "plan", "leave"]), epoch=st.integers(1, 3))
    def hear(self, kind: str, epoch: int) -> None:
        before = self.registration.epoch
        message = {
            "welcome": m.Welcome(epoch=epoch),
            "over": m.EpochOver(epoch=epoch, reason=""),
            "beat": m.SchedulerHeartbeat(epoch=epoch),
            "plan": plan(epoch=epoch),
            "leave": m.Leave(epoch=epoch),
        }[kind]
        self.take(self.registration.message_received(message, self.now), before)

    @precondition(lambda self: self.running and not self.stopped)
    @rule(kind=st.sampled_from([result, failed, None]))
    def answer(self, kind: Any) -> None:
        done, before = self.running.pop(0), self.registration.epoch
        self.take(self.registration.plan_answered(kind and kind(done.epoch, done.step), self.now), before)

    @precondition(lambda self: not self.stopped)
    @rule()
    def hear_another_version(self) -> None:
        self.take(self.registration.version_differs("999", self.now), self.registration.epoch)

    @precondition(lambda self: not self.stopped and not self.registration.leaving)
    @rule()
    def leave(self) -> None:
        self.take(self.registration.leave_requested(self.now), self.registration.epoch)

    @precondition(lambda self: self.stopped)
    @rule(seconds=st.floats(0, 3))
    def stay_stopped(self, seconds: float) -> None:
        self.now += seconds
        assert self.registration.tick(self.now, writable=True) == []
        assert kinds(self.registration.message_received(m.Welcome(epoch=1), self.now)) == [DropMessage]

    @invariant()
    def state_fits_epoch(self) -> None:
        assert (self.registration.epoch is not None) == (
            self.registration.state in (RegistrationState.JOINED, RegistrationState.LEAVING)
        )
        assert self.stopped == (self.registration.state is RegistrationState.STOPPED)


TestRegistrationMachine = RegistrationMachine.TestCase
TestRegistrationMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)


# --- a pool that a keeper keeps ---

POOL = m.Pool(pool="0" * 32, lease=3, layout="x", epoch=4)


def test_the_pool_is_tagged_before_a_plan_may_write_it_and_the_next_hello_says_so() -> None:
    registration = Registration(hello(pool=POOL), 0.0)
    assert sent(registration.tick(0.0, writable=True))[0].pool == POOL
    actions = registration.message_received(m.Welcome(epoch=9), 0.1)
    assert actions[0] == TagPool(9)
    assert kinds(registration.message_received(plan(epoch=9), 0.1)) == [RunPlan]
    registration.plan_answered(result(epoch=9), 0.2)
    registration.message_received(m.EpochOver(epoch=9, reason="x"), 0.3)
    (said,) = sent(registration.tick(0.3, writable=True))
    assert (said.pool.epoch, said.pool.lease) == (9, 3)


@pytest.mark.parametrize("is_over", [False, True])
def test_after_a_failed_step_the_tag_names_no_epoch(is_over: bool) -> None:
    """Also if the epoch ended before: its scheduler did not hear of the failure, and would go on with the pool."""
    pool = m.Pool(pool="0" * 32, lease=3, layout="x", epoch=4)
    registration = Registration(hello(pool=pool), 0.0)
    registration.message_received(m.Welcome(epoch=9), 0.0)
    registration.message_received(plan(epoch=9), 0.1)
    if is_over:
        registration.message_received(m.EpochOver(epoch=9, reason="x"), 0.2)
    actions = registration.plan_answered(m.StepFailed(epoch=9, step=0, error="x"), 0.3)
    assert actions[0] == TagPool(0), "before anything is said"
    assert bool(sent(actions)) is not is_over
    (said,) = sent(registration.tick(0.3, writable=True))
    assert said.pool.epoch == 0


def test_a_hello_without_a_pool_tags_none(joined: Registration) -> None:
    assert TagPool not in kinds(joined.message_received(m.Welcome(epoch=2), 0.1))


def test_the_keeper_is_told_what_its_holder_does(registration: Registration) -> None:
    states = [registration.holder_state]
    registration.message_received(m.Welcome(epoch=1), 0.0)
    registration.message_received(plan(), 0.0)
    states.append(registration.holder_state)
    registration.message_received(m.EpochOver(epoch=1, reason="hung"), 0.1)
    states.append(registration.holder_state)  # its step is not over
    registration.plan_answered(None, 0.2)
    states.append(registration.holder_state)
    assert states == ["seeking", "serving", "stuck", "seeking"]


def test_heartbeats_say_whether_a_standby_waits(joined: Registration) -> None:
    for has_standby in (False, True):
        joined.has_standby = has_standby
        (beat,) = sent(joined.tick(joined.next_tick(), writable=True))
        assert beat.has_standby is has_standby
