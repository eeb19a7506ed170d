"""When more executors are wanted, and when fewer (`core/autoscaling/autoscaler.py`)."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler_svc.core.autoscaling.autoscaler import (
    DEFAULT_LEAD_S,
    DOWN,
    DOWN_INTERVAL_S,
    GIVE_UP,
    LEAST_LIMIT,
    LONGEST_LEAD_S,
    MAX_HOLD_S,
    MIN_HOLD_S,
    MOST_LIMIT,
    RETURN_S,
    Autoscaler,
    Decision,
)
from scheduler_svc.core.autoscaling.load import Load
from scheduler_svc.core.autoscaling.settings import ScaleSettings
from tests.support.effort import examples

START_S = 40.0
USUAL = ScaleSettings(1, 8, 2.0)


def load(busy: float, *, prompts: float = 1.0, waiting_s: float = 0.0, prompt_s: float = 0.1) -> Load:
    """So many busy executors; `prompts` is a share."""
    return Load(busy, prompts * busy, waiting_s, prompt_s)


@dataclass
class Fleet:
    """Does what the state machine wants: executors come `start_s` after they were wanted.

    Attributes:
        comes: whether any comes at all.
        decisions: of each second, with its time.
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
        self.machine = Autoscaler(self.settings)
        if self.ready:
            self.machine.started_in(START_S)

    def run(self, seconds: float, load: Load | None) -> Decision:
        for _ in range(int(seconds)):
            self.now += 1.0
            for at in [at for at in self.starting if self.comes and at <= self.now]:
                self.starting.remove(at)
                self.join()
            decision = self.machine.decide(load, self.ready, self.now, is_busy=self.is_busy)
            self.decisions.append((self.now, decision))
            while self.ready + len(self.starting) > decision.wanted:
                if self.starting:
                    self.starting.pop()
                else:
                    self.ready -= 1
            while self.ready + len(self.starting) < decision.wanted:
                self.starting.append(self.now + self.start_s)
        return self.decisions[-1][1]

    def join(self) -> None:
        self.ready += 1
        self.machine.started_in(START_S)

    def changes(self, since: float = 0.0) -> list[tuple[float, int]]:
        """When another number was wanted, and which."""
        return [(at, d.wanted) for at, d in self.decisions if d.wanted != d.before and at > since]


def settled(**fields: object) -> Fleet:
    """A fleet with hardly any load, after its first seconds."""
    fleet = Fleet(**fields)  # type: ignore[arg-type]
    fleet.run(RETURN_S, load(0.05))
    return fleet


# --- the first seconds ---


def test_executors_that_are_there_at_the_start_are_wanted_up_to_the_limit():
    decision = Fleet(ready=4, is_busy=False).run(1, None)
    assert (decision.wanted, decision.reason) == (4, "found")
    decision = Fleet(ScaleSettings(1, 2, 2.0), ready=3, is_busy=False).run(1, None)
    assert (decision.wanted, decision.reason) == (2, "max")


def test_an_executor_that_comes_back_late_is_still_wanted_and_one_that_somebody_started_is_not():
    fleet = Fleet(ready=2)
    fleet.run(10, load(0.05))
    fleet.join()
    assert fleet.run(1, load(0.05)).wanted == 3
    fleet.run(RETURN_S, load(0.05))
    fleet.join()
    assert fleet.run(1, load(0.05)).wanted == 3


def test_while_nothing_was_measured_the_number_stays():
    fleet = Fleet(ready=3)
    assert fleet.run(1000, None).wanted == 3


# --- more ---


def test_as_many_are_ordered_at_once_as_it_takes_and_no_more_for_the_same_load():
    fleet = settled()
    decision = fleet.run(1, load(2.9))
    assert (decision.wanted, decision.on_the_way) == (4, 3)
    assert fleet.run(START_S - 2, load(2.9)).wanted == 4, "those on the way count"
    decision = fleet.run(60, load(2.9))
    assert (decision.wanted, decision.on_the_way) == (4, 0)


def test_what_waits_counts_as_those_who_work_it_off_while_one_starts():
    fleet = settled()
    assert fleet.run(1, load(0.2, waiting_s=20.0)).wanted == 1, "half of an executor, and it is there"
    assert fleet.run(1, load(1.0, waiting_s=4 * (START_S + USUAL.target_ttft_s))).wanted == 7


@pytest.mark.parametrize(("prompts", "reason"), [(0.9, "time"), (0.1, "memory")])
def test_the_reason_names_what_makes_most_of_the_load(prompts, reason):
    assert settled().run(1, load(1.6, prompts=prompts)).reason == reason


