"""Executors that are wanted and not there yet: since when, and when they will be. Pure.

The scheduler starts no executor; `baton ray`, KEDA or a person reads how many are wanted. So an order is this: one more
was wanted from some time on. It is filled by the next executor that joins.
"""

from collections import deque
from collections.abc import Iterable

DEFAULT_LEAD_S = 60.0  # before any executor was seen
NUM_SEEN = 3  # of the last waits, whose longest is expected of the next one
LONGER = 0.25  # an order that is late is expected after so much more of the time that it has waited
GIVE_UP = 3.0  # times what was expected: then an order does not count any more
GIVE_UP_AT_LEAST_S = 60.0


class Orders:
    """What is on the way.

    Attributes:
        num_stuck: orders that have been open for so long that they are not expected any more.
    """

    def __init__(self) -> None:
        self.num_stuck = 0
        self._open: deque[float] = deque()  # when each was made
        self._stuck: deque[float] = deque()
        self._seen: deque[float] = deque(maxlen=NUM_SEEN)
        self._start_s = 0.0

    @property
    def lead_s(self) -> float:
        """Seconds from an order to the executor: those of the last ones, or what an executor says of its own start."""
        return max(self._seen) if self._seen else (self._start_s or DEFAULT_LEAD_S)

    def started_in(self, start_s: float) -> None:
        """What the newest executor's own start took."""
        self._start_s = start_s

    def update(self, missing: int, joined: int, now: float) -> None:
        """So many executors are missing now, and so many have joined since the last call."""
        for _ in range(min(joined, len(self._stuck) + len(self._open))):
            self._seen.append(now - (self._stuck or self._open).popleft())
        while len(self._stuck) + len(self._open) > max(0, missing):  # fewer are wanted
            if self._stuck:
                self._stuck.popleft()
            else:
                self._open.pop()
        while len(self._stuck) + len(self._open) < missing:
            self._open.append(now)
        limit_s = max(GIVE_UP_AT_LEAST_S, GIVE_UP * self.lead_s)
        while self._open and now - self._open[0] > limit_s:
            self._stuck.append(self._open.popleft())
        self.num_stuck = len(self._stuck)

    def joins(self, now: float) -> tuple[float, ...]:
        """When those on the way are expected, in seconds from now, ascending."""
        return tuple(self._expected(self._open, now))

    def _expected(self, made: Iterable[float], now: float) -> Iterable[float]:
        lead_s = self.lead_s
        return sorted(max(lead_s - (now - at), LONGER * (now - at)) for at in made)
