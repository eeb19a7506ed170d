"""How many executors are wanted: a state machine that takes the time and a load, and returns a decision. Pure.

                   the forecast breaks the target: at once, by as many as it takes
        ┌────────────────────────────────────────────────────────────────┐
        │                                                                ▼
    SETTLING ──the first seconds are over──▶ HOLDING ◀──fewer would do──▶ LOWERING
    no decision: executors come back         nothing changes              one (or an eighth) less every
    that an earlier life had, and some                                    `DOWN_INTERVAL_S`, as long as it holds
    may be starting for what is open

More are wanted when a request that arrives at the time at which new executors would be there, and have worked off
what came meanwhile, is not going to have its first token within the target, with all those counted that are on the
way. So nothing is ordered twice, nor for a burst that is over before an executor could help. Fewer are wanted when
the largest need of the last `hold_s` seconds, by a stricter forecast, is less than what is wanted. `hold_s` is twice
what a start takes: to keep something for as long as it costs to get it again costs at most twice what it costs with
knowledge of the future (Karlin et al., Competitive Snoopy Caching, 1988).
"""

from collections import deque
from dataclasses import dataclass

from scheduler_svc.core.autoscaling.demand import FAST_S
from scheduler_svc.core.autoscaling.forecast import LONGEST_S, Forecast, Load
from scheduler_svc.core.autoscaling.orders import Orders
from scheduler_svc.core.autoscaling.settings import ScaleSettings

SETTLE_S = 5.0  # executors of an earlier life are back by then
RETURN_S = 30.0  # an executor that comes back later than others is still wanted; what arrives is known by then
DOWN_INTERVAL_S = 15.0
DOWN_SHARE = 8  # of a large fleet, one in so many goes at once
MIN_HOLD_S, MAX_HOLD_S = 60.0, 300.0
WELL_WITHIN = 0.7  # of the target, for fewer executors
WORK_OFF = 0.5  # of a start's time, in which what came during the start may still be worked off
UP_NOISE, DOWN_NOISE = 1.5, 1.0  # standard deviations of the rate of arrivals that are added to it
LEAST_TARGET = 2.0  # times what a first token takes where nothing waits: no number of executors gives it much sooner


@dataclass(frozen=True, slots=True)
class Decision:
    """What is wanted.

    Attributes:
        wanted: executors.
        forecast_ttft_s: seconds to the first token of a request that arrives now, by the executors that are there and
            those on the way.
        reason: why that many: `found` (they were there at the start), `min`, `max` (the forecast asks for more),
            `first` (something waits and no executor is there), `time` or `memory` (what was short at the last change
            up), `less` (fewer do), `idle` (nothing is to be done).
        before: what was wanted before this decision.
        later_ttft_s: the same forecast for a request that arrives when an executor would be there that is ordered now.
        work: executors that what arrives keeps busy.
        on_the_way, stuck: executors that were wanted and have not come, and of these the ones not expected any more.
        lead_s: what a start is expected to take.
    """

    wanted: int
    forecast_ttft_s: float
    reason: str
    before: int
    later_ttft_s: float = 0.0
    work: float = 0.0
    on_the_way: int = 0
    stuck: int = 0
    lead_s: float = 0.0


