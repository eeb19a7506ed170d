"""Progress of a long run on stderr: a bar on a terminal, a line every few seconds elsewhere."""

import sys
import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scheduler_svc.client.output import duration, say

LINE_INTERVAL_S = 5.0


class Tally:
    """Counts what has been done since it was made.

    Args:
        total: how many units there are to do.
        unit: name of the units (`lines`).
    """

    def __init__(self, total: int, unit: str) -> None:
        self.total = total
        self.unit = unit
        self.done = 0
        self.tokens = 0
        self.retries = 0
        self._started_s = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started_s

    def seen(self) -> tuple[int, int]:
        """Return the counts, which change as the work goes on."""
        return self.done, self.tokens

    def rates(self) -> str:
        """`812.3 tokens/s`, and the retries if there were any."""
        retries = f", {self.retries} retries" if self.retries else ""
        return f"{self.tokens / self.seconds:.1f} tokens/s{retries}"

    def line(self) -> str:
        """`120 of 500 lines, 812.3 tokens/s, 0:42 min left`"""
        left = f", {duration(self.seconds / self.done * (self.total - self.done))} left" if self.done else ""
        return f"{self.done} of {self.total} {self.unit}, {self.rates()}{left}"


class ProgressReport:
    """Shows a `Tally` while the context lasts, from a thread of its own, so that it shows a stall too."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._terminal = sys.stderr.isatty()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show_bar if self._terminal else self._show_lines, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _show_lines(self) -> None:
        while not self._stop.wait(LINE_INTERVAL_S):
            say(self._tally.line())

    def _show_bar(self) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=self._tally.total)
            while not self._stop.wait(0.1):
                bar.update(task, completed=self._tally.done, description=f"{self._tally.unit}, {self._tally.rates()}")
