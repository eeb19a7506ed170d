"""Executors' lives in virtual time: the state machine gets messages and a clock of the test's own."""

import re

import pytest

from common import messages as m
from common.heartbeats import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S
from common.vocabulary import Vocabulary
from scheduler_svc.core.actions import AdmitExecutor, SendToExecutor
from scheduler_svc.core.fleet.fleet import (
    HELLO_AGAIN_S,
    EpochEnded,
    ExecutorDraining,
    ExecutorFinishing,
    ExecutorJoined,
    ExecutorRejected,
    Fleet,
    StepAnswered,
    model_of,
)
from scheduler_svc.core.fleet.membership import Standing
from scheduler_svc.core.fleet.probation import FIRST_BREAK_S, FREE_FAILURES
from scheduler_svc.core.fleet.step_clock import LATE_S
from tests.support.chores import tick
from tests.support.hello import hello


@pytest.fixture
def fleet():
    return Fleet(first_epoch=100, step_floor_s=5.0)


def join(fleet, peer, now=0.0, **changes):
    joined = [e for e in fleet.receive(peer, hello(peer.decode(), **changes), now) if isinstance(e, ExecutorJoined)]
    return joined[0].membership.epoch


def sent(consequences, kind):
    return [e for e in consequences if isinstance(e, SendToExecutor) and isinstance(e.message, kind)]


def ended(consequences):
    return [(e.epoch, e.cause) for e in consequences if isinstance(e, EpochEnded)]


def test_a_hello_is_welcomed_into_an_epoch_of_its_own(fleet):
    consequences = fleet.receive(b"a", hello("a"), 0.0)
    assert [type(e) for e in consequences] == [ExecutorJoined, AdmitExecutor, SendToExecutor]
    assert consequences[2].message == m.Welcome(epoch=100)
    assert join(fleet, b"b") == 101
    assert [member.epoch for member in fleet] == [100, 101]


def test_a_second_hello_ends_the_first_epoch(fleet):
    join(fleet, b"a")
    consequences = fleet.receive(b"a", hello("a"), 1.0)
    assert ended(consequences) == [(100, "restarted")]
    assert not sent(consequences, m.EpochOver), "the executor knows; telling it would end the new epoch's wait"
    assert fleet.member(101) is not None


def test_silence_ends_an_epoch_and_any_word_prolongs_it(fleet):
    join(fleet, b"a")
    join(fleet, b"b")
    now = LOSS_TIMEOUT_S - 0.1
    fleet.receive(b"a", m.ExecutorHeartbeat(epoch=100), now)
    assert ended(tick(fleet, now)) == []
    consequences = tick(fleet, LOSS_TIMEOUT_S + 0.1)
    assert ended(consequences) == [(101, "silent")]
    assert [e.message.epoch for e in sent(consequences, m.EpochOver)] == [101]
    assert ended(tick(fleet, now + LOSS_TIMEOUT_S + 0.1)) == [(100, "silent")]


def test_a_word_of_another_epoch_does_not_prolong_it(fleet):
    epoch = join(fleet, b"a")
    consequences = fleet.receive(b"a", m.ExecutorHeartbeat(epoch=epoch - 1), 1.0)
    assert [e.message.epoch for e in sent(consequences, m.EpochOver)] == [epoch - 1]
    assert ended(tick(fleet, LOSS_TIMEOUT_S + 0.1)) == [(epoch, "silent")]


@pytest.mark.parametrize(
    "message",
    [
        m.ExecutorHeartbeat(epoch=100),
        m.StepResult(epoch=100, step=0, token_ids=b"", compute_us=0),
        m.StepFailed(epoch=100, step=0, error=""),
        m.Leaving(epoch=100),
    ],
)
def test_an_unknown_peer_is_told_that_its_epoch_is_over(fleet, message):
    join(fleet, b"a")
    consequences = fleet.receive(b"stranger", message, 0.0)
    assert [(e.peer, type(e.message)) for e in consequences] == [(b"stranger", m.EpochOver)]
    assert fleet.member(100) is not None, "a stranger cannot end another peer's epoch"


def test_heartbeats_are_due_at_their_interval(fleet):
    join(fleet, b"a")
    assert len(sent(tick(fleet, 0.0), m.SchedulerHeartbeat)) == 1
    assert not sent(tick(fleet, HEARTBEAT_INTERVAL_S / 2), m.SchedulerHeartbeat)
    assert len(sent(tick(fleet, HEARTBEAT_INTERVAL_S), m.SchedulerHeartbeat)) == 1


