"""Deadlines come in their order, and those of sequences that have ended are forgotten."""

from array import array

from scheduler_svc.core.scheduling.deadlines import FEW, Deadlines
from scheduler_svc.core.sequence import State, new_sequences
from tests.support.submits import PROMPT, submit


def sequence(arrival, deadline):
    return new_sequences(submit(str(arrival)), array("i", PROMPT), 1, arrival, deadline)[0]


def test_they_come_in_their_order_and_only_those_of_open_sequences():
    deadlines = Deadlines()
    late, none, early, ended = (sequence(i, deadline) for i, deadline in enumerate((3.0, None, 1.0, 2.0)))
    for each in (late, none, early, ended):
        deadlines.watch(each)
    ended.state = State.FINISHED
    assert list(deadlines.passed(0.9)) == []
    assert list(deadlines.passed(3.0)) == [early, late]
    assert list(deadlines.passed(1e9)) == []


def test_those_of_ended_sequences_are_forgotten():
    deadlines = Deadlines()
    for i in range(5 * FEW):
        deadlines.watch(each := sequence(i, 86400.0))
        each.state = State.FINISHED
        assert len(deadlines) <= FEW
