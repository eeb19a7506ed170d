"""How many executors are wanted: a state machine that takes the time and a load, and returns a decision. Pure.

The load is the executors that steps keep busy (`load.py`), those by which it grows in the time of two starts, and those
that work off what waits in the time of one. More are wanted at once when it is above a limit for each of those that are
there or on the way; so nothing is ordered twice. Fewer are wanted, one by one, when the largest load of the last
`hold_s` is well below the limit of those that would be left.
"""

import math
from collections import deque
from typing import NamedTuple

from scheduler_svc.core.autoscaling.load import Load
from scheduler_svc.core.autoscaling.settings import ScaleSettings

RETURN_S = 30.0  # executors of an earlier life that are back by then are wanted
LEAST_LIMIT, MOST_LIMIT = 0.4, 0.8  # busy share of an executor
TAIL = 2.5  # times the mean wait that chance brings: where waits are exponential 92 of 100 are shorter
OUTLOOK, MAX_OUTLOOK_S = 2.0, 360.0  # times what a start takes: so long the load goes on growing
DOWN = 0.85  # of the limit: with the largest load of `hold_s`, chance brings no way back
DOWN_INTERVAL_S, DOWN_SHARE = 15.0, 8  # of a large fleet, one in so many goes at once
HOLD, MIN_HOLD_S, MAX_HOLD_S = 2.5, 60.0, 300.0  # times what a start takes
GIVE_UP, GIVE_UP_AT_LEAST_S = 3.0, 60.0  # the same; then an executor is not expected any more
DEFAULT_LEAD_S, LONGEST_LEAD_S = 60.0, 600.0  # before any executor was seen, and at most
NUM_WAITS = 3  # of the last executors that came, whose longest wait is expected of the next one
LONGEST_TTFT_S = 3600.0  # JSON has no infinity


class Decision(NamedTuple):
    """What is wanted.

    Attributes:
        wanted, before: executors, now and before this decision.
        reason: why that many: `found` (they were there at the start), `min`, `max` (the load asks for more), `first`
            (something waits and no executor is there), `time` or `memory` (what made most of the load at the last
            change up), `less` (fewer do), `idle` (nothing is to be done).
        busy_executors: the load.
        forecast_ttft_s: seconds to the first token of a request that arrives now.
        on_the_way, stuck: executors that are missing, and those that have been missing for too long to be expected.
        start_s: what a start is expected to take.
    """

    wanted: int
    before: int
    reason: str
    busy_executors: float
    forecast_ttft_s: float
    on_the_way: int
    stuck: int
    start_s: float


class Autoscaler:
    """Decides, about once a second. Times are seconds since the service began to look at its executors.

    Attributes:
        wanted: executors.
    """

    def __init__(self, settings: ScaleSettings) -> None:
        self.wanted = settings.min_executors
        self._settings = settings
        self._reason = "min"
        self._missing: list[float] = []  # since when each executor is missing that is wanted
        self._joined = 0  # since the last decision
        self._start_s = 0.0
        self._waits: deque[float] = deque(maxlen=NUM_WAITS)
        self._needs: deque[tuple[float, int]] = deque()  # of the last `hold_s`, with their times
        self._last_up, self._last_down = 0.0, float("-inf")

    @property
    def lead_s(self) -> float:
        """Return the seconds that an executor takes to come: as the last ones did, and no less than one's own start."""
        return min(LONGEST_LEAD_S, max(self._start_s, *self._waits, 0.0) or DEFAULT_LEAD_S)

    @property
    def hold_s(self) -> float:
        """Return the seconds for which fewer must do before fewer are wanted."""
        return min(MAX_HOLD_S, max(MIN_HOLD_S, HOLD * self.lead_s))

    def started_in(self, start_s: float) -> None:
        """Note that an executor has joined whose own start took so long."""
        self._start_s = start_s
        self._joined += 1

    def decide(self, load: Load | None, num_ready: int, now: float, *, is_busy: bool) -> Decision:
        """Return what is wanted now.

        Args:
            load: None while nothing was measured. Then the only change is from none to one.
            num_ready: executors that take sequences.
            is_busy: whether any request is open, or has come since the last call.
        """
        before, target_s = self.wanted, self._settings.target_ttft_s
        busy, prompts, waiting_s, prompt_s, growth = load or Load(0.0, 0.0, 0.0, 0.0)
        now_busy = busy + waiting_s / (self.lead_s + target_s)
        total = now_busy + growth * min(MAX_OUTLOOK_S, OUTLOOK * self.lead_s)
        limit = min(MOST_LIMIT, max(LEAST_LIMIT, target_s / (target_s + TAIL * prompt_s)))
        if now < RETURN_S and num_ready > self.wanted:
            self._want(num_ready, "found")
        stuck = self._note_missing(num_ready, now, is_lost=True)
        if is_busy and self.wanted - stuck < 1:
            self._want(1 + stuck, "first")
        if is_busy and total > limit * (self.wanted - stuck):
            self._want(math.ceil(total / limit) + stuck, "time" if prompts > busy / 2 else "memory")
        if self.wanted > before:
            self._last_up = now
        need = max(1 if load else self.wanted, math.ceil(now_busy / limit / DOWN)) if is_busy else 0
        self._lower(need + (stuck if need > num_ready else 0), now, "less" if is_busy else "idle")
        stuck = self._note_missing(num_ready, now, is_lost=False)
        on_the_way, lead_s = len(self._missing) - stuck, self.lead_s
        ttft_s = waiting_s / num_ready + prompt_s if num_ready else lead_s if on_the_way else LONGEST_TTFT_S
        ttft_s = min(ttft_s, LONGEST_TTFT_S)
        return Decision(self.wanted, before, self._reason, total, ttft_s, on_the_way, stuck, lead_s)

    # --- inside ---

    def _want(self, wanted: int, reason: str) -> None:
        """Want so many, as far as the limits go."""
        least, most = self._settings.min_executors, self._settings.max_executors
        before, self.wanted = self.wanted, min(most, max(least, wanted))
        if wanted > most or self.wanted != before:
            self._reason = "max" if wanted > most else reason

    def _lower(self, need: int, now: float, reason: str) -> None:
        """Want fewer, if fewer have done for long enough."""
        self._needs.append((now, need))
        while self._needs[0][0] < now - self.hold_s:
            self._needs.popleft()
        most = max(self._settings.min_executors, *(need for _, need in self._needs))
        if most < self.wanted and now >= max(self._last_up + self.hold_s, self._last_down + DOWN_INTERVAL_S):
            self._last_down = now
            self._want(max(most, self.wanted - max(1, self.wanted // DOWN_SHARE)), reason)

    def _note_missing(self, num_ready: int, now: float, *, is_lost: bool) -> int:
        """Note which executors are missing, and return how many of them are not expected any more.

        Args:
            is_lost: whether further ones were lost, and not ordered. One that joins stands for such a one first.
        """
        missing, give_up_s = max(0, self.wanted - num_ready), max(GIVE_UP_AT_LEAST_S, GIVE_UP * self.lead_s)
        for _ in range(min(self._joined, len(self._missing) - missing)):
            self._waits.append(min(give_up_s, now - self._missing.pop(0)))
        self._joined = 0
        del self._missing[missing:]
        more = [now] * (missing - len(self._missing))
        self._missing = [*more, *self._missing] if is_lost else [*self._missing, *more]
        return sum(now - since > give_up_s for since in self._missing)
