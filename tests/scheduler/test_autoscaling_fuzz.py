"""Loads and fleets at random: what the autoscaler wants keeps its promises whatever happens."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler_svc.core.autoscaling.autoscaler import (
    DOWN_INTERVAL_S,
    LEAST_TARGET,
    MIN_HOLD_S,
    RETURN_S,
    SETTLE_S,
    Autoscaler,
)
from scheduler_svc.core.autoscaling.demand import FAST_S
from scheduler_svc.core.autoscaling.forecast import Forecast
from scheduler_svc.core.autoscaling.settings import ScaleSettings
from tests.scheduler.test_autoscaling_state_machine import load
from tests.support.effort import examples


class AutoscalerFuzz(RuleBasedStateMachine):
    """A model of the machine: when it changed, and what the load was then."""

    @initialize(
        least=st.integers(0, 3), span=st.integers(0, 12), target_s=st.floats(0.05, 30.0), ready=st.integers(0, 12)
    )
    def begin(self, least: int, span: int, target_s: float, ready: int) -> None:
        self.settings = ScaleSettings(least, max(1, least + span), target_s)
        self.machine = Autoscaler(self.settings, 0.0)
        self.now, self.ready, self.is_busy, self.is_told = 0.0, ready, True, False
        self.load = load(1.0)
        self.ups: list[float] = []
        self.downs: list[float] = []

    @rule(
        rate=st.floats(0.0, 200.0),
        growth=st.floats(0.0, 1.0),
        noise=st.floats(0.0, 10.0),
        waiting=st.integers(0, 1000),
        prefilling=st.integers(0, 10**6),
        held=st.floats(0.0, 1e5),
        running=st.integers(0, 800),
    )
    def other_load(self, rate, growth, noise, waiting, prefilling, held, running):
        self.load = load(
            rate,
            num_waiting=waiting,
            waiting_tokens=1000 * waiting,
            prefilling_tokens=prefilling,
            held_blocks=held,
            num_running=running,
            used_blocks=40 * running,
        )
        demand = self.load.demand._replace(growth_per_s2=growth, noise_per_s=noise)
        self.load = self.load._replace(demand=demand)
        self.is_busy = True

    @rule()
    def nothing_to_do(self):
        self.load, self.is_busy = load(0.0), False

    @rule()
    def costs_are_not_known(self):
        self.load = self.load._replace(cost=None)

    @rule(count=st.integers(1, 4), start_s=st.floats(0.0, 500.0))
    def executors_join(self, count, start_s):
        for _ in range(count):
            self.machine.started_in(start_s)
        self.ready += count

    @rule(count=st.integers(1, 4))
    def executors_go(self, count):
        self.ready = max(0, self.ready - count)

    @rule(seconds=st.integers(1, 400))
    def time_goes_by(self, seconds):
        for _ in range(seconds):
            self.second()

    @rule(pause_s=st.floats(1.0, 1000.0))
    def the_scheduler_did_not_run(self, pause_s):
        self.now += pause_s
        self.second()

    def second(self) -> None:
        self.now += 1.0
        before = self.machine.wanted
        decision = self.machine.decide(self.load, self.ready, is_busy=self.is_busy, now=self.now)
        if decision is None:
            assert not self.is_told
            waits_for_cost = self.load.cost is None and self.ready > 0
            unsure_s = RETURN_S + (self.machine.lead_s if waits_for_cost else 0.0)
            assert self.now < (unsure_s if self.is_busy else SETTLE_S)
            return
        self.is_told = True
        assert decision.before == before
        assert decision.wanted == self.machine.wanted
        assert 0.0 <= decision.forecast_ttft_s <= 3600.0
        assert decision.on_the_way + decision.stuck == max(0, decision.wanted - self.ready)
        if decision.reason == "found":
            return
        if decision.wanted > before:
            self.ups.append(self.now)
        elif decision.wanted < before:
            self.fewer(before, decision.wanted)
        self.nothing_is_missed(decision.wanted)

    def fewer(self, before: int, wanted: int) -> None:
        """No sooner than is allowed, by no more than is allowed, and never where the target would be broken."""
        assert wanted >= before - max(1, before // 8)
        assert not self.downs or self.now - self.downs[-1] >= DOWN_INTERVAL_S
        assert not self.ups or self.now - self.ups[-1] >= MIN_HOLD_S
        self.downs.append(self.now)
        if self.is_busy and self.load.cost is not None and wanted > 0 and self.ready > 0:
            forecast = Forecast(self.load, self.load.demand.sequences_per_s)
            limit_s = max(self.settings.target_ttft_s, LEAST_TARGET * forecast.floor_s)
            there = min(wanted, self.ready)
            assert forecast.outlook(there, (), 0.0).ttft_s <= limit_s, "fewer are wanted, and the target would break"
            assert there == self.ready or forecast.holds(there), "fewer are wanted, and they do not hold what runs"

    def nothing_is_missed(self, wanted: int) -> None:
        """All that are wanted are there, and the target is broken for good: then it is all that may be."""
        if self.is_busy and wanted == 0:
            assert self.settings.max_executors == 0
        if not self.is_busy or self.load.cost is None or self.ready != wanted or wanted == 0:
            return
        demand = self.load.demand
        ahead_s = FAST_S + self.machine.lead_s
        forecast = Forecast(self.load, demand.sequences_per_s + demand.growth_per_s2 * ahead_s)
        limit_s = max(self.settings.target_ttft_s, LEAST_TARGET * forecast.floor_s)
        at_s = 1.5 * self.machine.lead_s + self.settings.target_ttft_s
        if forecast.outlook(self.ready, (), at_s).ttft_s > 1.01 * limit_s:
            assert wanted == self.settings.max_executors, "the forecast breaks the target, and no more are wanted"

    @invariant()
    def the_limits_hold(self):
        assert self.settings.min_executors <= self.machine.wanted <= self.settings.max_executors


TestAutoscaler = AutoscalerFuzz.TestCase
TestAutoscaler.settings = settings(max_examples=examples(30), stateful_step_count=15)
