"""How many executors the requests keep busy, measured from the steps that were answered. Pure.

An executor with one sequence computes all the time, so the time in which it computes tells little. A step tells how
full it was: the part of its time that prompts took counts whole, as other prompts wait for it, and the rest counts by
the share of memory or lanes in use, as others could decode in the same step. The sum grows nearly in proportion to what
arrives, whatever the number of executors.
"""

import math
from typing import NamedTuple

import numpy as np

from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.scheduling.stats import SchedulerStats

MEAN_S = 30.0  # chance changes the mean of a few requests a second by a tenth
SLOW_S = 180.0  # far enough from the other mean that growth stands out from chance
CHANCE = 1.05  # times the slow mean, above which the other one has grown
LATELY_S = 300.0  # what a sequence takes changes more slowly than how many come
WINDOWS = np.array([MEAN_S, MEAN_S, MEAN_S, SLOW_S])


class Load(NamedTuple):
    """What executors have to do.

    Attributes:
        busy: executors that the steps keep busy; like the next two, a mean of `MEAN_S`.
        prompts: the part of `busy` that is for prompts.
        waiting_s: executor-seconds that the sequences which wait will take, by what others took.
        prompt_s: executor-seconds that a prompt takes.
        growth: of `busy` in a second, as far as it is no chance; never negative.
    """

    busy: float
    prompts: float
    waiting_s: float
    prompt_s: float
    growth: float = 0.0


class LoadMeter:
    """Measures a Load."""

    def __init__(self, stats: SchedulerStats) -> None:
        self._stats = stats
        self._at = 0.0
        self._queried = 0
        self._work_s = self._prompts_s = 0.0  # executor-seconds since the last look: of all work, and of prompts
        self._lately = np.zeros(3)  # the same of the last minutes, and the tokens of prompts that were begun
        self._means = np.zeros(4)  # busy, prompts, waiting_s, and busy for longer: of `WINDOWS`

    def answered(self, executor: ExecutorState, tokens: int, seconds: float) -> None:
        """Note a step of so many tokens. Those above one for each running sequence are of prompts."""
        share = max(0, tokens - len(executor.running)) / max(1, tokens)
        self._prompts_s += share * seconds
        self._work_s += (share + (1.0 - share) * fullness(executor)) * seconds

    def look(self, waiting_tokens: int, now: float) -> Load | None:
        """Measure, about once a second; None before a step was answered. Times are since the service began to look."""
        elapsed, queried = max(now - self._at, 1.0), self._stats.queried_prompt_tokens
        self._lately *= math.exp(-elapsed / LATELY_S)
        self._lately += self._work_s, self._prompts_s, queried - self._queried
        work_s, prompts_s, begun = self._lately.tolist()
        token_s, prompt_token_s = (work_s / begun, prompts_s / begun) if begun >= 1.0 else (0.0, 0.0)
        busy, prompts = self._work_s / elapsed, self._prompts_s / elapsed
        # A mean of little time is the plain mean of that time: it does not start from zero.
        weights = 1.0 - np.exp(-elapsed / np.minimum(WINDOWS, max(now, elapsed)))
        self._means += weights * (np.array([busy, prompts, token_s * waiting_tokens, busy]) - self._means)
        self._at, self._queried, self._work_s, self._prompts_s = now, queried, 0.0, 0.0
        busy, prompts, waiting_s, slow = self._means.tolist()
        prompt_s = prompt_token_s * self._stats.prompt_tokens / max(1, self._stats.accepted)
        growth = max(0.0, busy - CHANCE * slow) / (SLOW_S - MEAN_S)
        return Load(busy, prompts, waiting_s, prompt_s, growth) if work_s else None


def fullness(executor: ExecutorState) -> float:
    """Return the share of memory or lanes in use; 1 if a sequence was refused, as admission leaves room to grow."""
    blocks, running = executor.blocks, executor.running
    if executor.is_full or not running.has_free_lane:
        return 1.0
    return max(1.0 - blocks.num_free / blocks.num_blocks, len(running) / executor.limits.max_num_seqs)