class Autoscaler:
    """Decides. To be asked about once a second.

    Args:
        now: when the service began to look at its executors.

    Attributes:
        wanted: the last decision's number.
        follows_another: whether there is work of an earlier life, which may have ordered executors for it.
    """

    def __init__(self, settings: ScaleSettings, now: float) -> None:
        self._settings = settings
        self._began = now
        self._orders = Orders()
        self._needs: deque[tuple[float, int]] = deque()  # the largest ones lately: times and needs, needs descending
        self._last_up = self._last_down = float("-inf")
        self._reason = "min"
        self._seen_joins = 0
        self._is_sure = False
        self.follows_another = True
        self.wanted = settings.min_executors

    @property
    def hold_s(self) -> float:
        """How long fewer must do before fewer are wanted."""
        return min(MAX_HOLD_S, max(MIN_HOLD_S, 2 * self.lead_s))

    @property
    def lead_s(self) -> float:
        """Seconds from an order to the executor, as expected."""
        return self._orders.lead_s

    def started_in(self, start_s: float) -> None:
        """An executor has joined whose own start took so long."""
        self._orders.started_in(start_s)
        self._seen_joins += 1

    def paused(self, seconds: float) -> None:
        """Nobody has looked for so long: that time does not count."""
        self._began += seconds
        self._last_up += seconds
        self._last_down += seconds
        self._needs = deque((at + seconds, need) for at, need in self._needs)
        self._orders.paused(seconds)

    def decide(self, load: Load, num_ready: int, *, is_busy: bool, now: float) -> Decision | None:
        """What is wanted now; None in the first seconds, when that is not known.

        Where there is work of an earlier life, it takes longer: that one may have ordered executors for it, which start
        now. A number that counts only those that are there would end them.

        Args:
            num_ready: executors that take sequences.
            is_busy: whether any request is open, or has come since the last call.
        """
        age = now - self._began
        if age < SETTLE_S:
            return None
        before = self.wanted
        if age < RETURN_S and num_ready > self.wanted:
            self._change(min(num_ready, self._settings.max_executors), "found")
        joined, self._seen_joins = self._seen_joins, 0
        self._orders.update(self.wanted - num_ready, joined, now)
        needed, reason = self._needed(load, num_ready, now, is_busy=is_busy)
        if needed > self.wanted and self._change(needed, reason):
            self._last_up = now
        elif needed > self.wanted:
            self._reason = "max"
        self._lower(load, num_ready, now, is_busy=is_busy)
        self._orders.update(self.wanted - num_ready, 0, now, is_more=True)
        unsure_s = RETURN_S + (self.lead_s if load.cost is None and num_ready > 0 else 0.0)
        self._is_sure = self._is_sure or not (is_busy and self.follows_another) or age >= unsure_s
        return self._decision(load, num_ready, before, now) if self._is_sure else None

    # --- up ---

    def _needed(self, load: Load, num_ready: int, now: float, *, is_busy: bool) -> tuple[int, str]:
        """The smallest number, from what is wanted on, that keeps the target; and what is short without it."""
        stuck, wanted, reason = self._orders.num_stuck, self.wanted, self._reason
        if is_busy and wanted - stuck < 1:
            wanted, reason = 1 + stuck, "first"
        if load.cost is None or not is_busy:
            return wanted, reason
        forecast = self._forecast(load, UP_NOISE, self.lead_s)
        at_s, target_s = self._effect_s(now), self._target_s(forecast)
        size, last = wanted - stuck, self._settings.max_executors + 1
        outlook = forecast.outlook(*self._fleet(size, num_ready, now), at_s)
        if outlook.ttft_s <= target_s:
            return wanted, reason
        reason = "memory" if outlook.is_memory else "time"
        while size + 1 < last:  # `size` does not keep the target, and `last` is taken to
            middle = (size + last) // 2
            if forecast.outlook(*self._fleet(middle, num_ready, now), at_s).ttft_s <= target_s:
                last = middle
            else:
                size = middle
        return last + stuck, reason

    def _fleet(self, size: int, num_ready: int, now: float) -> tuple[int, tuple[float, ...]]:
        """Of a fleet of so many those that are there, and when the others will be."""
        there = min(size, num_ready)
        joins = self._orders.joins(now)[: size - there]
        return there, tuple(sorted((*joins, *[self.lead_s] * (size - there - len(joins)))))

    def _effect_s(self, now: float) -> float:
        """Seconds until what is ordered now, or before, has had time to work off what came meanwhile."""
        return (1.0 + WORK_OFF) * max(self.lead_s, *self._orders.joins(now), 0.0) + self._settings.target_ttft_s

    # --- down ---

    def _lower(self, load: Load, num_ready: int, now: float, *, is_busy: bool) -> None:
        """Want fewer, if fewer have done for long enough."""
        need = max(self._settings.min_executors, self._enough(load, num_ready, is_busy=is_busy))
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while self._needs[0][0] < now - self.hold_s:
            self._needs.popleft()
        since = max(self._last_up, self._began) + self.hold_s
        if (most := self._needs[0][1]) < self.wanted and now >= max(since, self._last_down + DOWN_INTERVAL_S):
            self._last_down = now
            fewer = max(most, self.wanted - max(1, self.wanted // DOWN_SHARE))
            self._change(fewer, "less" if is_busy else "idle")

    def _enough(self, load: Load, num_ready: int, *, is_busy: bool) -> int:
        """The smallest number, up to what is wanted, that is well within the target with what is there."""
        if not is_busy:
            return 0
        if load.cost is None:
            return max(1, self.wanted)
        forecast = self._forecast(load, DOWN_NOISE, 0.0)
        limit_s = max(WELL_WITHIN * self._settings.target_ttft_s, LEAST_TARGET * forecast.floor_s)
        enough = self.wanted
        while enough > 1:
            there = min(enough - 1, num_ready)  # those on the way do not count before they are there
            if there == 0 or forecast.outlook(there, (), 0.0).ttft_s > limit_s:
                break
            if there < num_ready and not forecast.holds(there):
                break  # what runs on the one that goes would wait until others end
            enough -= 1
        return enough

    # --- inside ---

    def _forecast(self, load: Load, noise: float, ahead_s: float) -> Forecast:
        demand = load.demand
        growth = demand.growth_per_s2 * (FAST_S + ahead_s)  # the mean is as old as its window
        return Forecast(load, demand.sequences_per_s + growth + noise * demand.noise_per_s)

    def _target_s(self, forecast: Forecast) -> float:
        return max(self._settings.target_ttft_s, LEAST_TARGET * forecast.floor_s)

    def _change(self, wanted: int, reason: str) -> bool:
        """Want so many, as far as the limits go. Returns whether that is another number."""
        least, most = self._settings.min_executors, self._settings.max_executors
        limited = min(most, max(least, wanted))
        if limited == self.wanted:
            return False
        self.wanted = limited
        self._reason = "max" if wanted > most else reason
        return True

    def _decision(self, load: Load, num_ready: int, before: int, now: float) -> Decision:
        joins, lead_s = self._orders.joins(now), self.lead_s
        ttft_s = later_s = work = 0.0
        if load.cost is not None:
            forecast = self._forecast(load, 0.0, 0.0)
            outlook = forecast.outlook(num_ready, joins, 0.0)
            later_s = forecast.outlook(num_ready, joins, self._effect_s(now)).ttft_s
            ttft_s, work = outlook.ttft_s, outlook.work
        elif num_ready == 0:
            ttft_s = later_s = joins[0] if joins else LONGEST_S
        return Decision(
            wanted=self.wanted,
            forecast_ttft_s=ttft_s,
            reason=self._reason,
            before=before,
            later_ttft_s=later_s,
            work=work,
            on_the_way=len(joins),
            stuck=self._orders.num_stuck,
            lead_s=lead_s,
        )
