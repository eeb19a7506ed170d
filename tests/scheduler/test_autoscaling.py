"""How many executors the core wants: its measures, its report, its options, and the whole core in virtual time."""

import random
from collections.abc import Iterable

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.rig.workloads import MAX_TOKEN_ID, WorkloadRequest, upper_halves
from benchmarks.scheduler.fleet_simulation import FleetSimulation
from benchmarks.scheduler.scaling_rules import Ours
from common import messages as m
from scheduler_svc.__main__ import main
from scheduler_svc.core.autoscaling.autoscaler import SETTLE_S
from scheduler_svc.core.autoscaling.demand import PRIOR_OUTPUT, Arrivals, Totals
from scheduler_svc.core.autoscaling.settings import ScaleSettings, WrongScale, scale_settings
from scheduler_svc.core.autoscaling.step_times import MIN_STEPS, StepTimes
from scheduler_svc.core.autoscaling.usefulness import MOVE_UNIT, Usefulness, least_useful_first
from scheduler_svc.core.config import CoreConfig
from tests.support.service import Service

# --- what is measured ---


def test_the_cost_of_steps_is_found():
    times, rng = StepTimes(), random.Random(0)
    for _ in range(500):
        tokens, blocks = rng.choice([20, 60, 2048]), rng.randint(0, 3000)
        times.answered(tokens, blocks, 0.035 + 1.4e-4 * tokens + 6e-6 * blocks)
    cost = times.cost()
    assert cost is not None
    assert cost == pytest.approx((0.035, 1.4e-4, 6e-6), rel=0.02)
    assert cost.seconds(1000, 1000) == pytest.approx(0.181, rel=0.02)


def test_steps_that_do_not_tell_costs_apart_still_give_what_such_a_step_takes():
    times = StepTimes()
    assert times.cost() is None
    for _ in range(MIN_STEPS):
        times.answered(100, 50, 0.02)
    cost = times.cost()
    assert cost is not None
    assert min(cost) >= 0
    assert cost.seconds(100, 50) == pytest.approx(0.02, rel=0.01)


def test_faster_executors_are_noticed():
    times = StepTimes()
    for step in range(20_000):
        times.answered(100 + step % 7, step % 11, 0.04 if step < 10_000 else 0.01)
    cost = times.cost()
    assert cost is not None
    assert cost.seconds(103, 5) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("stalled", [0, 3, 300])
@pytest.mark.parametrize("stall_s", [5.0, 1e5])
def test_one_step_that_took_long_is_not_the_cost_of_steps(stalled, stall_s):
    times, rng = StepTimes(), random.Random(1)
    for step in range(stalled + 60):
        tokens, blocks = rng.choice([20, 30, 2048]), rng.randint(0, 3000)
        times.answered(tokens, blocks, stall_s if step == stalled else 0.03 + 1e-4 * tokens)
        times.cost()
    cost = times.cost()
    assert cost is not None
    assert cost.seconds(25, 1500) < 0.08


def arrive(rates: list[float], *, prompt: int = 100) -> Arrivals:
    """So many sequences arrive in each second."""
    arrivals, count = Arrivals(Totals(), 0.0), 0.0
    for second, rate in enumerate(rates, 1):
        count += rate
        arrivals.sample(Totals(int(count), int(count) * prompt, 0, 0, int(count), int(count) * 50), float(second))
    return arrivals


def test_rates_and_lengths_are_followed():
    demand = arrive([4.0] * 300).demand()
    assert demand.sequences_per_s == pytest.approx(4.0)
    assert demand.prompt_tokens == pytest.approx(100)
    assert demand.output_tokens == pytest.approx(50, rel=0.02)
    assert demand.growth_per_s2 == 0.0
    assert arrive([]).demand().output_tokens == PRIOR_OUTPUT


def test_growth_is_told_from_chance():
    assert arrive([10.0 + second / 10 for second in range(400)]).demand().growth_per_s2 == pytest.approx(0.1, rel=0.3)
    rng = random.Random(1)
    noisy = arrive([float(sum(rng.random() < 0.01 for _ in range(500))) for _ in range(600)]).demand()
    assert noisy.growth_per_s2 < 0.01
    assert 0.1 < noisy.noise_per_s < 1.5


# --- which one goes ---


def test_the_least_useful_executor_is_drained_first():
    executors = [
        Usefulness("busy", 1, is_late=False, moving_tokens=10 * MOVE_UNIT, hit_tokens=0.0),
        Usefulness("asked for", 2, is_late=False, moving_tokens=0, hit_tokens=5000.0),
        Usefulness("old", 3, is_late=False, moving_tokens=0, hit_tokens=0.0),
        Usefulness("young", 4, is_late=False, moving_tokens=0, hit_tokens=0.0),
        Usefulness("hangs", 5, is_late=True, moving_tokens=20 * MOVE_UNIT, hit_tokens=9000.0),
        Usefulness("a few", 6, is_late=False, moving_tokens=10, hit_tokens=0.0),
    ]
    assert least_useful_first(executors) == ["hangs", "young", "old", "asked for", "a few", "busy"]


# --- the report ---