def test_answers_go_through_and_failures_end_the_epoch(fleet):
    epoch = join(fleet, b"a")
    result = m.StepResult(epoch=epoch, step=0, token_ids=b"", compute_us=0)
    assert fleet.receive(b"a", result, 0.1) == [StepAnswered(result)]
    consequences = fleet.receive(b"a", m.StepFailed(epoch=epoch, step=1, error="boom"), 0.2)
    assert ended(consequences) == [(epoch, "step_failed")]
    assert len(fleet) == 0


def test_leaving_drains_once_and_ends_when_the_caller_says_so(fleet):
    epoch = join(fleet, b"a")
    assert fleet.receive(b"a", m.Leaving(epoch=epoch), 0.1) == [ExecutorDraining(epoch)]
    assert fleet.receive(b"a", m.Leaving(epoch=epoch), 0.2) == []
    assert fleet.member(epoch).standing is Standing.DRAINING
    consequences = fleet.end(epoch, "drained", "drained", 0.3)
    assert ended(consequences) == [(epoch, "drained")]
    assert fleet.end(epoch, "drained", "drained", 0.4) == []


def test_a_broken_connection_ends_the_epoch_of_its_peer_only(fleet):
    join(fleet, b"a")
    join(fleet, b"b")
    assert ended(fleet.disconnected(b"a", 0.1)) == [(100, "disconnected")]
    assert fleet.disconnected(b"a", 0.1) == []
    assert fleet.member(101) is not None


# --- asked to leave ---


def test_who_is_asked_to_leave_is_told_so_and_drains(fleet):
    epoch = join(fleet, b"a")
    assert fleet.ask_to_leave(epoch, finish=False) == [
        SendToExecutor(b"a", m.Leave(epoch=epoch)),
        ExecutorDraining(epoch),
    ]
    assert fleet.ask_to_leave(epoch, finish=False) == fleet.ask_to_leave(epoch, finish=True) == []
    assert fleet.receive(b"a", m.Leaving(epoch=epoch), 0.1) == [], "its answer changes nothing"


def test_who_may_finish_hears_nothing_until_it_is_released(fleet):
    epoch = join(fleet, b"a")
    assert fleet.ask_to_leave(epoch, finish=True) == [ExecutorFinishing(epoch)]
    assert fleet.ask_to_leave(epoch, finish=True) == []
    assert fleet.member(epoch).standing is Standing.FINISHING
    assert fleet.release(epoch) == [SendToExecutor(b"a", m.Leave(epoch=epoch)), ExecutorDraining(epoch)]
    assert fleet.member(epoch).standing is Standing.DRAINING


def test_an_operator_who_loses_patience_drains_what_was_to_finish(fleet):
    epoch = join(fleet, b"a")
    fleet.ask_to_leave(epoch, finish=True)
    assert fleet.ask_to_leave(epoch, finish=False) == [
        SendToExecutor(b"a", m.Leave(epoch=epoch)),
        ExecutorDraining(epoch),
    ]


def test_who_is_gone_cannot_be_asked(fleet):
    epoch = join(fleet, b"a")
    fleet.disconnected(b"a", 0.1)
    assert fleet.ask_to_leave(epoch, finish=False) == fleet.ask_to_leave(epoch, finish=True) == []
    assert fleet.release(epoch) == []


def test_an_executor_is_found_by_its_name_and_by_its_epoch(fleet):
    join(fleet, b"a")
    join(fleet, b"b")
    assert fleet.find("b").epoch == fleet.find("101").epoch == 101
    assert fleet.find("c") == "no executor 'c' is in the fleet"


def test_a_name_that_two_have_is_answered_with_their_epochs(fleet):
    for peer in (b"p", b"q"):
        fleet.receive(peer, hello("twin"), 0.0)
    assert fleet.find("twin") == "2 executors are called 'twin'; name one by its epoch (100, 101)"
    assert fleet.find("101").peer == b"q"
    join(fleet, b"100")  # an executor that is called like another's epoch
    assert fleet.find("100").peer == b"p"


# --- hangs, and failures again and again ---


