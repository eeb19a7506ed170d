"""How many executors the core wants: what it measures, its report, its options, and the whole core in virtual time."""

from collections.abc import Iterable

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.rig.workloads import MAX_TOKEN_ID, WorkloadRequest, upper_halves
from benchmarks.scheduler.fleet_simulation import FleetSimulation
from benchmarks.scheduler.scaling_rules import Ours
from common import messages as m
from scheduler_svc.__main__ import main
from scheduler_svc.core.autoscaling.autoscaler import RETURN_S
from scheduler_svc.core.autoscaling.load import MEAN_S, LoadMeter
from scheduler_svc.core.autoscaling.settings import ScaleSettings, WrongScale, scale_settings
from scheduler_svc.core.autoscaling.watch import SETTLE_S
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.requests.group_commit import JournalState
from tests.support.hello import LIMITS
from tests.support.service import Service, restart

# --- what is measured ---


def decoding(num_answers: int) -> Service:
    """A service with an executor that decodes so many answers."""
    service = Service()
    service.join("one")
    for i in range(num_answers):
        service.submit(str(i), max_tokens=30)
    service.turn(2)
    return service


def test_prompts_count_whole_and_decoding_by_the_share_of_lanes_or_memory_in_use():
    service = decoding(4)
    (executor,) = service.core.scheduler.executors
    meter = LoadMeter(service.core.scheduler.stats)
    assert meter.look(0, 1.0) is None, "no step was answered"
    for second in range(2, 300):
        meter.answered(executor, tokens=4, seconds=1.0)
        load = meter.look(0, float(second))
    assert load is not None
    assert (load.busy, load.prompts) == (pytest.approx(4 / LIMITS.max_num_seqs, rel=0.01), 0.0)
    for second in range(300, 300 + int(10 * MEAN_S)):
        meter.answered(executor, tokens=40, seconds=0.5)
        load = meter.look(0, float(second))
    assert load is not None
    assert load.prompts == pytest.approx(0.5 * 36 / 40, rel=0.01)
    assert load.busy == pytest.approx(0.5 * (36 / 40 + 4 / 40 * 4 / LIMITS.max_num_seqs), rel=0.01)


def test_an_executor_that_has_refused_a_sequence_is_full():
    service = decoding(LIMITS.max_num_seqs)
    (executor,) = service.core.scheduler.executors
    assert len(executor.running) < LIMITS.max_num_seqs, "memory is short"
    meter = LoadMeter(service.core.scheduler.stats)
    for second in range(1, 300):
        meter.answered(executor, tokens=len(executor.running), seconds=1.0)
        load = meter.look(0, float(second))
    assert load is not None
    assert (load.busy, load.prompts) == (pytest.approx(1.0, rel=0.01), 0.0)


def test_what_waits_takes_what_others_took():
    """Three prompt tokens of each of four sequences were begun, and took ten seconds."""
    service = decoding(4)
    (executor,) = service.core.scheduler.executors
    meter = LoadMeter(service.core.scheduler.stats)
    meter.answered(executor, tokens=10**6, seconds=10.0)
    for second in range(1, 301):
        load = meter.look(600, float(second))
    assert load is not None
    assert load.waiting_s == pytest.approx(600 * 10 / 12, rel=0.01)
    assert load.prompt_s == pytest.approx(10 / 4, rel=0.01)


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


def test_the_least_useful_executor_is_drained_first():
    """One whose answer is late; then those with nothing to move; of those the one whose cache is asked for least, then
    the youngest."""
    service = Service(scale=ScaleSettings(1, 5, 2.0))
    service.join("busy")
    service.submit("a", max_tokens=100)
    service.turn(3)
    for name in ("asked for", "old", "young"):
        service.join(name)
    service.wait(SETTLE_S + 1)
    service.core.scheduler.executors[1].num_hit_tokens += 5000
    service.wait(2)
    assert service.core.scale_report().drain_first == ["busy", "young", "old", "asked for"]
    service.turn(3)
    service.wait(1)
    assert service.core.scale_report().drain_first == ["young", "old", "asked for", "busy"]


def test_reading_the_journal_is_no_time_in_which_executors_come_back():
    service = Service(scale=ScaleSettings(1, 8, 2.0))
    service.now += 100.0  # from the core's start to the first tick
    service.wait(1)
    for name in ("a", "b", "c"):
        service.join(name)
    assert service.say(m.StatusQuery(query_id=1)).report.scale is None
    service.wait(SETTLE_S)
    scale = service.say(m.StatusQuery(query_id=1)).report.scale
    assert (scale.wanted, scale.reason) == (3, "found")


@pytest.mark.parametrize("is_second_life", [False, True])
def test_only_work_of_an_earlier_life_delays_the_number(is_second_life):
    """That life may have ordered executors for it; for what comes to the first life, none can be starting."""
    scale = ScaleSettings(1, 8, 2.0)
    service = Service(journal=JournalState.OK, scale=scale)
    service.submit("a", max_tokens=20, is_resumable=True)
    if is_second_life:
        service, _ = restart([service.write()], scale=scale)
    service.wait(SETTLE_S + 2)
    assert (service.say(m.StatusQuery(query_id=1)).report.scale is None) == is_second_life
    service.wait(RETURN_S)
    assert service.metric("baton_executors_wanted") == 1


def test_once_a_number_was_told_there_is_one():
    service, _ = restart([Service(journal=JournalState.OK).write()], scale=ScaleSettings(0, 8, 2.0))
    service.wait(SETTLE_S + 2)
    service.submit("a", max_tokens=20)
    service.wait(1)
    assert service.metric("baton_executors_wanted") == 1


