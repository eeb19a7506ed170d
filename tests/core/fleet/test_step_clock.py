"""How long an executor may take for a step, learned from its own steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.fleet.step_clock import (
    DECAY,
    DEFAULT_FLOOR_S,
    FIRST_STEP_LIMIT_S,
    MOST_SLOWNESS,
    PACE_SHARE,
    PATIENCE,
    Answered,
    Paces,
    StepClock,
)

FLOOR_S = 1.0


@pytest.fixture
def clock():
    return StepClock(FLOOR_S)


def run(clock, seconds, num_tokens, *, at):
    """One step from its plan to its answer."""
    clock.sent(clock.num_answered, num_tokens, at)
    clock.answered(clock.num_answered, at + seconds)


def limit_s(clock, num_tokens):
    return clock.limit_s(num_tokens.bit_length())


def overdue_s(clock, now):
    overdue = clock.overdue(now)
    return None if overdue is None else overdue.took_s


def test_nothing_is_overdue_while_no_plan_is_in_flight(clock):
    assert overdue_s(clock, 1e9) is None
    run(clock, 1.0, 8, at=0.0)
    assert overdue_s(clock, 1e9) is None


def test_the_first_step_may_compile_kernels(clock):
    clock.sent(0, 8, 5.0)
    assert overdue_s(clock, 5.0 + FIRST_STEP_LIMIT_S) is None
    assert overdue_s(clock, 6.0 + FIRST_STEP_LIMIT_S) == FIRST_STEP_LIMIT_S + 1.0


def test_a_step_may_take_ten_times_the_longest_of_its_size(clock):
    run(clock, 0.5, 8, at=0.0)
    clock.sent(1, 15, 100.0)  # as many binary digits as 8
    assert overdue_s(clock, 100.0 + PATIENCE * 0.5) is None
    assert overdue_s(clock, 100.5 + PATIENCE * 0.5) == pytest.approx(PATIENCE * 0.5 + 0.5)


def test_no_limit_is_below_the_floor():
    clock = StepClock()
    run(clock, 0.001, 8, at=0.0)
    assert limit_s(clock, 8) == DEFAULT_FLOOR_S
    assert StepClock(floor_s=500.0).limit_s(4) == 500.0, "not even that of the first step"


def test_a_plan_that_waited_for_another_counts_from_that_ones_answer(clock):
    clock.sent(0, 8, 0.0)
    clock.sent(1, 8, 0.0)
    clock.answered(0, 2.0)
    assert limit_s(clock, 8) == PATIENCE * 2.0
    clock.answered(1, 5.0)
    assert limit_s(clock, 8) == PATIENCE * 3.0


def test_the_time_in_the_queue_of_the_executor_does_not_make_a_plan_overdue(clock):
    run(clock, 1.0, 8, at=0.0)
    clock.sent(1, 8, 10.0)
    clock.sent(2, 8, 10.0)
    clock.answered(1, 11.0)
    assert overdue_s(clock, 20.9) is None
    assert overdue_s(clock, 21.5) == 10.5


def test_only_the_oldest_plan_can_be_overdue(clock):
    run(clock, 1.0, 8, at=0.0)
    clock.sent(1, 8, 10.0)
    clock.sent(2, 8, 19.0)
    assert overdue_s(clock, 20.5) == 10.5
    clock.answered(1, 20.5)
    assert overdue_s(clock, 30.0) is None


def test_an_answer_to_another_step_than_the_oldest_is_not_counted(clock):
    run(clock, 1.0, 8, at=0.0)
    clock.sent(1, 8, 10.0)
    clock.sent(2, 8, 10.0)
    for wrong in (0, 2, 7):
        clock.answered(wrong, 15.0)
    assert clock.num_answered == 1
    assert overdue_s(clock, 20.5) == 10.5
    StepClock().answered(0, 1.0)


def test_an_unseen_size_may_take_what_the_next_larger_one_took(clock):
    run(clock, 8.0, 1000, at=0.0)
    run(clock, 3.0, 100, at=50.0)
    assert limit_s(clock, 8) == PATIENCE * 3.0


def test_an_unseen_size_beyond_all_others_may_take_longer_by_the_tokens(clock):
    run(clock, 9.0, 2, at=0.0)
    run(clock, 0.5, 16, at=50.0)
    assert limit_s(clock, 64) == PATIENCE * 0.5 * 4
    assert limit_s(clock, 2**31 - 1) == PATIENCE * 0.5 * 2**26


def test_sizes_do_not_teach_each_other_once_they_are_known(clock):
    run(clock, 30.0, 4096, at=0.0)
    run(clock, 0.25, 1, at=50.0)
    assert limit_s(clock, 1) == PATIENCE * 0.25
    assert limit_s(clock, 4096) == PATIENCE * 30.0


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=60))
def test_a_slow_step_is_forgotten_by_and_by(seconds):
    """Each step is remembered a little less with every later one; the longest that is left counts."""
    clock, now = StepClock(FLOOR_S), 0.0
    for each in seconds:
        run(clock, each, 32, at=now)
        now += each
    remembered = max(each * DECAY**age for age, each in enumerate(reversed(seconds)))
    assert limit_s(clock, 32) == pytest.approx(max(FLOOR_S, PATIENCE * remembered))


def test_the_next_of_a_size_that_was_given_up_may_take_twice_as_long(clock):
    """A large model on a slow machine: its first step does not hang, and must not meet the same limit again."""
    clock.sent(0, 2048, 0.0)
    overdue = clock.overdue(FIRST_STEP_LIMIT_S + 1.0)
    assert (overdue.step, overdue.num_tokens, overdue.limit_s) == (0, 2048, FIRST_STEP_LIMIT_S)
    assert "step 0 of 2048 tokens for 121.0 s, the limit is 120.0 s" in str(overdue)
    assert limit_s(StepClock(FLOOR_S, clock), 2048) == 2 * FIRST_STEP_LIMIT_S


def test_time_in_which_nobody_looked_is_no_steps_time(clock):
    run(clock, 1.0, 8, at=0.0)
    clock.sent(1, 8, 10.0)
    clock.paused(60.0, 71.0)
    assert clock.overdue(71.0) is None
    clock.answered(1, 71.5)
    assert limit_s(clock, 8) == PATIENCE * 1.5, "and nothing wrong is learned from it"


def slowness_of(paces, model, *took_s, num_tokens=8):
    """An executor's slowness after steps that took so long."""
    slowness = 1.0
    for each in took_s:
        slowness = paces.compared(model, slowness, Answered(num_tokens, each, each))
    return slowness


def test_who_takes_twice_as_long_is_twice_as_slow():
    paces, slowness = Paces(), {0.01: 1.0, 0.02: 1.0}
    for _ in range(400):
        for took_s, before in slowness.items():
            slowness[took_s] = paces.compared("m", before, Answered(8, took_s, took_s))
    assert slowness[0.01] == pytest.approx(0.01 / 0.015, rel=0.02)
    assert slowness[0.02] == pytest.approx(0.02 / 0.015, rel=0.02)


def test_steps_are_compared_with_those_of_their_size_and_model():
    paces = Paces()
    assert slowness_of(paces, "small", *[0.01] * 50) == 1.0
    assert slowness_of(paces, "small", *[1.0] * 50, num_tokens=4096) == 1.0
    assert slowness_of(paces, "large", *[0.3] * 50) == 1.0
    assert slowness_of(paces, "small", *[0.3] * 50) > 1.5


def test_one_step_makes_little_slower():
    paces = Paces()
    assert slowness_of(paces, "m", *[0.01] * 50, 100.0) == pytest.approx(1 + (MOST_SLOWNESS - 1) * PACE_SHARE)