def answer(fleet, epoch, step, now):
    result = m.StepResult(epoch=epoch, step=step, token_ids=b"", compute_us=0)
    consequences = fleet.receive(fleet.member(epoch).peer, result, now)
    fleet.step_answered(epoch, step, now)
    return consequences


def alive(fleet, now):
    """Everybody's heart beats. What the next tick gives."""
    for member in fleet:
        fleet.receive(member.peer, m.ExecutorHeartbeat(epoch=member.epoch), now)
    return tick(fleet, now)


def test_an_executor_whose_heart_beats_but_that_does_not_answer_a_plan_is_lost(fleet):
    epoch = join(fleet, b"a")
    fleet.plan_sent(epoch, 0, 8, 0.0)
    answer(fleet, epoch, 0, 0.25)
    assert ended(alive(fleet, 1000.0)) == [], "it has nothing to answer"
    fleet.plan_sent(epoch, 1, 8, 1000.0)
    assert ended(alive(fleet, 1005.0)) == []
    consequences = alive(fleet, 1005.5)
    assert ended(consequences) == [(epoch, "hung")]
    assert [e.message.reason for e in sent(consequences, m.EpochOver)] == [
        "no answer to step 1 of 8 tokens for 5.5 s, the limit is 5.0 s (see --step-timeout)"
    ]


def test_an_answer_is_late_before_its_executor_counts_as_hung(fleet):
    epoch = join(fleet, b"a")
    membership = fleet.member(epoch).membership
    fleet.plan_sent(epoch, 0, 8, 0.0)
    fleet.plan_sent(epoch, 1, 8, 0.0)
    alive(fleet, LATE_S)
    assert not membership.is_late
    assert ended(alive(fleet, LATE_S + 0.1)) == []
    assert membership.is_late
    answer(fleet, epoch, 0, LATE_S + 0.2)
    assert not membership.is_late
    alive(fleet, 2 * LATE_S + 0.1)
    assert not membership.is_late, "the second plan counts from the answer to the first"
    answer(fleet, epoch, 1, 2 * LATE_S + 0.2)
    alive(fleet, 1000.0)
    assert not membership.is_late, "it has nothing to answer"


def test_steps_that_are_always_slow_do_not_count_as_hanging(fleet):
    epoch = join(fleet, b"a")
    fleet.plan_sent(epoch, 0, 8, 0.0)
    answer(fleet, epoch, 0, 3.0)
    fleet.plan_sent(epoch, 1, 8, 10.0)
    assert ended(alive(fleet, 39.0)) == []


def fail(fleet, now, *, steps=0):
    """An executor joins, answers so many plans, and fails the next. Returns the reason; None if it may not join."""
    if not any(isinstance(e, ExecutorJoined) for e in fleet.receive(b"a", hello("a"), now)):
        return None
    (epoch,) = (member.epoch for member in fleet if member.peer == b"a")
    for step in range(steps + 1):
        fleet.plan_sent(epoch, step, 8, now)
        if step < steps:
            answer(fleet, epoch, step, now)
    consequences = fleet.receive(b"a", m.StepFailed(epoch=epoch, step=steps, error="ECC"), now)
    return consequences[-1].reason


def test_an_executor_that_only_fails_is_kept_out_for_a_while(fleet):
    for number in range(FREE_FAILURES):
        assert fail(fleet, (number - FREE_FAILURES) * HELLO_AGAIN_S) == "step 0 failed: ECC"
    assert fail(fleet, 0.0) == "step 0 failed: ECC; kept out for 1 s"
    assert fleet.receive(b"a", hello("a"), FIRST_BREAK_S - 0.1) == [], "neither welcome nor rejected: it asks again"
    assert join(fleet, b"b", now=0.5)
    assert fail(fleet, FIRST_BREAK_S) == "step 0 failed: ECC; kept out for 2 s"
    assert fail(fleet, FIRST_BREAK_S + 1.9) is None
    assert fail(fleet, FIRST_BREAK_S + 2.0) == "step 0 failed: ECC; kept out for 4 s"


def test_an_executor_that_works_in_between_may_always_come_back(fleet):
    assert [fail(fleet, i * HELLO_AGAIN_S, steps=1) for i in range(20)] == ["step 1 failed: ECC"] * 20