def test_the_report_and_the_metrics_say_what_is_wanted():
    service = Service(scale=ScaleSettings(0, 3, 2.0))
    service.wait(SETTLE_S - 1)
    assert service.say(m.StatusQuery(query_id=1)).report.scale is None
    assert "\nbaton_executors_wanted " not in service.say(m.MetricsQuery(query_id=1)).text.decode()
    service.wait(3)
    service.submit("a", max_tokens=20)
    service.wait(2)
    scale = service.say(m.StatusQuery(query_id=1)).report.scale
    assert (scale.wanted, scale.reason, scale.drain_first) == (1, "first", [])
    assert scale.forecast_ttft_s > 10, "as long as a start takes"
    assert service.metric("baton_executors_wanted") == 1
    assert service.metric("baton_forecast_ttft_seconds") == pytest.approx(scale.forecast_ttft_s)
    line = service.events("executors wanted")[-1]
    assert (line.facts["wanted"], line.facts["before"], line.facts["waiting"]) == (1, 0, 1)
    service.join("one")
    service.turn()
    service.wait(2)
    scale = service.say(m.StatusQuery(query_id=1)).report.scale
    assert (scale.wanted, scale.drain_first) == (1, ["one"])
    assert scale.forecast_ttft_s < 1
    service.wait(600)
    assert service.metric("baton_executors_wanted") == 0
    assert service.events("executors wanted")[-1].facts["reason"] == "idle"


def test_without_the_option_nothing_is_reported():
    service = Service()
    service.wait(SETTLE_S + 2)
    assert service.say(m.StatusQuery(query_id=1)).report.scale is None
    assert not service.events("executors wanted")


# --- options ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-executors", "2"], "--min-executors 2 needs --max-executors"),
        (["--target-ttft", "1.5"], "--target-ttft 1.5 needs --max-executors"),
        (["--min-executors", "5", "--max-executors", "4"], "--min-executors 5 is more than --max-executors 4"),
        (["--max-executors", "0"], "--max-executors"),
        (["--max-executors", "257"], "--max-executors"),
        (["--max-executors", "2", "--target-ttft", "0"], "--target-ttft"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    result = CliRunner().invoke(main, [*options, "--no-journal", "--frontends", "0"])
    assert result.exit_code == 2
    assert message in result.output


def test_options_become_settings():
    assert scale_settings(None, None, None) is None
    assert scale_settings(None, 4, None) == ScaleSettings(1, 4, 2.0)
    assert scale_settings(0, 4, 0.5) == ScaleSettings(0, 4, 0.5)
    with pytest.raises(WrongScale, match="more than"):
        scale_settings(3, 2, None)


# --- the whole core in virtual time ---


def burst(rate: float, from_s: float, seconds: float) -> list[WorkloadRequest]:
    """Requests of 512 to 1,024 tokens at a steady rate."""
    count = int(rate * seconds)
    return [
        WorkloadRequest(from_s + i / rate, request.prompt, request.num_output, max_tokens=256, ends_by="stop")
        for i, request in enumerate(upper_halves(count, 1024, 200))
    ]


def test_the_real_core_asks_for_executors_when_they_are_needed_and_lets_them_go():
    """Ten seconds of start; a minute that one executor cannot bear, between loads that it can."""
    requests = [*burst(0.5, 0, 60), *burst(14.0, 60, 60), *burst(0.3, 120, 240)]
    config = CoreConfig(scale=ScaleSettings(1, 4, 2.0))
    simulation = FleetSimulation(config, Ours(), requests, start_s=10.0, size=1)
    simulation.run()
    assert len(simulation.seen.first_token) == len(requests), "every request was served"
    sizes = [wanted for _, wanted in simulation.seen.changes]
    assert max(sizes) >= 3
    assert sizes[-1] == 1
    assert sizes == sorted(sizes[: sizes.index(max(sizes)) + 1]) + sorted(sizes[sizes.index(max(sizes)) + 1 :])[::-1]
    assert 60 <= simulation.seen.changes[0][0] < 70
    assert max(simulation.seen.first_token[-60:]) < 1.0, "what the burst left has been worked off"


def requests_of(times: Iterable[float], prompt: int, output: int) -> list[WorkloadRequest]:
    rng = np.random.default_rng(0)
    prompts = [(at, rng.integers(0, MAX_TOKEN_ID, prompt, np.int32)) for at in times]
    return [WorkloadRequest(at, tokens, output, max_tokens=1510, ends_by="stop") for at, tokens in prompts]


def test_what_runs_keeps_its_memory_when_fewer_are_wanted():
    """A hundred long answers in two pools, then hardly any request: one pool alone would stop half of the streams."""
    requests = requests_of(np.arange(10, 40, 0.3), 500, 1500) + requests_of(np.arange(50, 400, 5.0), 200, 50)
    requests.sort(key=lambda request: request.arrival_s)
    simulation = FleetSimulation(CoreConfig(scale=ScaleSettings(1, 4, 2.0)), Ours(), requests, start_s=20.0, size=2)
    simulation.run()
    assert simulation.core.scheduler.stats.preemptions == 0
    assert max(simulation.seen.first_token) < 2.0
    assert [wanted for _, wanted in simulation.seen.changes] == [1], "when those answers have ended"