def test_the_closer_the_target_is_to_what_a_prompt_takes_the_less_busy_an_executor_may_be():
    assert settled().run(1, load(0.6)).wanted == 1
    assert settled().run(1, load(0.6, prompt_s=0.6)).wanted == 2
    assert settled(settings=ScaleSettings(1, 8, 10.0)).run(1, load(0.6, prompt_s=0.6)).wanted == 1
    assert settled(settings=ScaleSettings(1, 8, 0.01)).run(300, load(0.9 * LEAST_LIMIT)).wanted == 1, "nobody keeps it"


def test_with_no_executor_and_something_waiting_one_is_wanted_also_from_none():
    fleet = Fleet(ScaleSettings(0, 4, 2.0), ready=0, is_busy=False)
    assert fleet.run(60, None).wanted == 0
    fleet.is_busy = True
    decision = fleet.run(1, None)
    assert (decision.wanted, decision.reason, decision.forecast_ttft_s) == (1, "first", DEFAULT_LEAD_S)
    assert fleet.run(30, None).wanted == 1


def test_limits_hold_and_are_named():
    fleet = settled(settings=ScaleSettings(2, 3, 2.0), ready=2)
    decision = fleet.run(300, load(50.0))
    assert (decision.wanted, decision.reason) == (3, "max")
    assert fleet.run(600, load(0.05)).wanted == 2


# --- fewer ---


def test_fewer_are_wanted_only_after_the_hold_time_and_one_by_one():
    fleet = settled()
    fleet.run(200, load(2.9))
    most, quiet_from = fleet.machine.wanted, fleet.now
    fleet.run(600, load(0.05))
    downs = fleet.changes(since=quiet_from)
    assert downs[0][0] - quiet_from >= fleet.machine.hold_s - 1
    assert [wanted for _, wanted in downs] == list(range(most - 1, 0, -1))
    assert min(b - a for (a, _), (b, _) in pairwise(downs)) >= DOWN_INTERVAL_S


@pytest.mark.parametrize(("share", "wanted"), [(0.95, 1), (1.05, 2)])
def test_fewer_are_wanted_where_the_load_is_well_below_the_limit_of_those_left(share, wanted):
    fleet = Fleet(ready=2)
    assert fleet.run(900, load(share * DOWN * MOST_LIMIT)).wanted == wanted


def test_loads_at_the_edge_and_square_waves_do_not_flap():
    """Between the limit of one less and what lets one go nothing follows. A quiet half that is shorter than the hold
    time is no reason for fewer."""
    fleet = settled()
    for busy in (MOST_LIMIT * 0.99, MOST_LIMIT * 1.01, DOWN * MOST_LIMIT * 1.01, MOST_LIMIT * 1.99):
        fleet.run(600, load(busy))
    assert [wanted for _, wanted in fleet.changes()] == [2]
    fleet = settled()
    for _ in range(20):
        fleet.run(30, load(2.9))
        fleet.run(30, load(0.05))
    assert [wanted for _, wanted in fleet.changes()] == [4]


def test_a_large_fleet_shrinks_by_an_eighth():
    fleet = settled(settings=ScaleSettings(1, 64, 2.0), ready=64)
    fleet.run(MIN_HOLD_S + 3 * START_S, load(0.05))
    assert [wanted for _, wanted in fleet.changes()][1:3] == [56, 49]


def test_the_last_one_goes_when_nothing_has_come_for_the_hold_time():
    fleet = settled(settings=ScaleSettings(0, 4, 2.0))
    fleet.is_busy = False
    assert fleet.run(fleet.machine.hold_s - 5, load(0.0)).wanted == 1
    decision = fleet.run(30, load(0.0))
    assert (decision.wanted, decision.reason) == (0, "idle")


# --- executors that are lost, or late ---


def test_a_lost_executor_is_replaced_without_another_order():
    fleet = settled(ready=3)
    fleet.ready -= 1
    decision = fleet.run(1, load(2.1))
    assert (decision.wanted, decision.on_the_way) == (3, 1)
    assert fleet.run(START_S + 1, load(2.1)).on_the_way == 0


def test_a_start_that_takes_longer_is_waited_for_and_learnt():
    fleet = settled(start_s=2.5 * START_S)
    assert fleet.machine.lead_s == START_S, "what the executor said of its own start"
    fleet.run(1, load(2.9))
    assert fleet.run(2.5 * START_S - 2, load(2.9)).wanted == 4
    fleet.run(10, load(2.9))
    assert fleet.ready == 4
    assert fleet.machine.lead_s == pytest.approx(2.5 * START_S, abs=2.0)
    fleet.machine.started_in(2 * LONGEST_LEAD_S)
    assert (fleet.machine.lead_s, fleet.machine.hold_s) == (LONGEST_LEAD_S, MAX_HOLD_S)


