"""The last minutes: percentiles of a histogram, pauses, and how busy the service was each second. Pure."""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from common.messages import HistorySample, Percentiles
from scheduler_svc.core.observability.histogram import WeightedHistogram

WINDOW_S = 300.0
STEP_S = 10.0
HIT_RATE_S = 10.0
MAX_PAUSES = 64  # epochs


class RecentPercentiles:
    """Percentiles of what a histogram has seen in the last `WINDOW_S` seconds, to `STEP_S`."""

    def __init__(self, histogram: WeightedHistogram) -> None:
        self._histogram = histogram
        self._at_start = histogram.counts
        self._earlier: deque[tuple[float, tuple[int, ...]]] = deque()

    def tick(self, now: float) -> None:
        """Time passes; to be called more often than each `STEP_S`."""
        if not self._earlier:
            self._earlier.append((now, self._at_start))
        elif now - self._earlier[-1][0] >= STEP_S:
            self._earlier.append((now, self._histogram.counts))
            while now - self._earlier[0][0] > WINDOW_S:
                self._earlier.popleft()

    def read(self) -> Percentiles | None:
        """Of the window; None if nothing was seen in it."""
        before = self._earlier[0][1] if self._earlier else self._at_start
        counts = tuple(new - old for new, old in zip(self._histogram.counts, before, strict=True))
        total = sum(counts)
        if not total:
            return None
        p50, p90, p99 = (_quantile(self._histogram.bounds, counts, part * total) for part in (0.5, 0.9, 0.99))
        return Percentiles(count=total, p50=p50, p90=p90, p99=p99)


def _quantile(bounds: Sequence[float], counts: Sequence[int], rank: float) -> float:
    """The value below which `rank` of the observations are, as Prometheus' histogram_quantile finds it: even within a
    bucket; of the last bucket, which has no end, where it begins."""
    below = 0
    for place, reached in enumerate(accumulate(counts)):
        if reached >= rank:
            if place == len(bounds):
                break
            start = bounds[place - 1] if place else 0.0
            return start + (bounds[place] - start) * (rank - below) / counts[place]
        below = reached
    return bounds[-1]


class Pauses:
    """How long streams paused as an executor's epoch ended, for the last `MAX_PAUSES` of them.

    Attributes:
        longest_s: by epoch, once all of its sequences that had a token have gone on or ended; 0 if there was none.
    """

    def __init__(self) -> None:
        self.longest_s: dict[int, float] = {}
        self._open: dict[int, tuple[int, float]] = {}  # how many sequences pause, and the longest of the others' pauses

    def began(self, epoch: int, num_sequences: int) -> None:
        """An epoch has ended, and so many sequences that had a token pause."""
        self._open[epoch] = (num_sequences, 0.0)
        self._close(epoch)

    def over(self, epoch: int, pause_s: float) -> None:
        """A sequence has gone on after so long, or ended (0)."""
        count, longest_s = self._open[epoch]
        self._open[epoch] = (count - 1, max(longest_s, pause_s))
        self._close(epoch)

    def _close(self, epoch: int) -> None:
        count, longest_s = self._open[epoch]
        if count == 0:
            del self._open[epoch]
            self.longest_s[epoch] = longest_s
            if len(self.longest_s) > MAX_PAUSES:
                del self.longest_s[next(iter(self.longest_s))]


class History:
    """How busy the service was in the last `WINDOW_S` seconds. A second like the one before it is left out.

    Attributes:
        samples: the oldest first.
    """

    def __init__(self) -> None:
        self.samples: deque[HistorySample] = deque()
        self._prompts: deque[tuple[float, int, int]] = deque()

    def add(self, now: float, rates: tuple[float, float], prompts: tuple[int, int], running: int, waiting: int) -> None:
        """Take a sample; to be called each second.

        Args:
            rates: output and prompt tokens a second.
            prompts: prompt tokens that the prefix cache was asked for, and that it had, since the start.
        """
        self._prompts.append((now, *prompts))
        while now - self._prompts[0][0] > HIT_RATE_S:
            self._prompts.popleft()
        _, first_asked, first_had = self._prompts[0]
        asked, had = prompts[0] - first_asked, prompts[1] - first_had
        sample = HistorySample(now, *rates, had / asked if asked else -1.0, running, waiting)
        while self.samples and now - self.samples[0].at > WINDOW_S:
            self.samples.popleft()
        last = self.samples[-1] if self.samples else None
        if last is None or _facts(sample) != _facts(last):
            self.samples.append(sample)

    def after(self, at: float) -> tuple[HistorySample, ...]:
        """The samples after this time."""
        return tuple(sample for sample in self.samples if sample.at > at)


def _facts(sample: HistorySample) -> tuple[float, ...]:
    return (
        sample.output_tokens_per_s,
        sample.prefill_tokens_per_s,
        sample.hit_rate,
        sample.running,
        sample.waiting,
    )
