"""How long ended requests are kept: the prompts of one request of a client together, and never too many."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.core.requests.retention import RETAIN_S, Retention, whole_of
from tests.support.chores import done
from tests.support.effort import examples


@pytest.mark.parametrize(
    ("request_id", "whole"),
    [
        ("cmpl-abc-0", "cmpl-abc"),
        ("alice/a-17", "alice/a"),
        ("a-5-0", "a-5"),  # a client called its request a-5
        ("a-5", "a"),
        ("a", "a"),
        ("a-b", "a-b"),
        ("-3", "-3"),
    ],
)
def test_the_id_says_which_request_a_prompt_is_of(request_id, whole):
    assert whole_of(request_id) == whole


def ended(retention, request_id, now=0.0, num_bytes=1):
    retention.opened(request_id)
    retention.ended(request_id, num_bytes, now)


def test_a_prompt_that_comes_late_holds_those_that_have_ended():
    """The second prompt arrives in a later turn than the one in which the first one ended."""
    retention = Retention()
    ended(retention, "r-0", now=0.0)
    retention.opened("r-1")
    assert done(retention.let_go(RETAIN_S)) == []
    retention.ended("r-1", 1, RETAIN_S)
    assert done(retention.let_go(2 * RETAIN_S)) == ["r-0", "r-1"]
    assert len(retention) == 0


@pytest.mark.parametrize("num_bytes", [1, 10])
def test_what_is_over_goes_before_what_an_open_prompt_holds(num_bytes):
    """Beyond the limit of requests, and beyond that of bytes."""
    retention = Retention(3 if num_bytes == 1 else 99, max_bytes=39)
    retention.opened("held-2")
    for request_id in ("held-0", "held-1", "over-0", "over-1"):
        ended(retention, request_id, num_bytes=num_bytes)
    assert done(retention.let_go(0.0)) == ["over-0", "over-1"]
    ended(retention, "last-0", num_bytes=num_bytes)
    assert done(retention.let_go(0.0)) == []


def test_open_prompts_hold_no_more_than_the_limit():
    """A thousand prompts with one that never ends, again and again, take no more memory than requests that end."""
    retention, gone = Retention(max_requests=20), []
    for i in range(5):
        retention.opened(f"r{i}-0")
        for prompt in range(1, 10):
            ended(retention, f"r{i}-{prompt}")
        gone += done(retention.let_go(0.0))
    assert gone == [f"r{i}-{prompt}" for i in range(3) for prompt in range(1, 10)], "the longest held first"
    for i in range(5):
        retention.ended(f"r{i}-0", 1, 1.0)
    assert len(done(retention.let_go(1.0 + RETAIN_S))) == 5 + 2 * 9
    assert len(retention) == 0


IDS = [f"{whole}-{prompt}" for whole in "abc" for prompt in range(3)]


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from([0.0, 1.0, RETAIN_S / 2, RETAIN_S]))))
def test_it_forgets_what_a_look_at_all_would_forget(steps):
    """A request that is neither open nor retained begins, an open one ends, and time goes by."""
    retention, now = Retention(), 0.0
    open_ones, endings = set(), {}
    for request_id, seconds in steps:
        now += seconds
        if request_id in open_ones:
            open_ones.remove(request_id)
            endings[request_id] = now
            retention.ended(request_id, 1, now)
        elif request_id not in endings:
            open_ones.add(request_id)
            retention.opened(request_id)
        due = {
            one
            for one in endings
            if not any(whole_of(other) == whole_of(one) for other in open_ones)
            and max(at for other, at in endings.items() if whole_of(other) == whole_of(one)) + RETAIN_S <= now
        }
        gone = done(retention.let_go(now))
        assert set(gone) == due
        for one in gone:
            del endings[one]
    assert len(retention) == len({whole_of(one) for one in open_ones | endings.keys()})