def test_an_executor_that_comes_and_goes_in_order_may_always_come_back(fleet):
    for i in range(20):
        epoch = join(fleet, b"a", now=i * HELLO_AGAIN_S)
        fleet.end(epoch, "drained", "drained", i * HELLO_AGAIN_S)


# --- who may join ---


def test_executors_of_several_models_may_serve_together(fleet):
    join(fleet, b"a")
    join(fleet, b"b", fingerprint="beef")
    join(fleet, b"c", dtype="bfloat16")
    assert [model_of(member.hello) for member in fleet] == ["f00d/float32", "beef/float32", "f00d/bfloat16"]


def test_another_vocabulary_is_rejected_with_what_differs(fleet):
    join(fleet, b"a")
    rejected, told = fleet.receive(b"b", hello("b", vocab_size=9), 0.0)
    reason = "vocab_size is 9, that of a in this fleet is 1000"
    assert (rejected, told) == (
        ExecutorRejected(hello("b", vocab_size=9), reason),
        SendToExecutor(b"b", m.Reject(reason=reason, may_pass=True)),
    )
    fleet.disconnected(b"a", 0.1)
    assert join(fleet, b"b", vocab_size=9) == 101, "an empty fleet takes any model"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"num_blocks": 2**31 - 1}, "num_blocks is"),
        ({"max_num_seqs": 2**31 - 1}, "max_num_seqs is"),
        ({"block_size": 2**31 - 1, "num_blocks": 1}, "block_size is"),
        ({"num_blocks": 2**20, "block_size": 2**14}, r"num_blocks \* block_size is"),
    ],
)
def test_absurd_limits_are_rejected_before_they_cost_memory(fleet, change, what):
    consequences = fleet.receive(b"a", hello("a", **change), 0.0)
    assert [type(e) for e in consequences] == [ExecutorRejected, SendToExecutor]
    assert re.match(what + r" \d+, the limit is \d+", consequences[1].message.reason)
    assert len(fleet) == 0


def test_a_pause_of_this_side_is_no_silence_of_executors(fleet):
    epoch = join(fleet, b"a")
    fleet.paused(60.0, 60.1)
    assert ended(tick(fleet, 60.1)) == []
    assert ended(tick(fleet, 60.2 + LOSS_TIMEOUT_S)) == [(epoch, "silent")]


def test_one_that_answers_what_cannot_be_true_is_kept_out_at_once(fleet):
    epoch = join(fleet, b"a")
    fleet.plan_sent(epoch, 0, 8, 0.0)
    answer(fleet, epoch, 0, 0.1)
    fleet.plan_sent(epoch, 1, 8, 0.1)
    (_, _, end) = fleet.end(epoch, "untrusted", "wrong", 0.2)
    assert end.reason == "wrong; kept out for 1 s"
    assert fleet.receive(b"a", hello("a"), 0.3) == []
    assert fleet.receive(b"a", hello("a"), 1.3) != []


def test_one_that_is_told_to_leave_and_does_not_wait_for_its_step_has_left(fleet):
    epoch = join(fleet, b"a")
    fleet.ask_to_leave(epoch, finish=False)
    assert ended(fleet.disconnected(b"a", 1.0)) == [(epoch, "drained")]


SERVED = Vocabulary(1000, "a" * 32)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vocab_size": 999}, "vocab_size is 999, that of the model that is served is 1000"),
        (
            {"tokenizer": "b" * 32},
            "its tokenizer (bbbbbbbbbbbb) is not that of the model that is served (aaaaaaaaaaaa)",
        ),
    ],
)
def test_what_is_served_decides_and_not_who_came_first(changes, reason):
    fleet = Fleet(vocabularies={"generate": SERVED})
    _, rejected = fleet.receive(b"first", hello("first", **changes), 0.0)
    assert rejected.message == m.Reject(reason=reason)
    for i, tokenizer in enumerate((SERVED.tokenizer, "")):  # one without a tokenizer.json needs none
        join(fleet, b"%d" % i, tokenizer=tokenizer, fingerprint=f"other weights {i}")
    assert len(fleet) == 2


def test_where_nothing_is_served_the_members_agree():
    fleet = Fleet()
    join(fleet, b"a", tokenizer="a" * 32)
    _, rejected = fleet.receive(b"b", hello("b", tokenizer="b" * 32), 0.0)
    assert "its tokenizer (bbbbbbbbbbbb) is not that of a in this fleet" in rejected.message.reason
