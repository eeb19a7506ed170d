"""Executors' lives in virtual time: the state machine gets messages and a clock of the test's own."""

import re

import pytest

from common import messages as m
from common.wire import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S
from scheduler_svc.fleet import Answered, Draining, Ended, Fleet, Joined, Send
from tests.support.hello import hello


@pytest.fixture
def fleet():
    return Fleet(first_epoch=100)


def join(fleet, peer, now=0.0, **changes):
    joined = [e for e in fleet.receive(peer, hello(peer.decode(), **changes), now) if isinstance(e, Joined)]
    return joined[0].epoch


def sent(effects, kind):
    return [e for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def ended(effects):
    return [(e.epoch, e.cause) for e in effects if isinstance(e, Ended)]


def test_a_hello_is_welcomed_into_an_epoch_of_its_own(fleet):
    effects = fleet.receive(b"a", hello("a"), 0.0)
    assert [type(e) for e in effects] == [Joined, Send]
    assert effects[1].message == m.Welcome(epoch=100)
    assert join(fleet, b"b") == 101
    assert [member.epoch for member in fleet] == [100, 101]


def test_a_second_hello_ends_the_first_epoch(fleet):
    join(fleet, b"a")
    effects = fleet.receive(b"a", hello("a"), 1.0)
    assert ended(effects) == [(100, "restarted")]
    assert not sent(effects, m.EpochOver), "the executor knows; telling it would end the new epoch's wait"
    assert fleet.member(101) is not None


def test_silence_ends_an_epoch_and_any_word_prolongs_it(fleet):
    join(fleet, b"a")
    join(fleet, b"b")
    now = LOSS_TIMEOUT_S - 0.1
    fleet.receive(b"a", m.ExecutorHeartbeat(epoch=100), now)
    assert ended(fleet.tick(now)) == []
    effects = fleet.tick(LOSS_TIMEOUT_S + 0.1)
    assert ended(effects) == [(101, "silent")]
    assert [e.message.epoch for e in sent(effects, m.EpochOver)] == [101]
    assert ended(fleet.tick(now + LOSS_TIMEOUT_S + 0.1)) == [(100, "silent")]


def test_a_word_of_another_epoch_does_not_prolong_it(fleet):
    epoch = join(fleet, b"a")
    effects = fleet.receive(b"a", m.ExecutorHeartbeat(epoch=epoch - 1), 1.0)
    assert [e.message.epoch for e in sent(effects, m.EpochOver)] == [epoch - 1]
    assert ended(fleet.tick(LOSS_TIMEOUT_S + 0.1)) == [(epoch, "silent")]


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
    effects = fleet.receive(b"stranger", message, 0.0)
    assert [(e.peer, type(e.message)) for e in effects] == [(b"stranger", m.EpochOver)]
    assert fleet.member(100) is not None, "a stranger cannot end another peer's epoch"


def test_heartbeats_are_due_at_their_interval(fleet):
    join(fleet, b"a")
    assert len(sent(fleet.tick(0.0), m.SchedulerHeartbeat)) == 1
    assert not sent(fleet.tick(HEARTBEAT_INTERVAL_S / 2), m.SchedulerHeartbeat)
    assert len(sent(fleet.tick(HEARTBEAT_INTERVAL_S), m.SchedulerHeartbeat)) == 1


def test_answers_go_through_and_failures_end_the_epoch(fleet):
    epoch = join(fleet, b"a")
    result = m.StepResult(epoch=epoch, step=0, token_ids=b"", compute_us=0)
    assert fleet.receive(b"a", result, 0.1) == [Answered(result)]
    effects = fleet.receive(b"a", m.StepFailed(epoch=epoch, step=1, error="boom"), 0.2)
    assert ended(effects) == [(epoch, "step_failed")]
    assert len(fleet) == 0


def test_leaving_drains_once_and_ends_when_the_caller_says_so(fleet):
    epoch = join(fleet, b"a")
    assert fleet.receive(b"a", m.Leaving(epoch=epoch), 0.1) == [Draining(epoch)]
    assert fleet.receive(b"a", m.Leaving(epoch=epoch), 0.2) == []
    effects = fleet.end(epoch, "drained", "drained")
    assert ended(effects) == [(epoch, "drained")]
    assert fleet.end(epoch, "drained", "drained") == []


def test_a_broken_connection_ends_the_epoch_of_its_peer_only(fleet):
    join(fleet, b"a")
    join(fleet, b"b")
    assert ended(fleet.disconnected(b"a")) == [(100, "disconnected")]
    assert fleet.disconnected(b"a") == []
    assert fleet.member(101) is not None


@pytest.mark.parametrize(("field", "value"), [("fingerprint", "beef"), ("dtype", "float16"), ("vocab_size", 9)])
def test_a_mismatch_is_rejected_with_what_differs(fleet, field, value):
    join(fleet, b"a")
    effects = fleet.receive(b"b", hello("b", **{field: value}), 0.0)
    assert [type(e.message) for e in effects] == [m.Reject]
    assert field in effects[0].message.reason
    assert str(value) in effects[0].message.reason
    fleet.disconnected(b"a")
    assert join(fleet, b"b", **{field: value}) == 101, "an empty fleet takes any model"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"num_blocks": 2**31 - 1}, "num_blocks is"),
        ({"max_num_seqs": 2**31 - 1}, "max_num_seqs is"),
        ({"num_blocks": 2**20, "block_size": 2**14}, r"num_blocks \* block_size is"),
    ],
)
def test_absurd_limits_are_rejected_before_they_cost_memory(fleet, change, what):
    effects = fleet.receive(b"a", hello("a", **change), 0.0)
    assert [type(e.message) for e in effects] == [m.Reject]
    assert re.match(what + r" \d+, the limit is \d+", effects[0].message.reason)