def test_a_stopped_scheduler_holds_no_order_for_late():
    service = Service(scale=ScaleSettings(0, 8, 2.0))
    service.wait(SETTLE_S + 1)
    service.submit("a", max_tokens=20)
    service.wait(2)
    assert service.metric("baton_executors_wanted") == 1
    service.now += 1000.0  # SIGSTOP
    service.wait(5)
    assert service.metric("baton_executors_wanted") == 1


def test_what_no_ready_executor_fits_orders_none():
    """A large executor is lost, and its long requests wait for it: small ones would not help them."""
    service = Service(scale=ScaleSettings(1, 8, 2.0), step_s=0.1)
    service.join("small")
    service.join("large", num_blocks=8 * LIMITS.num_blocks, max_model_len=8 * LIMITS.max_model_len)
    slow_down(service, "small")
    slow_down(service, "large")
    for i in range(10):
        service.submit(f"short {i}")
        service.turn()
    service.wait(RETURN_S + 1)
    assert service.metric("baton_executors_wanted") == 2
    service.lose("large")
    for i in range(100):
        service.submit(f"long {i}", prompt=range(150), max_tokens=4 * LIMITS.max_model_len)
    service.wait(10)
    assert service.metric("baton_executors_wanted") == 2, "the lost one, and no more"
    service.lose("small")
    service.wait(10)
    assert service.metric("baton_executors_wanted") > 2, "the first executor that comes may fit"


def slow_down(service: Service, name: str) -> None:
    """An executor says that each step took more than a day."""
    run = service.executors[name].run
    service.executors[name].run = lambda plan: msgspec.structs.replace(run(plan), compute_us=10**11)  # type: ignore


def test_an_executor_that_makes_up_its_times_is_bounded_by_the_clock():
    service = Service(scale=ScaleSettings(1, 8, 2.0), step_s=0.001)
    service.join("liar")
    slow_down(service, "liar")
    for i in range(40):
        service.submit(str(i), max_tokens=20)
    service.turn()
    service.wait(RETURN_S)
    assert service.core.scheduler.stats.answers == 40
    assert service.metric("baton_executors_wanted") == 1


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


def simulate(requests: list[WorkloadRequest], most: int = 4, start_s: float = 10.0, size: int = 1) -> FleetSimulation:
    config = CoreConfig(scale=ScaleSettings(1, most, 2.0))
    simulation = FleetSimulation(config, Ours(), requests, start_s=start_s, size=size)
    simulation.run()
    assert len(simulation.seen.first_token) == len(requests), "every request was served"
    return simulation


def requests_of(times: Iterable[float], prompt: int, output: int) -> list[WorkloadRequest]:
    rng = np.random.default_rng(0)
    prompts = [(at, rng.integers(0, MAX_TOKEN_ID, prompt, np.int32)) for at in times]
    return [WorkloadRequest(at, tokens, output, max_tokens=1510, ends_by="stop") for at, tokens in prompts]


def poisson(rate: float, seconds: float, seed: int = 1) -> list[float]:
    gaps = np.random.default_rng(seed).exponential(1 / rate, int(2 * rate * seconds))
    return [at for at in np.cumsum(gaps).tolist() if at < seconds]


def burst(rate: float, from_s: float, seconds: float) -> list[WorkloadRequest]:
    """Requests of 512 to 1,024 tokens at a steady rate."""
    count = int(rate * seconds)
    return [
        WorkloadRequest(from_s + i / rate, request.prompt, request.num_output, max_tokens=256, ends_by="stop")
        for i, request in enumerate(upper_halves(count, 1024, 200))
    ]


def test_the_real_core_asks_for_executors_when_they_are_needed_and_lets_them_go():
    """Ten seconds of start; a minute that one executor cannot bear, between loads that it can."""
    seen = simulate([*burst(0.5, 0, 60), *burst(14.0, 60, 60), *burst(0.3, 120, 240)]).seen
    sizes = [wanted for _, wanted in seen.changes]
    assert max(sizes) >= 3
    assert sizes[-1] == 1
    assert sizes == sorted(sizes[: sizes.index(max(sizes)) + 1]) + sorted(sizes[sizes.index(max(sizes)) + 1 :])[::-1]
    assert 60 <= seen.changes[0][0] < 80
    assert max(seen.first_token[-60:]) < 1.0, "what the burst left has been worked off"


def test_what_runs_keeps_its_memory_when_fewer_are_wanted():
    """A hundred long answers in two pools, then hardly any request: one pool alone would stop half of the streams."""
    requests = requests_of(np.arange(10, 40, 0.3), 500, 1500) + requests_of(np.arange(50, 400, 5.0), 200, 50)
    requests.sort(key=lambda request: request.arrival_s)
    simulation = simulate(requests, start_s=20.0, size=2)
    assert simulation.core.scheduler.stats.preemptions == 0
    assert max(simulation.seen.first_token) < 2.0
    assert [wanted for _, wanted in simulation.seen.changes] == [1], "when those answers have ended"


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "sizes"), [(3.0, []), (4.0, [2])])
def test_a_steady_load_does_not_flap(rate, sizes):
    """Arrivals at random, of which one executor can bear five a second: one more is wanted once, or none."""
    seen = simulate(requests_of(poisson(rate, 1500.0), 600, 200), most=8, start_s=60.0).seen
    assert [wanted for _, wanted in seen.changes] == sizes
    assert max(seen.first_token) < 2.0
