"""What chance adds to a forecast (`core/autoscaling/forecast.py`), and to what is wanted."""

import math

import pytest

from scheduler_svc.core.autoscaling.autoscaler import RETURN_S
from scheduler_svc.core.autoscaling.forecast import Forecast, Load
from scheduler_svc.core.autoscaling.step_times import StepCost
from tests.scheduler.test_autoscaling_state_machine import COST, ONE_BUSY, QUIET, Fleet, load


def with_noise(rate: float, noise: float) -> Load:
    some = load(rate)
    return some._replace(demand=some.demand._replace(noise_per_s=noise))


def test_prompts_that_vary_wait_three_times_the_mean_wait():
    """Pollaczek and Khinchine: the mean wait is the variance that arrives, as work, by twice the idle share."""
    even, varied = load(1.0), load(1.0)
    even = even._replace(demand=even.demand._replace(burst=0.0, lasting_burst=0.0))
    varied = varied._replace(demand=varied.demand._replace(burst=1e8, lasting_burst=1e8))
    speed = 2048 / COST.seconds(2048, 0)
    wait_s = 1e8 / speed**2 / (2 * (1 - 1000 / speed))
    more_s = Forecast(varied, 1.0).outlook(1, (), 0.0).ttft_s - Forecast(even, 1.0).outlook(1, (), 0.0).ttft_s
    assert more_s == pytest.approx(3 * wait_s)


def test_as_many_as_there_is_memory_for_on_average_are_too_many_at_times():
    """Ten a second that stay for six seconds, and room for sixty: often more are there, by the square root."""
    stay_s, room = 6.0, 60
    usual = load(10.0, cost=StepCost(0.03, 1e-12, 0.0), max_num_seqs=100.0, pool_blocks=room * (1100 / 16 + 0.5))
    usual = usual._replace(demand=usual.demand._replace(burst=0.0, lasting_burst=0.0))
    tight = Forecast(usual, 10.0).outlook(1, (), 0.0)
    ample = Forecast(usual._replace(pool_blocks=2 * usual.pool_blocks), 10.0).outlook(1, (), 0.0)
    assert tight.is_memory
    assert not ample.is_memory
    assert tight.ttft_s - ample.ttft_s == pytest.approx(math.sqrt(room) / room * stay_s, rel=0.01)


def test_a_rate_that_is_not_certain_wants_more():
    fleet = Fleet()
    fleet.run(RETURN_S, load(QUIET))
    assert fleet.run(60, with_noise(0.9 * ONE_BUSY, 0.0)).wanted == 1
    assert fleet.run(1, with_noise(0.9 * ONE_BUSY, 2.0)).wanted > 1


def test_a_rate_that_is_not_certain_keeps_executors():
    for noise, wanted in ((0.0, 1), (2.0, 2)):
        fleet = Fleet(ready=2)
        fleet.run(RETURN_S, load(QUIET))
        fleet.run(900, with_noise(0.8 * ONE_BUSY, noise))
        assert [number for _, number in fleet.changes()] == [1] * (wanted == 1)


def test_what_the_journal_brings_is_measured_by_its_own_lengths():
    """Nothing has arrived in this life, and short prompts wait: the same is wanted as when lengths are known."""
    waits = load(0.0, num_waiting=1000, waiting_tokens=200_000, held_blocks=4000.0)
    known = waits._replace(demand=waits.demand._replace(prompt_tokens=200.0))
    unknown = waits._replace(demand=waits.demand._replace(prompt_tokens=0.0))
    outlooks = [Forecast(each, 0.0).outlook(1, (), 0.0) for each in (known, unknown)]
    assert outlooks[0] == outlooks[1]
    few = known._replace(num_waiting=2, waiting_tokens=100_000)
    assert Forecast(few, 0.0)._waits(1, (), 0.0)[1] <= 2 * Forecast(few, 0.0)._all_s, "no more than wait"
