"""How long an executor may take for a step, learned from its own steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.step_clock import DECAY, DEFAULT_FLOOR_S, FIRST_STEP_LIMIT_S, PATIENCE, StepClock

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


def test_nothing_is_overdue_while_no_plan_is_in_flight(clock):
    assert clock.overdue_s(1e9) is None
    run(clock, 1.0, 8, at=0.0)
    assert clock.overdue_s(1e9) is None


def test_the_first_step_may_compile_kernels(clock):
    clock.sent(0, 8, 5.0)
    assert clock.overdue_s(5.0 + FIRST_STEP_LIMIT_S) is None
    assert clock.overdue_s(6.0 + FIRST_STEP_LIMIT_S) == FIRST_STEP_LIMIT_S + 1.0


def test_a_step_may_take_ten_times_the_longest_of_its_size(clock):
    run(clock, 0.5, 8, at=0.0)
    clock.sent(1, 15, 100.0)  # as many binary digits as 8
    assert clock.overdue_s(100.0 + PATIENCE * 0.5) is None
    assert clock.overdue_s(100.5 + PATIENCE * 0.5) == pytest.approx(PATIENCE * 0.5 + 0.5)


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
    assert clock.overdue_s(20.9) is None
    assert clock.overdue_s(21.5) == 10.5


def test_only_the_oldest_plan_can_be_overdue(clock):
    run(clock, 1.0, 8, at=0.0)
    clock.sent(1, 8, 10.0)
    clock.sent(2, 8, 19.0)
    assert clock.overdue_s(20.5) == 10.5
    clock.answered(1, 20.5)
    assert clock.overdue_s(30.0) is None


def test_an_answer_to_another_step_than_the_oldest_is_not_counted(clock):
    run(clock, 1.0, 8, at=0.0)
    clock.sent(1, 8, 10.0)
    clock.sent(2, 8, 10.0)
    for wrong in (0, 2, 7):
        clock.answered(wrong, 15.0)
    assert clock.num_answered == 1
    assert clock.overdue_s(20.5) == 10.5
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