def test_an_executor_that_comes_back_or_is_swapped_tells_nothing_of_a_start():
    fleet = settled(start_s=1.5 * START_S)
    fleet.run(1, load(1.4))
    fleet.ready, before = 0, fleet.now
    fleet.run(1, load(1.4))
    fleet.join()  # a standby has taken over
    fleet.machine.started_in(START_S)  # and one joined in the second in which another one went
    fleet.run(1, load(1.4))
    assert fleet.machine.lead_s == START_S
    fleet.run(2 * START_S, load(1.4))
    assert fleet.ready == 2
    assert fleet.machine.lead_s == pytest.approx(1.5 * START_S, abs=2.0), before


def test_an_executor_that_never_comes_is_ordered_again_and_the_limit_holds():
    fleet = settled(settings=ScaleSettings(1, 5, 2.0), comes=False)
    assert fleet.run(1, load(1.0)).wanted == 2
    decision = fleet.run(GIVE_UP * START_S + 10, load(1.0))
    assert (decision.wanted, decision.stuck, decision.on_the_way) == (3, 1, 1)
    decision = fleet.run(3600, load(1.0))
    assert (decision.wanted, decision.on_the_way + decision.stuck) == (5, 4)
    fleet.run(MAX_HOLD_S + 10 * DOWN_INTERVAL_S, load(0.05))
    assert fleet.machine.wanted == 1, "an executor that does not come does not keep the number up"


def test_late_executors_that_come_teach_no_more_than_that_they_were_late():
    fleet = settled(comes=False)
    fleet.run(7200, load(1.0))
    assert fleet.decisions[-1][1].stuck > 0
    fleet.comes = True  # a node has been added
    fleet.run(1, load(1.0))
    assert fleet.machine.lead_s == GIVE_UP * START_S


def test_a_restart_while_another_executor_never_comes_makes_no_start_long():
    fleet = settled(ready=2, comes=False)
    fleet.run(7200, load(1.9))
    assert fleet.decisions[-1][1].stuck
    fleet.ready -= 1
    fleet.run(15, load(1.9))
    fleet.join()
    assert fleet.run(1, load(1.9)).start_s == START_S


# --- at random ---


class AutoscalerFuzz(RuleBasedStateMachine):
    """Loads and fleets at random: what is wanted keeps its promises whatever happens."""

    @initialize(
        least=st.integers(0, 3), span=st.integers(0, 12), target_s=st.floats(0.05, 30.0), ready=st.integers(0, 12)
    )
    def begin(self, least: int, span: int, target_s: float, ready: int) -> None:
        self.settings = ScaleSettings(least, max(1, least + span), target_s)
        self.machine = Autoscaler(self.settings)
        self.now, self.ready, self.is_busy = 0.0, ready, True
        self.load: Load | None = None
        self.last_up = self.last_down = float("-inf")

    @rule(
        busy=st.floats(0.0, 12.0), share=st.floats(0.0, 1.0), waiting_s=st.floats(0.0, 1e5), prompt_s=st.floats(0.0, 99)
    )
    def other_load(self, busy, share, waiting_s, prompt_s):
        self.load, self.is_busy = load(busy, prompts=share, waiting_s=waiting_s, prompt_s=prompt_s), True

    @rule()
    def nothing_to_do(self):
        self.load, self.is_busy = load(0.0), False

    @rule()
    def nothing_was_measured(self):
        self.load = None

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

    def second(self) -> None:
        self.now += 1.0
        before = self.machine.wanted
        decision = self.machine.decide(self.load, self.ready, self.now, is_busy=self.is_busy)
        wanted = decision.wanted
        assert (decision.before, self.machine.wanted) == (before, wanted)
        assert 0.0 <= decision.forecast_ttft_s <= 3600.0
        assert decision.on_the_way + decision.stuck == max(0, wanted - self.ready)
        if wanted > before:
            self.last_up = self.now
        elif wanted < before:
            assert wanted >= before - max(1, before // 8)
            assert self.now >= max(self.last_down + DOWN_INTERVAL_S, self.last_up + MIN_HOLD_S)
            assert self.load is not None or not self.is_busy
            self.last_down = self.now
        if self.is_busy:
            assert wanted > 0
            is_enough = decision.busy_executors <= MOST_LIMIT * (wanted - decision.stuck)
            assert is_enough or wanted == self.settings.max_executors, "more are needed, and not wanted"

    @invariant()
    def the_limits_hold(self):
        assert self.settings.min_executors <= self.machine.wanted <= self.settings.max_executors


TestAutoscaler = AutoscalerFuzz.TestCase
TestAutoscaler.settings = settings(max_examples=examples(30), stateful_step_count=15)
