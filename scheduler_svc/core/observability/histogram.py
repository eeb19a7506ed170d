"""A histogram that takes many equal observations at once: one step gives all its sequences a token. Pure."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class WeightedHistogram(Collector):
    """As prometheus_client's, which takes one observation at a time.

    Args:
        bounds: the largest value of each bucket but the last, ascending.

    Attributes:
        bounds: as given.
        sum: of all that was observed.
    """

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._name, self._text = name, text
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self._counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many there were in each bucket; the last one has no bound."""
        return tuple(self._counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Something had this value, so many times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def collect(self) -> Iterable[Metric]:
        """Its one metric."""
        family = HistogramMetricFamily(self._name, self._text)
        names = [*map(str, map(float, self.bounds)), "+Inf"]
        family.add_metric([], list(zip(names, accumulate(self._counts), strict=True)), self.sum)
        yield family
