"""How long grammars' masks take, and how long steps wait for them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.rig.step_records import replaced
from executor_svc.runner.grammar_masks import GrammarMasks, PendingMasks
from executor_svc.runner.grammar_texts import GrammarText

_STATISTICS: dict[str, Callable[[list[float]], Any]] = {
    "mean": np.mean,
    "p50": lambda times: np.percentile(times, 50),
    "p99": lambda times: np.percentile(times, 99),
}


@dataclass(frozen=True)
class MaskTimes:
    """Times in seconds.

    Attributes:
        masks: of each row's mask, with the token that its matcher takes in first.
        waits: of each step with masks: how long its launch waited for them.
    """

    masks: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all times."""
        self.masks.clear()
        self.waits.clear()

    def figures(self) -> dict[str, float | None]:
        """Mean, median and 99th percentile of each in microseconds; None where there were no masks."""
        return {
            f"{name}_{statistic}": round(1e6 * float(of(times)), 1) if times else None
            for name, times in (("us_mask", self.masks), ("us_wait", self.waits))
            for statistic, of in _STATISTICS.items()
        }


@dataclass(frozen=True)
class _TimedMasks:
    _pending: PendingMasks
    _waits: list[float]

    def result(self) -> Any:
        """See `PendingMasks.result`."""
        start = time.perf_counter()
        result = self._pending.result()
        self._waits.append(time.perf_counter() - start)
        return result


@contextmanager
def timed_masks() -> Iterator[MaskTimes]:
    """Times of all masks until the end of the `with` block. Taking them costs under a microsecond a mask."""
    times = MaskTimes()

    def timed_mask(mask: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = mask(*arguments, **options)
            times.masks.append(time.perf_counter() - start)
            return result

        return timed

    def timed_begin(begin: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> _TimedMasks | None:
            pending = begin(*arguments, **options)
            return None if pending is None else _TimedMasks(pending, times.waits)

        return timed

    with replaced(GrammarText, "fill", timed_mask), replaced(GrammarMasks, "begin", timed_begin):
        yield times
