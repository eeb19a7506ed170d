"""What arrives, measured from counts that only grow. Pure: the time is the caller's.

Means that forget fast and slowly tell how much arrives, and whether it becomes more; they are exponential (Holt, 1957).
What happens once is not what goes on: arrivals beyond the slow mean, and their variance, count as far as they were
there in both of the last two windows. So a batch that is over, or one long prompt, asks for nothing but its own work.
Seconds are kept for that, and nothing of single requests.
"""

import math
from collections import deque
from typing import NamedTuple

QUICK_S = 5.0
FAST_S = 20.0
SLOW_S = 180.0  # far enough from the fast one that growth stands out from chance
BURST_S = 60.0
ONCE_S = 3.0  # what comes within these came at once: so much lies between two windows
LENGTHS_S = 300.0  # lengths change more slowly than rates
PRIOR_OUTPUT = 128.0  # tokens of an answer, while nothing is known (`answer_lengths.py`)
PRIOR_ANSWERS = 4.0


class Totals(NamedTuple):
    """Counts since the start.

    Attributes:
        sequences: accepted.
        prompt_tokens: of them.
        queried_tokens, cached_tokens: prompt tokens that were looked up in the prefix cache, and found.
        ended: sequences that ended with an answer.
        ended_tokens: of these answers.
    """

    sequences: int = 0
    prompt_tokens: int = 0
    queried_tokens: int = 0
    cached_tokens: int = 0
    ended: int = 0
    ended_tokens: int = 0


class Demand(NamedTuple):
    """What arrives.

    Attributes:
        sequences_per_s: by the fast mean, or more if the last seconds had so many that it is no chance; without a batch
            that came once.
        growth_per_s2: how much that grows each second, as far as it is more than chance; never negative.
        noise_per_s: standard deviation of `sequences_per_s`.
        prompt_tokens: of a sequence, on average.
        computed_share: of prompt tokens, those that the prefix cache does not have.
        output_tokens: of an answer, on average.
        burst: variance of the prompt tokens that arrive, for each second (1 s of a Poisson stream of equal prompts of n
            tokens has n^2 for each arrival).
        lasting_burst: what of it was there before, too.
    """

    sequences_per_s: float
    growth_per_s2: float
    noise_per_s: float
    prompt_tokens: float
    computed_share: float
    output_tokens: float
    burst: float
    lasting_burst: float


class _Sample(NamedTuple):
    """What came in some time, or the sums of such samples.

    Attributes:
        seconds: how long that was.
        squares: `burst`, times the seconds.
    """

    seconds: float = 0.0
    sequences: float = 0.0
    tokens: float = 0.0
    squares: float = 0.0


class Arrivals:
    """Rates of arrivals and mean lengths.

    Args:
        totals: what was counted before.
    """

    def __init__(self, totals: Totals, now: float) -> None:
        self._last, self._at = totals, now
        self._began = now
        self._quick = self._fast = self._slow = self._burst = self._before = 0.0
        self._samples: deque[tuple[float, _Sample]] = deque()  # of two long windows, and when they were taken
        self._sums = Totals()._asdict()  # of what came lately, older counts forgotten

    def sample(self, totals: Totals, now: float) -> None:
        """Note the counts; to be called about once a second."""
        seconds = now - self._at
        if seconds <= 0:
            return
        more = [new - old for new, old in zip(totals, self._last, strict=True)]
        self._last, self._at = totals, now
        rate, tokens = more[0] / seconds, more[1] / seconds
        # A mean of little time is the plain mean of that time: it does not start from zero.
        age = now - self._began
        windows = (QUICK_S, FAST_S, SLOW_S, BURST_S)
        quick, fast, slow, middle = (1.0 if age <= seconds else 1 - math.exp(-seconds / min(w, age)) for w in windows)
        # From one sample to the next: a level that changes is no burst (von Neumann's variance, 1941).
        burst = (tokens - self._before) ** 2 / 2 * seconds
        self._burst += (burst - self._burst) * middle
        self._before = tokens
        self._samples.append((now, _Sample(seconds, more[0], more[1], burst * seconds)))
        while self._samples[0][0] <= now - 2 * BURST_S - ONCE_S:
            self._samples.popleft()
        self._quick += (rate - self._quick) * quick
        self._fast += (rate - self._fast) * fast
        self._slow += (rate - self._slow) * slow
        keep = math.exp(-seconds / LENGTHS_S)
        self._sums = {k: v * keep + n for (k, v), n in zip(self._sums.items(), more, strict=True)}

    def demand(self) -> Demand:
        """What arrives now."""
        sums = self._sums
        prompt = sums["prompt_tokens"] / sums["sequences"] if sums["sequences"] > 0 else 0.0
        cached = sums["cached_tokens"] / sums["queried_tokens"] if sums["queried_tokens"] > 0 else 0.0
        answers = sums["ended"] + PRIOR_ANSWERS
        # Work varies by the number of prompts and by their lengths; the sequences that would vary as much.
        long = self._windows(BURST_S)
        spread = max(1.0, min((w.squares / (w.tokens * prompt) if w.tokens * prompt > 0 else 1.0) for w in long))
        # A jump shows in the last seconds first; what may be chance there does not count.
        sudden = self._quick - 2 * math.sqrt(self._quick * spread / (2 * QUICK_S))
        # What chance may have taken from the emptier window is given back.
        steady = min(w.sequences / w.seconds for w in self._windows(QUICK_S))
        steady += 2 * math.sqrt(max(steady, self._slow) * spread / (2 * QUICK_S))
        rate = min(max(self._fast, sudden), max(self._slow, steady))
        noise = math.sqrt(rate * spread / (2 * FAST_S))
        doubt = math.sqrt(self._slow * spread / 2 * (1 / FAST_S + 1 / SLOW_S))
        growth = max(0.0, min(self._fast, rate) - self._slow - doubt) / (SLOW_S - FAST_S)
        return Demand(
            sequences_per_s=rate,
            growth_per_s2=growth,
            noise_per_s=noise,
            prompt_tokens=prompt,
            computed_share=1.0 - min(1.0, cached),
            output_tokens=(sums["ended_tokens"] + PRIOR_ANSWERS * PRIOR_OUTPUT) / answers,
            burst=self._burst,
            lasting_burst=min(self._burst, *(w.squares / w.seconds for w in long)),
        )

    def _windows(self, window_s: float) -> list[_Sample]:
        """Sums of the last two windows; of one where there was no time for another."""
        sums = []
        for until in (self._at, self._at - window_s - ONCE_S):
            some = [sample for at, sample in self._samples if until - window_s < at <= until]
            sums.append(_Sample(*map(sum, zip(*some, strict=True))) if some else _Sample())
        last, before = sums
        return sums if before.seconds >= window_s / 2 else [last._replace(seconds=max(last.seconds, 1e-9))]
