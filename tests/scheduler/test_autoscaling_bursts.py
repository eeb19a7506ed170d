"""What comes once orders nothing but its own work; what goes on does (`core/autoscaling/demand.py`, `forecast.py`)."""

import math

import pytest

from scheduler_svc.core.autoscaling.autoscaler import Autoscaler
from scheduler_svc.core.autoscaling.demand import FAST_S, Arrivals, Demand, Totals
from tests.scheduler.test_autoscaling_state_machine import COST, START_S, USUAL, load

PROMPT = 1000
SPEED = 2048 / COST.seconds(2048, 0)  # prompt tokens a second of one executor
BEGIN_S = 300  # of quiet before
QUIET_EVERY_S = 5


def wanted(batches: dict[int, tuple[int, int]], seconds: int = 700) -> list[tuple[int, int]]:
    """When another number is wanted, and which, by what arrives: a request every five seconds, and batches (sequences
    and the tokens of each, by their seconds), which executors compute at full speed."""
    arrivals, machine = Arrivals(Totals(), 0.0), Autoscaler(USUAL, 0.0)
    machine.started_in(START_S)
    ready, joins, changes = 1, list[float](), list[tuple[int, int]]()
    count = tokens = 0
    waiting = 0.0
    for second in range(1, seconds):
        for sequences, length in [(int(second % QUIET_EVERY_S == 0), PROMPT), batches.get(second, (0, 0))]:
            count, tokens, waiting = count + sequences, tokens + sequences * length, waiting + sequences * length
        arrivals.sample(Totals(count, tokens, tokens, 0, count, count * 200), float(second))
        ready, joins = ready + sum(at <= second for at in joins), [at for at in joins if at > second]
        now = load(0.0)._replace(
            demand=arrivals.demand(), num_waiting=int(waiting / PROMPT), waiting_tokens=int(waiting)
        )
        decision = machine.decide(now, ready, is_busy=True, now=float(second))
        if decision is not None and decision.wanted > decision.before:
            joins += [second + START_S] * (decision.wanted - decision.before)
        if decision is not None and decision.wanted != decision.before:
            changes.append((second, decision.wanted))
        waiting = max(0.0, waiting - SPEED * ready)
    return changes


@pytest.mark.parametrize(("sequences", "length"), [(60, PROMPT), (200, PROMPT), (1, 100_000)])
def test_a_batch_that_is_worked_off_before_an_executor_could_come_orders_none(sequences, length):
    assert sequences * length / SPEED < START_S, "or one would help"
    assert wanted({BEGIN_S: (sequences, length)}) == []
    assert wanted({BEGIN_S: (sequences // 2 + 1, length // 2), BEGIN_S + 1: (sequences // 2, length)}) == []


def test_a_batch_that_takes_far_longer_than_a_start_orders_some():
    changes = wanted({BEGIN_S: (2000, PROMPT)})
    assert changes[0][0] == BEGIN_S
    assert changes[0][1] > 1


def test_batches_that_come_again_and_again_order_some():
    changes = wanted(dict.fromkeys(range(BEGIN_S, 700, 30), (150, PROMPT)))
    assert changes
    assert changes[0][1] > 1


def follow(rates: list[float]) -> Demand:
    arrivals, count = Arrivals(Totals(), 0.0), 0.0
    for second, rate in enumerate(rates, 1):
        count += rate
        arrivals.sample(Totals(int(count), int(count) * PROMPT, 0, 0, int(count), int(count) * 50), float(second))
    return arrivals.demand()


def test_more_arrivals_count_when_they_have_lasted():
    quiet = [1.0] * BEGIN_S
    assert follow([*quiet, 60.0]).sequences_per_s < 3.0, "a batch"
    assert follow([*quiet, 10.0, 10.0]).sequences_per_s < 3.0
    jump = follow([*quiet, *[10.0] * 13])
    assert jump.sequences_per_s > 5.0
    assert jump.growth_per_s2 > 0
    assert follow([*quiet, *[10.0] * 200]).lasting_burst == pytest.approx(0.0, abs=1.0), "one jump is no burst"


def test_what_varies_for_long_keeps_its_variance():
    batches = follow([12.0 if second % 6 == 0 else 0.0 for second in range(600)])
    assert batches.lasting_burst == pytest.approx(batches.burst, rel=0.2)
    assert batches.noise_per_s > 2 * math.sqrt(batches.sequences_per_s / (2 * FAST_S)), "more than of single arrivals"
    assert follow([2.0] * 600).lasting_burst == pytest.approx(0.0, abs=1.0)
