"""How many responses may be with the core at once, of one owner or of all: learned from what it takes and refuses.

As TCP learns how much a network carries: what is taken allows more, and a refusal ends that. After a refusal there is a
rest, each longer than the one before, and then one response shows whether there is room again. One that ends makes
room for the next one without a rest.
"""

import random
from dataclasses import dataclass

FIRST_LIMIT = 16


@dataclass(frozen=True)
class Rests:
    """How long nothing begins after refusals in a row: each rest is twice the one before, up to the longest."""

    first_s: float = 0.5
    longest_s: float = 15.0


RESTS = Rests()


class Pace:
    """Follows what becomes of responses.

    Args:
        most: that may be open, whatever the core takes.
        rests: after refusals.

    Attributes:
        num_open: responses that have begun, and have neither ended nor been refused.
    """

    def __init__(self, most: int, rests: Rests = RESTS) -> None:
        self.num_open = 0
        self._most = most
        self._rests = rests
        self._limit = min(FIRST_LIMIT, most)
        self._num_refusals = 0  # in a row; those of one moment count as one
        self._rest_until = 0.0
        self._is_trying = False  # with one response more than the limit

    def may_begin(self, now: float) -> bool:
        """Whether one more may begin. `now` is in seconds of any clock, as everywhere here."""
        if self.num_open >= self._most:
            return False
        return self.num_open < self._limit or self._may_try(now)

    def begun(self, now: float) -> None:
        """One has begun."""
        if self.num_open >= self._limit:
            self._is_trying = True
            self._rest(now)
        self.num_open += 1

    def taken(self) -> None:
        """The core has taken one: there is room for more."""
        self._num_refusals = 0
        self._is_trying = False
        self._limit = min(max(self._limit, self.num_open) + 1, self.num_open + FIRST_LIMIT)

    def refused(self, now: float) -> None:
        """The core has refused one, which is not open any more."""
        self.num_open -= 1
        self._limit = self.num_open
        if self._is_trying or now >= self._rest_until:
            self._num_refusals += 1
            self._is_trying = False
            self._rest(now)

    def ended(self) -> None:
        """One has ended, or was refused for a reason that is none here."""
        self.num_open -= 1

    def _may_try(self, now: float) -> bool:
        return self._num_refusals > 0 and now >= self._rest_until

    def _rest(self, now: float) -> None:
        longest_s = min(self._rests.first_s * 2 ** min(self._num_refusals - 1, 10), self._rests.longest_s)
        self._rest_until = now + longest_s * random.uniform(0.5, 1.0)  # noqa: S311 (no secret)
