"""Executors that only ever fail are kept out for longer and longer."""

from scheduler_svc.core.fleet.probation import FIRST_BREAK_S, FREE_FAILURES, LONGEST_BREAK_S, MAX_NAMES, Probation


def fail(probation, name="a", now=0.0, *, times=1, worked=False):
    """The break that the last of so many failures gives."""
    return [probation.failed(name, now, worked=worked) for _ in range(times)][-1]


def test_the_first_failures_cost_nothing():
    probation = Probation()
    assert fail(probation, times=FREE_FAILURES) == 0.0
    assert not probation.is_out("a", 0.0)


def test_then_each_break_is_twice_as_long_up_to_the_longest():
    probation = Probation()
    fail(probation, times=FREE_FAILURES)
    breaks = [fail(probation) for _ in range(8)]
    assert breaks[:5] == [FIRST_BREAK_S * 2**i for i in range(5)]
    assert breaks[5:] == [LONGEST_BREAK_S] * 3
    assert fail(probation, times=2000) == LONGEST_BREAK_S


def test_a_break_ends_when_its_time_is_up():
    probation = Probation()
    fail(probation, now=50.0, times=FREE_FAILURES + 1)
    assert probation.is_out("a", 50.0 + FIRST_BREAK_S - 0.01)
    assert not probation.is_out("a", 50.0 + FIRST_BREAK_S)
    assert not probation.is_out("b", 50.0), "another executor has nothing to do with it"


def test_a_step_that_was_answered_makes_good_for_everything():
    probation = Probation()
    fail(probation, times=FREE_FAILURES + 2)
    assert fail(probation, worked=True) == 0.0
    assert not probation.is_out("a", 0.0)
    assert fail(probation, times=FREE_FAILURES) == 0.0


def test_who_left_in_order_starts_afresh():
    probation = Probation()
    fail(probation, times=FREE_FAILURES + 2)
    probation.forgive("a")
    assert not probation.is_out("a", 0.0)
    assert fail(probation, times=FREE_FAILURES) == 0.0
    probation.forgive("never seen")


def test_only_so_many_names_are_remembered_and_those_that_failed_longest_ago_go_first():
    probation = Probation()
    fail(probation, "forgotten", times=FREE_FAILURES + 1)
    fail(probation, "kept", times=FREE_FAILURES + 1)
    for i in range(MAX_NAMES - 1):
        fail(probation, f"other {i}")
    assert not probation.is_out("forgotten", 0.0)
    assert probation.is_out("kept", 0.0)
