"""When a request that found the queue full is told to come again."""

import pytest

from scheduler_svc.core.scheduling.queue_pace import MAX_RETRY_AFTER_S, QueuePace

FULL = 100


@pytest.fixture
def pace():
    """Of a queue that has just been filled."""
    pace = QueuePace()
    pace.accepted(FULL, FULL, 0.0)
    return pace


def drain(pace: QueuePace, per_s: int, until_s: int) -> None:
    """As many leave as come, each second."""
    for second in range(1, until_s + 1):
        pace.accepted(per_s, FULL, float(second))


def test_who_is_refused_together_is_told_different_times(pace):
    drain(pace, 5, 10)
    told = [pace.retry_after_s(1, FULL, FULL, 10.0) for _ in range(50)]
    assert told == [(number + 4) // 5 for number in range(1, 51)]


def test_a_request_of_several_sequences_waits_for_as_many(pace):
    drain(pace, 5, 10)
    assert pace.retry_after_s(20, FULL, FULL, 10.0) == 4


def test_those_who_were_let_in_since_are_not_waited_for(pace):
    drain(pace, 5, 10)
    assert [pace.retry_after_s(1, FULL, FULL, 10.0) for _ in range(20)][-1] == 4
    pace.accepted(15, FULL, 13.0)
    assert pace.retry_after_s(1, FULL, FULL, 13.0) == 2  # five of them, and this one


def test_a_queue_that_stands_still_is_asked_less_and_less_often(pace):
    told = [pace.retry_after_s(1, FULL, FULL, at) for at in (0.0, 2.0, 20.0, 1000.0)]
    assert told == [1, 4, MAX_RETRY_AFTER_S, 1]  # nobody has looked for a quarter of an hour: nothing is known


def test_what_comes_back_from_an_executor_makes_the_queue_no_faster(pace):
    drain(pace, 5, 10)
    pace.accepted(0, FULL + 25, 10.0)
    assert pace.retry_after_s(1, FULL + 25, FULL, 10.0) == 1
    assert pace.retry_after_s(9, FULL + 25, FULL, 10.0) == 4  # 25 left in 10 s, not 50


def test_the_line_is_no_longer_than_the_queue(pace):
    drain(pace, 50, 10)
    for _ in range(10_000):
        told = pace.retry_after_s(1, FULL, FULL, 10.0)
    assert told == FULL // 50
