"""What is learnt of how long a start takes, and what not (`core/autoscaling/orders.py`)."""

import pytest

from scheduler_svc.core.autoscaling.orders import DEFAULT_LEAD_S, GIVE_UP, LONGEST_LEAD_S, Orders

START_S = 40.0


def orders() -> Orders:
    some = Orders()
    some.started_in(START_S)
    return some


def test_a_start_takes_what_the_last_ones_took_and_no_less_than_an_executor_says():
    some = Orders()
    assert some.lead_s == DEFAULT_LEAD_S
    some.started_in(START_S)
    assert some.lead_s == START_S
    some.update(2, 0, 0.0, is_more=True)
    some.update(0, 2, 70.0)
    assert some.lead_s == 70.0
    for begin in (100.0, 200.0, 300.0):
        some.update(1, 0, begin, is_more=True)
        some.update(0, 1, begin + 10.0)  # it had been started before it was wanted
    assert some.lead_s == START_S


def test_an_executor_that_comes_back_tells_nothing_of_a_start():
    """A standby takes over in a second, a connection breaks and is there again."""
    some = orders()
    some.update(1, 0, 0.0, is_more=True)
    some.update(0, 1, 70.0)
    for begin in (100.0, 200.0, 300.0):
        some.update(1, 0, begin)
        some.update(0, 1, begin + 1.0)
    assert some.lead_s == 70.0


def test_a_swap_between_two_looks_fills_no_order():
    some = orders()
    some.update(1, 0, 0.0, is_more=True)
    some.update(1, 1, 10.0)
    assert some.joins(10.0) == (START_S - 10.0,)


def test_one_that_restarts_while_orders_are_stuck_teaches_nothing():
    some = orders()
    some.update(6, 0, 0.0, is_more=True)
    some.update(6, 0, 7200.0)
    assert some.num_stuck == 6
    some.update(7, 0, 7200.0)  # one of those that are there is lost
    some.update(6, 1, 7215.0)
    assert (some.num_stuck, some.lead_s) == (6, START_S)


def test_stuck_orders_that_are_filled_at_last_teach_no_more_than_that_they_were_late():
    some = orders()
    some.update(3, 0, 0.0, is_more=True)
    some.update(3, 0, 7200.0)
    assert some.num_stuck == 3
    some.update(0, 3, 7201.0)  # a node has been added
    assert some.lead_s == GIVE_UP * START_S
    some.started_in(10 * LONGEST_LEAD_S)
    assert some.lead_s == LONGEST_LEAD_S


def test_one_that_is_late_is_expected_a_part_of_its_age_later():
    some = orders()
    some.update(1, 0, 0.0, is_more=True)
    assert some.joins(100.0) == pytest.approx((25.0,))


def test_time_in_which_nothing_ran_makes_no_order_late():
    some = orders()
    some.update(5, 0, 0.0, is_more=True)
    some.paused(200.0)
    some.update(5, 0, 201.0)
    assert some.num_stuck == 0
    assert some.joins(201.0) == (START_S - 1.0,) * 5
