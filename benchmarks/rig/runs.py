"""What is measured of one run of requests, whichever service ran them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class TimedRun:
    """From the first request to the last token, in seconds of the monotonic clock."""

    start_s: float
    end_s: float
    num_tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return self.num_tokens / (self.end_s - self.start_s)


def median_run(runs: Sequence[TimedRun]) -> TimedRun:
    """The run that stands for all (of an even number of runs, the slower one of the two in the middle)."""
    return sorted(runs, key=lambda run: run.tokens_per_s)[(len(runs) - 1) // 2]


def rates(runs: Sequence[TimedRun], digits: int = 1) -> dict[str, Any]:
    """Output tokens a second: the median of the runs, and each run."""
    each = [run.tokens_per_s for run in runs]
    return {"tok_s": round(median(each), digits), "tok_s_runs": [round(rate, digits) for rate in each]}
