"""Executors that are wanted and not there yet: since when, and when they will be. Pure.

The scheduler starts no executor; `baton ray`, KEDA or a person reads how many are wanted. So an order is this: one more
was wanted, or one is missing, from some time on. An executor that joins fills one.

How long a start takes is learnt only from orders of more executors. One that is missing was lost: a standby takes its
place in a second, or its supervisor starts it again, and neither tells what one more would take. Therefore an executor
that joins counts as the last one that was lost, if one is missing.
"""

from collections import deque
from typing import NamedTuple

DEFAULT_LEAD_S = 60.0  # before any executor was seen
LONGEST_LEAD_S = 600.0  # nothing is planned for longer
NUM_SEEN = 3  # of the last waits, whose longest is expected of the next one
LONGER = 0.25  # an order that is late is expected after so much more of the time that it has waited
GIVE_UP = 3.0  # times what was expected: then an order does not count any more
GIVE_UP_AT_LEAST_S = 60.0


class _Order(NamedTuple):
    made: float
    is_more: bool  # and not for one that was lost


class Orders:
    """What is on the way.

    Attributes:
        num_stuck: orders that have been open for so long that they are not expected any more.
    """

    def __init__(self) -> None:
        self.num_stuck = 0
        self._open: deque[_Order] = deque()  # oldest first
        self._stuck: deque[float | None] = deque()  # what each has taught by the time it was given up, if anything
        self._seen: deque[float] = deque(maxlen=NUM_SEEN)
        self._start_s = 0.0

    @property
    def lead_s(self) -> float:
        """Seconds from an order to the executor: those of the last ones, and no less than an executor's own start."""
        return min(LONGEST_LEAD_S, max(self._start_s, *self._seen, 0.0) or DEFAULT_LEAD_S)

    def started_in(self, start_s: float) -> None:
        """What the newest executor's own start took."""
        self._start_s = start_s

    def update(self, missing: int, joined: int, now: float, *, is_more: bool = False) -> None:
        """Note what is open.

        Args:
            missing: executors that are wanted and not there.
            joined: those that have come since the last call. One that came for another that went fills no order.
            is_more: whether more are missing because more are wanted, and not because some were lost.
        """
        missing = max(0, missing)
        for _ in range(min(joined, self._num - missing)):
            self._fill(now)
        while self._num > missing:  # fewer are wanted
            if self._stuck:
                self._stuck.popleft()
            else:
                self._open.pop()
        while self._num < missing:
            self._open.append(_Order(now, is_more))
        limit_s = max(GIVE_UP_AT_LEAST_S, GIVE_UP * self.lead_s)
        while self._open and now - self._open[0].made > limit_s:
            self._stuck.append(limit_s if self._open.popleft().is_more else None)
        self.num_stuck = len(self._stuck)

    def joins(self, now: float) -> tuple[float, ...]:
        """When those on the way are expected, in seconds from now, ascending."""
        lead_s, ages = self.lead_s, [now - order.made for order in self._open]
        return tuple(sorted(max(lead_s - age, LONGER * age) for age in ages))

    def paused(self, seconds: float) -> None:
        """Time in which nobody could have joined does not count."""
        self._open = deque(order._replace(made=order.made + seconds) for order in self._open)

    # --- inside ---

    @property
    def _num(self) -> int:
        return len(self._open) + len(self._stuck)

    def _fill(self, now: float) -> None:
        """An executor has come. One that was not expected any more teaches no more than that it took so long."""
        if lost := [order for order in self._open if not order.is_more]:
            self._open.remove(lost[-1])
        elif self._open:
            self._seen.append(now - self._open.popleft().made)
        elif (taught := self._stuck.pop()) is not None:
            self._seen.append(taught)
