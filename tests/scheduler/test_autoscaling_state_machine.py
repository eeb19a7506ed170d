"""When more executors are wanted, and when fewer (`core/autoscaling/autoscaler.py`)."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from scheduler_svc.core.autoscaling.autoscaler import (
    DOWN_INTERVAL_S,
    MAX_HOLD_S,
    RETURN_S,
    SETTLE_S,
    Autoscaler,
    Decision,
)
from scheduler_svc.core.autoscaling.demand import Demand
from scheduler_svc.core.autoscaling.forecast import Load
from scheduler_svc.core.autoscaling.settings import ScaleSettings
from scheduler_svc.core.autoscaling.step_times import StepCost

COST = StepCost(step_s=0.03, token_s=1e-4, block_s=0.0)
QUIET = 0.05
ONE_BUSY = 4.0  # sequences a second: most of what one executor can do
START_S = 40.0
USUAL = ScaleSettings(1, 8, 2.0)


def load(rate: float, **fields: object) -> Load:
    """Arrivals of prompts of 1,000 tokens with answers of 200; an executor has room for about 60 of them."""
    demand = Demand(rate, 0.0, 0.0, 1000.0, 1.0, 200.0, rate * 1000.0**2, rate * 1000.0**2)
    usual: dict[str, object] = {
        "demand": demand,
        "cost": COST,
        "pool_blocks": 4000.0,
        "block_size": 16.0,
        "max_num_seqs": 64.0,
        "max_batch_tokens": 2048.0,
    }
    return Load(**(usual | fields))  # type: ignore[arg-type]


@dataclass
class Fleet:
    """Does what the state machine wants: executors come `start_s` after they were wanted.

    Attributes:
        comes: whether any comes at all.
        decisions: of each second.
    """

    settings: ScaleSettings = USUAL
    ready: int = 1
    start_s: float = START_S
    comes: bool = True
    now: float = 0.0
    is_busy: bool = True
    starting: list[float] = field(default_factory=list)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = Autoscaler(self.settings, self.now)
        if self.ready:
            self.machine.started_in(START_S)

    def second(self, load: Load) -> Decision | None:
        self.now += 1.0
        joined = [at for at in self.starting if self.comes and at <= self.now]
        for at in joined:
            self.starting.remove(at)
            self.ready += 1
            self.machine.started_in(START_S)
        decision = self.machine.decide(load, self.ready, is_busy=self.is_busy, now=self.now)
        if decision is not None:
            self.decisions.append((self.now, decision))
            while self.ready + len(self.starting) > decision.wanted:
                if self.starting:
                    self.starting.pop()
                else:
                    self.ready -= 1
            while self.ready + len(self.starting) < decision.wanted:
                self.starting.append(self.now + self.start_s)
        return decision

    def run(self, seconds: float, load: Load) -> Decision:
        for _ in range(int(seconds)):
            self.second(load)
        return self.decisions[-1][1]

    def changes(self) -> list[tuple[float, int]]:
        """When another number was wanted, and which."""
        return [(at, d.wanted) for at, d in self.decisions if d.wanted != d.before]


def test_nothing_is_wanted_in_the_first_seconds_and_then_what_was_found():
    fleet = Fleet(ready=4, is_busy=False)
    for _ in range(int(SETTLE_S) - 1):
        assert fleet.second(load(QUIET)) is None
    decision = fleet.second(load(QUIET))
    assert decision is not None
    assert (decision.wanted, decision.reason) == (4, "found")


@pytest.mark.parametrize("knows_cost", [True, False])
def test_a_new_life_ends_no_executor_that_starts_for_the_same_load(knows_cost):
    fleet = Fleet()
    fleet.run(RETURN_S, load(QUIET))
    wanted = fleet.run(5, load(4 * ONE_BUSY)).wanted
    assert len(fleet.starting) == wanted - 1 > 3
    fleet.machine = Autoscaler(USUAL, fleet.now)
    fleet.machine.started_in(START_S)
    for _ in range(int(START_S)):
        fleet.second(load(4 * ONE_BUSY)._replace(cost=COST if knows_cost else None))
        assert fleet.ready + len(fleet.starting) >= wanted
    assert fleet.ready == wanted


def test_once_a_number_was_told_there_is_one():
    fleet = Fleet(ScaleSettings(0, 4, 2.0), ready=0, is_busy=False)
    assert fleet.run(SETTLE_S, load(0.0)).wanted == 0
    fleet.is_busy = True
    decision = fleet.second(load(0.0)._replace(cost=None))
    assert decision is not None
    assert decision.wanted == 1


def test_a_pause_of_the_scheduler_orders_nothing_again():
    fleet = Fleet(comes=False)
    fleet.run(RETURN_S, load(QUIET))
    wanted = fleet.run(1, load(4 * ONE_BUSY)).wanted
    fleet.now += 200
    fleet.machine.paused(200)
    decision = fleet.run(1, load(4 * ONE_BUSY))
    assert (decision.wanted, decision.stuck, decision.on_the_way) == (wanted, 0, wanted - 1)


def test_the_first_executor_from_none_is_enough_only_if_the_forecast_says_so():
    fleet = Fleet(ScaleSettings(0, 8, 2.0), ready=0, is_busy=False)
    fleet.run(RETURN_S, load(0.0))
    fleet.ready, fleet.is_busy = 1, True
    assert fleet.run(1, load(4 * ONE_BUSY)).wanted > 3


def test_more_executors_than_may_be_are_found():
    fleet = Fleet(ScaleSettings(1, 2, 2.0), ready=3, is_busy=False)
    decision = fleet.run(SETTLE_S, load(0.0))
    assert (decision.wanted, decision.reason) == (2, "found")


def test_an_executor_that_comes_back_late_is_still_wanted():
    fleet = Fleet(ready=2, is_busy=False)
    fleet.run(SETTLE_S, load(QUIET))
    fleet.ready = 3
    assert fleet.run(1, load(QUIET)).wanted == 3
    fleet.run(RETURN_S, load(QUIET))
    fleet.ready = 6  # somebody has started more
    assert fleet.run(1, load(QUIET)).wanted == 3


def test_as_many_are_ordered_at_once_as_it_takes_and_no_more_for_the_same_need():
    fleet = Fleet()
    fleet.run(RETURN_S, load(QUIET))
    decision = fleet.run(1, load(4 * ONE_BUSY))
    assert decision.reason in ("time", "memory")
    assert decision.wanted > 4
    assert fleet.run(START_S - 2, load(4 * ONE_BUSY)).wanted == decision.wanted, "those on the way count"
    assert fleet.run(60, load(4 * ONE_BUSY)).wanted == decision.wanted


def test_the_reason_names_what_is_short():
    fleet = Fleet()
    fleet.run(RETURN_S, load(QUIET))
    assert fleet.run(1, load(QUIET, prefilling_tokens=2_000_000)).reason == "time"
    fleet = Fleet()
    fleet.run(RETURN_S, load(QUIET))
    # Sequences that wait are short of memory long before their prompts would take time.
    long_answers = load(0.2)
    crowd = long_answers._replace(
        demand=long_answers.demand._replace(output_tokens=5_000.0, prompt_tokens=10.0, burst=0.0),
        num_waiting=60,
        waiting_tokens=600,
        held_blocks=4000.0,
    )
    assert fleet.run(1, crowd).reason == "memory"


def test_a_burst_that_is_over_before_an_executor_could_come_orders_none():
    fleet = Fleet()
    fleet.run(RETURN_S, load(0.1))
    burst = load(0.1, num_waiting=60, waiting_tokens=60_000)  # ten seconds of work, and a start takes 40
    decision = fleet.run(1, burst)
    assert decision.forecast_ttft_s > 2.0
    assert decision.later_ttft_s < 2.0
    assert decision.wanted == 1
    endless = load(0.1, num_waiting=600, waiting_tokens=2_000_000)
    assert fleet.run(1, endless).wanted > 1


def test_with_no_executor_and_something_waiting_one_is_wanted_also_from_none():
    fleet = Fleet(ScaleSettings(0, 4, 2.0), ready=0, is_busy=False)
    unknown = load(0.0)._replace(cost=None)
    assert fleet.run(60, unknown).wanted == 0
    fleet.is_busy = True
    decision = fleet.run(1, unknown)
    assert (decision.wanted, decision.reason) == (1, "first")
    assert fleet.run(30, unknown).wanted == 1


def test_the_last_one_goes_when_nothing_has_come_for_the_hold_time():
    fleet = Fleet(ScaleSettings(0, 4, 2.0))
    fleet.run(60, load(QUIET))
    fleet.is_busy = False
    assert fleet.run(fleet.machine.hold_s - 5, load(0.0)).wanted == 1
    decision = fleet.run(30, load(0.0))
    assert (decision.wanted, decision.reason) == (0, "idle")


def test_limits_hold_and_are_named():
    fleet = Fleet(ScaleSettings(2, 3, 2.0), ready=2)
    fleet.run(RETURN_S, load(QUIET))
    decision = fleet.run(300, load(50 * ONE_BUSY))
    assert (decision.wanted, decision.reason) == (3, "max")
    assert fleet.run(600, load(QUIET)).wanted == 2


def test_fewer_are_wanted_only_after_the_hold_time_and_one_by_one():
    fleet = Fleet()
    fleet.run(RETURN_S, load(QUIET))
    fleet.run(200, load(4 * ONE_BUSY))
    most, quiet_from = fleet.machine.wanted, fleet.now
    assert most >= 4
    fleet.run(600, load(QUIET))
    downs = [(at, wanted) for at, wanted in fleet.changes() if at > quiet_from]
    assert downs[0][0] - quiet_from >= fleet.machine.hold_s - 1
    assert [wanted for _, wanted in downs] == list(range(most - 1, 0, -1))
    gaps = [b - a for (a, _), (b, _) in pairwise(downs)]
    assert min(gaps) >= DOWN_INTERVAL_S


def test_a_square_wave_does_not_flap():
    """Its quiet half is shorter than the hold time. The fleet grows once, and what it needed only to work off what came
    during the start goes; then it stays at what the busy half needs."""
    fleet = Fleet()
    fleet.run(RETURN_S, load(QUIET))
    for _ in range(20):
        fleet.run(30, load(4 * ONE_BUSY))
        fleet.run(30, load(QUIET))
    (_, most), *later = fleet.changes()
    assert [wanted for _, wanted in later] == list(range(most - 1, most - 1 - len(later), -1)), fleet.changes()
    assert fleet.machine.wanted >= 4
    assert not later or later[-1][0] < 200


def test_a_load_at_the_edge_does_not_flap():
    """What two executors just hold is not well within the target of one less: neither up nor down follows."""
    fleet = Fleet()
    fleet.run(RETURN_S, load(QUIET))
    for rate in (1.0, 1.6, 2.0):
        fleet.run(600, load(rate * ONE_BUSY))
        settled = len(fleet.changes())
        fleet.run(1200, load(rate * ONE_BUSY))
        assert len(fleet.changes()) == settled, (rate, fleet.changes())


def test_a_lost_executor_is_replaced_without_another_order():
    fleet = Fleet(ready=3)
    fleet.run(60, load(2.5 * ONE_BUSY))
    wanted = fleet.machine.wanted
    fleet.ready -= 1
    decision = fleet.run(1, load(2.5 * ONE_BUSY))
    assert (decision.wanted, decision.on_the_way) == (wanted, 1)
    assert fleet.run(START_S + 1, load(2.5 * ONE_BUSY)).on_the_way == 0
    assert fleet.ready == wanted


def test_a_start_that_takes_longer_is_waited_for_and_learnt():
    fleet = Fleet(start_s=2.5 * START_S)
    fleet.run(RETURN_S, load(QUIET))
    assert fleet.machine.lead_s == START_S, "what the executor said of its own start"
    wanted = fleet.run(1, load(4 * ONE_BUSY)).wanted
    assert fleet.run(2.5 * START_S - 2, load(4 * ONE_BUSY)).wanted == wanted
    fleet.run(10, load(4 * ONE_BUSY))
    assert fleet.ready == wanted
    assert fleet.machine.lead_s == pytest.approx(2.5 * START_S, abs=2.0)


def test_an_executor_that_never_comes_is_ordered_again_and_the_limit_holds():
    fleet = Fleet(ScaleSettings(1, 5, 2.0), comes=False)
    fleet.run(RETURN_S, load(QUIET))
    first = fleet.run(1, load(1.6 * ONE_BUSY))
    assert first.wanted == 2
    decision = fleet.run(3 * START_S + 10, load(1.6 * ONE_BUSY))
    assert (decision.wanted, decision.stuck) == (3, 1)
    decision = fleet.run(3600, load(1.6 * ONE_BUSY))
    assert decision.wanted == 5
    assert decision.on_the_way + decision.stuck == 4
    fleet.run(MAX_HOLD_S + 10 * DOWN_INTERVAL_S, load(QUIET))
    assert fleet.machine.wanted == 1, "an executor that does not come does not keep the number up"


def test_a_target_that_no_fleet_keeps_does_not_ask_for_all_executors():
    fleet = Fleet(ScaleSettings(1, 8, 0.01))
    fleet.run(RETURN_S, load(QUIET))
    assert fleet.run(300, load(QUIET)).wanted == 1


def test_memory_that_is_used_keeps_executors():
    """Two pools that are nearly full of long answers, while little arrives: one of them would not hold what runs."""
    fleet = Fleet(ready=2)
    fleet.run(RETURN_S, load(QUIET))
    full = load(QUIET, num_running=50, used_blocks=6000, held_blocks=7200.0)
    assert fleet.run(900, full).wanted == 2
    assert fleet.run(900, load(QUIET, num_running=100)).wanted == 2, "and no lanes for them"
    assert fleet.run(900, load(QUIET, num_running=25, used_blocks=2000, held_blocks=3600.0)).wanted == 1


def test_a_restart_while_another_executor_never_comes_makes_no_start_long():
    fleet = Fleet(ready=2, comes=False)
    fleet.run(RETURN_S, load(QUIET))
    fleet.run(7200, load(3 * ONE_BUSY))
    assert fleet.decisions[-1][1].stuck
    fleet.ready -= 1
    fleet.run(15, load(3 * ONE_BUSY))
    fleet.ready += 1
    fleet.machine.started_in(START_S)
    assert fleet.run(1, load(3 * ONE_BUSY)).lead_s == START_S
