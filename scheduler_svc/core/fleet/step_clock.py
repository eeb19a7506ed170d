"""When a live executor must have answered: a limit learned from its own steps. Pure: the time is the caller's.

Heartbeats come from a thread of their own, so an executor whose computing thread hangs (a stuck kernel, a collective
that waits for a dead rank) goes on sending them. It does not answer its plans.
"""

from collections import defaultdict, deque
from typing import NamedTuple

FIRST_STEP_LIMIT_S = 120.0  # before anything was learned: kernels may still be compiled in the first step
DEFAULT_FLOOR_S = 10.0
LATE_S = 2.0  # an answer that takes longer is late
PATIENCE = 10.0  # times the longest that a step of this size has taken
DECAY = 0.99  # of the longest, with each step of its size: one slow step is not remembered for ever
PACE_SHARE = 0.02  # of a step in the average of its executor, and in that of all
MOST_SLOWNESS = 4.0  # of one step: the first one of a size may compile kernels
_SIZES = 33  # powers of two of an int32


class _UnansweredPlan(NamedTuple):
    step: int
    num_tokens: int
    at: float

    @property
    def size(self) -> int:
        return self.num_tokens.bit_length()


class Overdue(NamedTuple):
    """A plan whose answer is late."""

    step: int
    num_tokens: int
    took_s: float
    limit_s: float

    def __str__(self) -> str:
        """For people."""
        tokens = f"step {self.step} of {self.num_tokens} tokens"
        return f"no answer to {tokens} for {self.took_s:.1f} s, the limit is {self.limit_s:.1f} s (see --step-timeout)"


class Answered(NamedTuple):
    """A plan that was answered.

    Attributes:
        num_tokens: of it.
        seconds: since it left; no step of it has taken longer.
        took_s: since it left or, if that was later, since the plan before it was answered.
    """

    num_tokens: int
    seconds: float
    took_s: float = 0.0


class StepClock:
    """Plans on their way to one executor, and how long its steps took.

    A plan's time counts from when the one before it was answered. Steps are told apart by the power of two of their
    tokens: a long prompt takes a thousand times what a decode takes.

    Args:
        floor_s: the shortest limit.
        earlier: the clock of the same executor's last epoch, if there was one; this clock keeps what that one learned.
    """

    def __init__(self, floor_s: float = DEFAULT_FLOOR_S, earlier: "StepClock | None" = None) -> None:
        self._floor_s = floor_s
        self._sent: deque[_UnansweredPlan] = deque()
        self._longest_s: list[float] = [0.0] * _SIZES if earlier is None else earlier._longest_s[:]
        self._last_answer = float("-inf")
        self.num_sent = 0
        self.num_answered = 0

    def sent(self, step: int, num_tokens: int, now: float) -> None:
        """A plan of so many tokens left."""
        self.num_sent += 1
        self._sent.append(_UnansweredPlan(step, num_tokens, now))

    def answered(self, step: int, now: float) -> Answered:
        """An answer came. An answer to another step than the oldest is not counted: the scheduler refuses it.

        Returns:
            What it answers; nothing if it is not counted.
        """
        if not self._sent or self._sent[0].step != step:
            return Answered(0, 0.0)
        sent = self._sent.popleft()
        took_s = now - max(sent.at, self._last_answer)
        self._longest_s[sent.size] = max(took_s, self._longest_s[sent.size] * DECAY)
        self._last_answer = now
        self.num_answered += 1
        return Answered(sent.num_tokens, now - sent.at, took_s)

    def overdue(self, now: float) -> Overdue | None:
        """The oldest plan, if it has taken longer than its limit.

        The limit of its size is doubled then: the plan may only have been slow.
        """
        if not self._sent:
            return None
        oldest = self._sent[0]
        took_s, limit_s = self._took_s(now), self.limit_s(oldest.size)
        if took_s <= limit_s:
            return None
        self._longest_s[oldest.size] = max(self._longest_s[oldest.size], 2 * limit_s / PATIENCE)
        return Overdue(oldest.step, oldest.num_tokens, took_s, limit_s)

    @property
    def tokens_per_s(self) -> float:
        """Tokens that a second of large steps computes at least, as far as is known; 0 before the first answer."""
        known = [2.0 ** (size - 1) / longest_s for size, longest_s in enumerate(self._longest_s) if longest_s]
        return max(known, default=0.0)

    def is_late(self, now: float) -> bool:
        """Whether the oldest plan has taken longer than other sequences should wait for."""
        return bool(self._sent) and self._took_s(now) > LATE_S

    def paused(self, seconds: float, now: float) -> None:
        """The caller did not run for so long: the plans on their way have that much more time."""
        self._sent = deque(sent._replace(at=min(sent.at + seconds, now)) for sent in self._sent)
        self._last_answer = min(self._last_answer + seconds, now)

    def limit_s(self, size: int) -> float:
        """What a step whose tokens have so many binary digits may take."""
        expected_s = self._longest_s[size]
        if expected_s == 0.0:  # none of this size yet: a larger step took longer, a smaller one less
            larger = [s for s in self._longest_s[size:] if s]
            smaller = [(s, size - i) for i, s in enumerate(self._longest_s[:size]) if s]
            if larger:
                expected_s = larger[0]
            elif smaller:
                seconds, doublings = smaller[-1]
                expected_s = seconds * 2.0**doublings
            else:
                return max(self._floor_s, FIRST_STEP_LIMIT_S)
        return max(self._floor_s, PATIENCE * expected_s)

    def _took_s(self, now: float) -> float:
        """How long the oldest plan has been computed."""
        return now - max(self._sent[0].at, self._last_answer)


class Paces:
    """How long steps of each size take on average, by model: by that executors of one model are compared."""

    def __init__(self) -> None:
        self._typical_s: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * _SIZES)

    def compared(self, model: str, slowness: float, answered: Answered) -> float:
        """Note an answer, and return the slowness of its executor, which was so great before.

        Returns:
            How long its steps take, over how long steps of their sizes take on average: of about 50 steps.
        """
        typical_s, size = self._typical_s[model], answered.num_tokens.bit_length()
        before = typical_s[size] or answered.took_s
        typical_s[size] = before + (answered.took_s - before) * PACE_SHARE
        ratio = answered.took_s / before if before > 0 else 1.0
        return slowness + (min(max(ratio, 1 / MOST_SLOWNESS), MOST_SLOWNESS) - slowness) * PACE_SHARE
