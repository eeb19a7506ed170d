"""The executor's side of the protocol, in virtual time and without a socket."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common import messages as m
from common.heartbeats import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S
from executor_svc.service.link import (
    EXIT_CRASHED,
    LEAVE_TIMEOUT_S,
    STUCK_TIMEOUT_S,
    Action,
    Drop,
    Link,
    Note,
    Phase,
    Reconnect,
    Run,
    Send,
    Stop,
)
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


def sent(actions: list[Action]) -> list[m.Message]:
    return [action.message for action in actions if isinstance(action, Send)]


def kinds(actions: list[Action]) -> list[type]:
    return [type(action) for action in actions]


@pytest.fixture
def link() -> Link:
    return Link(HELLO, 0.0)


@pytest.fixture
def joined(link: Link) -> Link:
    link.tick(0.0, writable=True)
    link.on_message(m.Welcome(epoch=1), 0.0)
    return link


def test_hello_waits_for_a_connection_and_is_repeated_every_second(link: Link) -> None:
    assert link.tick(0.0, writable=False) == []
    assert link.hello_due(0.5)
    assert sent(link.tick(0.5, writable=True)) == [HELLO]
    assert link.tick(1.49, writable=True) == []
    assert link.next_tick() == 1.5
    assert sent(link.tick(1.5, writable=True)) == [HELLO]


def test_heartbeats_in_an_epoch_only(link: Link) -> None:
    assert sent(link.tick(0.0, writable=True)) == [HELLO]
    assert kinds(link.on_message(m.Welcome(epoch=4), 0.1)) == [Note]
    assert link.phase is Phase.JOINED
    assert sent(link.tick(0.1, writable=False)) == [m.ExecutorHeartbeat(epoch=4)]
    assert link.tick(0.1 + HEARTBEAT_INTERVAL_S - 0.01, writable=False) == []
    assert sent(link.tick(0.1 + HEARTBEAT_INTERVAL_S, writable=False)) == [m.ExecutorHeartbeat(epoch=4)]


def test_plans_run_and_results_go_out(joined: Link) -> None:
    assert joined.on_message(plan(step=1), 0.1) == [Run(plan(step=1))]
    assert joined.on_message(plan(step=2), 0.1) == [Run(plan(step=2))]
    assert sent(joined.on_answer(result(step=1), 0.2)) == [result(step=1)]
    assert sent(joined.on_answer(result(step=2), 0.2)) == [result(step=2)]


@pytest.mark.parametrize(
    "message",
    [
        plan(epoch=2),
        m.Leave(epoch=2),
        m.SchedulerHeartbeat(epoch=2),
        m.Reject(reason="x"),
    ],
)
def test_messages_of_another_epoch_are_dropped(joined: Link, message: m.SchedulerToExecutor) -> None:
    assert kinds(joined.on_message(message, 0.1)) == [Drop]
    assert joined.epoch == 1


def test_the_end_of_another_epoch_is_no_news(joined: Link) -> None:
    assert joined.on_message(m.EpochOver(epoch=2, reason="old"), 0.1) == []
    assert joined.epoch == 1


@pytest.mark.parametrize("message", [plan(), m.Leave(epoch=1), m.SchedulerHeartbeat(epoch=1)])
def test_messages_before_a_welcome_are_dropped(link: Link, message: m.SchedulerToExecutor) -> None:
    assert kinds(link.on_message(message, 0.1)) == [Drop]


def test_epoch_over_says_hello_at_once(joined: Link) -> None:
    assert kinds(joined.on_message(m.EpochOver(epoch=1, reason="drained"), 0.3)) == [Note]
    assert joined.epoch is None
    assert sent(joined.tick(0.3, writable=True)) == [HELLO]


def test_a_step_that_never_ends_ends_the_process(joined: Link) -> None:
    joined.on_message(plan(step=1), 0.1)
    joined.on_message(m.EpochOver(epoch=1, reason="hung"), 0.2)
    assert joined.tick(0.1 + STUCK_TIMEOUT_S, writable=True) == []
    assert joined.tick(0.2 + STUCK_TIMEOUT_S, writable=True)[-1] == Stop(EXIT_CRASHED)


def test_hello_waits_until_old_plans_are_out_of_the_way(joined: Link) -> None:
    joined.on_message(plan(step=1), 0.1)
    joined.on_message(plan(step=2), 0.1)
    joined.on_message(m.EpochOver(epoch=1, reason="lost"), 0.2)
    assert joined.tick(0.3, writable=True) == []
    assert joined.next_tick() == 0.2 + STUCK_TIMEOUT_S  # no use in looking again before they are, or never will be
    assert joined.on_answer(result(step=1), 5.0) == []
    assert joined.tick(5.0, writable=True) == []
    assert joined.on_answer(None, 5.0) == []
    assert sent(joined.tick(5.0, writable=True)) == [HELLO]


def test_failed_step_ends_the_epoch(joined: Link) -> None:
    joined.on_message(plan(step=1), 0.1)
    joined.on_message(plan(step=2), 0.1)
    actions = joined.on_answer(failed(step=1), 0.2)
    assert sent(actions) == [failed(step=1)]
    assert joined.epoch is None
    assert joined.on_answer(None, 0.2) == []
    assert sent(joined.tick(0.2, writable=True)) == [HELLO]


def test_silence_ends_the_epoch_and_renews_the_connection(joined: Link) -> None:
    assert Reconnect() not in joined.tick(LOSS_TIMEOUT_S - 0.01, writable=False)
    joined.on_message(m.SchedulerHeartbeat(epoch=1), 1.0)
    assert Reconnect() not in joined.tick(LOSS_TIMEOUT_S, writable=False)
    assert kinds(joined.tick(1.0 + LOSS_TIMEOUT_S, writable=False)) == [Note, Reconnect]
    assert sent(joined.tick(3.0, writable=True)) == [HELLO]


def test_broken_connection_ends_the_epoch(joined: Link, link: Link) -> None:
    assert kinds(joined.connection_lost(0.2)) == [Note, Reconnect]
    assert joined.connection_lost(0.2) == []


def test_second_welcome(joined: Link) -> None:
    assert joined.on_message(m.Welcome(epoch=1), 0.1) == []
    assert kinds(joined.on_message(m.Welcome(epoch=2), 0.1)) == [Note, Note]
    assert joined.epoch == 2
    assert kinds(joined.on_message(plan(epoch=1), 0.1)) == [Drop]


def test_too_many_plans_fail(joined: Link) -> None:
    for step in range(16):
        assert kinds(joined.on_message(plan(step=step), 0.1)) == [Run]
    assert isinstance(sent(joined.on_message(plan(step=16), 0.1))[0], m.StepFailed)
    assert joined.epoch is None


def test_reject_stops_with_78(link: Link) -> None:
    assert link.on_message(m.Reject(reason="another dtype"), 0.1)[-1] == Stop(78)
    assert link.tick(9.0, writable=True) == []


def test_leaving_without_an_epoch_stops_at_once(link: Link) -> None:
    assert link.leave(0.1)[-1] == Stop(0)


def test_leaving_goes_on_until_released(joined: Link) -> None:
    joined.on_message(plan(step=1), 0.1)
    assert sent(joined.leave(0.2)) == [m.Leaving(epoch=1)]
    assert joined.leaving
    assert joined.on_message(plan(step=2), 0.3) == [Run(plan(step=2))]
    assert sent(joined.on_answer(result(step=1), 0.4)) == [result(step=1)]
    assert sent(joined.tick(0.5, writable=False)) == [m.ExecutorHeartbeat(epoch=1)]
    assert kinds(joined.on_message(m.Welcome(epoch=2), 0.5)) == [Drop]
    assert joined.on_message(m.EpochOver(epoch=1, reason="left"), 0.6)[-1] == Stop(0)


def test_leave_does_what_sigterm_does_and_only_once(joined: Link) -> None:
    assert sent(joined.on_message(m.Leave(epoch=1), 0.2)) == [m.Leaving(epoch=1)]
    assert joined.phase is Phase.LEAVING
    assert joined.on_message(m.Leave(epoch=1), 0.3) == []
    assert joined.on_message(plan(step=2), 0.3) == [Run(plan(step=2))], "it may have been on its way"
    assert joined.next_tick() <= 0.2 + LEAVE_TIMEOUT_S
    assert joined.on_message(m.EpochOver(epoch=1, reason="drained"), 0.4)[-1] == Stop(0)


def test_leave_after_sigterm_does_not_prolong_the_wait(joined: Link) -> None:
    joined.leave(0.0)
    joined.on_message(m.Leave(epoch=1), LEAVE_TIMEOUT_S - 0.1)
    assert Stop(0) in joined.tick(LEAVE_TIMEOUT_S, writable=False)


@pytest.mark.parametrize("end", ["timeout", "silence", "failure", "connection"])
def test_leaving_ends_anyway(joined: Link, end: str) -> None:
    joined.leave(0.0)
    joined.on_message(plan(), 0.0)
    if end == "timeout":
        joined.on_message(m.SchedulerHeartbeat(epoch=1), LEAVE_TIMEOUT_S - 0.1)
        assert joined.next_tick() <= LEAVE_TIMEOUT_S
        actions = joined.tick(LEAVE_TIMEOUT_S, writable=False)
    elif end == "silence":
        actions = joined.tick(LOSS_TIMEOUT_S, writable=False)
    elif end == "failure":
        actions = joined.on_answer(failed(), 0.1)
    else:
        actions = joined.connection_lost(0.1)
    assert Stop(0) in actions


class LinkMachine(RuleBasedStateMachine):
    """Any order of events: answers are counted right, and nothing of a dead epoch goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.link = Link(HELLO, 0.0)
        self.running: list[m.Plan] = []
        self.stopped = False

    def take(self, actions: list[Action], epoch_before: int | None) -> None:
        for action in actions:
            assert not self.stopped
            match action:
                case Send(message) if isinstance(message, m.Hello):
                    assert epoch_before is None
                    assert not self.running
                case Send(message):
                    assert message.epoch == epoch_before
                case Run(started):
                    assert started.epoch == self.link.epoch
                    self.running.append(started)
                case Stop():
                    self.stopped = True

    @precondition(lambda self: not self.stopped)
    @rule(seconds=st.floats(0, 3), writable=st.booleans())
    def wait(self, seconds: float, writable: bool) -> None:
        self.now += seconds
        self.take(self.link.tick(self.now, writable=writable), self.link.epoch)

    @precondition(lambda self: not self.stopped)
    @rule(kind=st.sampled_from(["welcome", "over", "beat", "plan", "leave"]), epoch=st.integers(1, 3))
    def hear(self, kind: str, epoch: int) -> None:
        before = self.link.epoch
        message = {
            "welcome": m.Welcome(epoch=epoch),
            "over": m.EpochOver(epoch=epoch, reason=""),
            "beat": m.SchedulerHeartbeat(epoch=epoch),
            "plan": plan(epoch=epoch),
            "leave": m.Leave(epoch=epoch),
        }[kind]
        self.take(self.link.on_message(message, self.now), before)

    @precondition(lambda self: self.running and not self.stopped)
    @rule(kind=st.sampled_from([result, failed, None]))
    def answer(self, kind: Any) -> None:
        done, before = self.running.pop(0), self.link.epoch
        self.take(self.link.on_answer(kind and kind(done.epoch, done.step), self.now), before)

    @precondition(lambda self: not self.stopped and not self.link.leaving)
    @rule()
    def leave(self) -> None:
        self.take(self.link.leave(self.now), self.link.epoch)

    @precondition(lambda self: self.stopped)
    @rule(seconds=st.floats(0, 3))
    def stay_stopped(self, seconds: float) -> None:
        self.now += seconds
        assert self.link.tick(self.now, writable=True) == []
        assert kinds(self.link.on_message(m.Welcome(epoch=1), self.now)) == [Drop]

    @invariant()
    def phase_fits_epoch(self) -> None:
        assert (self.link.epoch is not None) == (self.link.phase in (Phase.JOINED, Phase.LEAVING))
        assert self.stopped == (self.link.phase is Phase.STOPPED)


TestLinkMachine = LinkMachine.TestCase
TestLinkMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
