"""What a step takes, learnt from the steps that executors have answered. Pure.

A step has a cost of its own (all weights are read once), a cost for each token that is computed, and one for the K and
V that are read. The three are fitted by least squares to what steps took, and older steps are forgotten. Only running
sums are kept, so a step costs nine additions, and the fit is made when it is asked for.

Least squares believe one large value more than many small ones. So a step counts as `LONGEST` times what was expected
of it at most: an executor that stalled for seconds once does not size the fleet, and one that is slower now is believed
step by step.
"""

from statistics import median
from typing import NamedTuple

import numpy as np

HALF_LIFE = 2000.0  # steps after which one counts half
MIN_STEPS = 16  # before anything is said
LONGEST = 10.0  # times what was expected of a step
LEAST_EXPECTED_S = 1e-3  # or what is expected could never grow again
_RIDGE = 1e-4  # of each column's own weight: what steps do not tell apart is shared among the columns


class StepCost(NamedTuple):
    """What a step takes: `step_s + tokens * token_s + blocks * block_s`.

    Attributes:
        step_s: of any step.
        token_s: more for each token that it computes.
        block_s: more for each block that the executor has in use.
    """

    step_s: float
    token_s: float
    block_s: float

    def seconds(self, tokens: float, blocks: float) -> float:
        """What a step of so many tokens takes while so many blocks are in use."""
        return self.step_s + self.token_s * tokens + self.block_s * blocks


class StepTimes:
    """The steps of all executors; executors of different speed count as their mean."""

    def __init__(self) -> None:
        self._weight = 1.0  # of the next step: growing weights are the same as shrinking sums, and cheaper
        self._num_steps = 0
        self._first: list[tuple[int, int, float]] = []  # before there is anything to expect
        self._expected: StepCost | None = None
        self._sums = [0.0] * 9  # of the products of (1, tokens, blocks) with each other, and with the seconds

    def answered(self, tokens: int, blocks: int, seconds: float) -> None:
        """A step took so long.

        Args:
            tokens: that it computed.
            blocks: in use on its executor.
            seconds: as the executor says.
        """
        if (expected := self._expected) is None:
            self._first.append((tokens, blocks, seconds))
            if len(self._first) == MIN_STEPS:
                longest_s = LONGEST * max(LEAST_EXPECTED_S, median(each[2] for each in self._first))
                for each in self._first:
                    self._count(each[0], each[1], min(each[2], longest_s))
                self._first, self._expected = [], self.cost()
            return
        self._count(tokens, blocks, min(seconds, LONGEST * max(LEAST_EXPECTED_S, expected.seconds(tokens, blocks))))

    def _count(self, tokens: int, blocks: int, seconds: float) -> None:
        weight, sums = self._weight, self._sums
        sums[0] += weight
        sums[1] += weight * tokens
        sums[2] += weight * blocks
        sums[3] += weight * tokens * tokens
        sums[4] += weight * tokens * blocks
        sums[5] += weight * blocks * blocks
        sums[6] += weight * seconds
        sums[7] += weight * tokens * seconds
        sums[8] += weight * blocks * seconds
        self._num_steps += 1
        self._weight *= 2.0 ** (1.0 / HALF_LIFE)
        if self._weight > 1e9:
            self._sums = [each / self._weight for each in sums]
            self._weight = 1.0

    def cost(self) -> StepCost | None:
        """What is known now; None while too few steps were seen.

        No part of the cost is negative: one that the fit would give a negative value does not count.
        """
        if self._num_steps < MIN_STEPS:
            return None
        one, t, b, tt, tb, bb, s, ts, bs = self._sums
        squares = np.array([[one, t, b], [t, tt, tb], [b, tb, bb]]) / one
        target = np.array([s, ts, bs]) / one
        scale = np.sqrt(np.maximum(np.diag(squares), 1e-12))
        squares, target = squares / np.outer(scale, scale), target / scale
        columns = [0, 1, 2]
        while True:
            chosen = squares[np.ix_(columns, columns)] + _RIDGE * np.eye(len(columns))
            found = np.linalg.solve(chosen, target[columns])
            worst = int(found.argmin())
            if found[worst] >= 0 or len(columns) == 1:
                break
            columns.pop(worst)
        cost = np.zeros(3)
        cost[columns] = np.maximum(found, 0.0)
        self._expected = StepCost(*(cost / scale).tolist())
        return self._expected
