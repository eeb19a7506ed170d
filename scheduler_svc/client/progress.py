"""Progress of a long run on stderr: a bar on a terminal, a line every few seconds elsewhere."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from scheduler_svc.client.clock import Clock
from scheduler_svc.client.output import duration, say

LINE_INTERVAL_S = 5.0
ASK_INTERVAL_S = 2.0  # between two questions to the service for a bar
RECENT_S = 10.0  # over which a rate is taken that shows how it goes now


class ServiceTokens(NamedTuple):
    """What a service generates for all of its clients.

    Attributes:
        num_tokens: since the service started.
        per_s: now.
    """

    num_tokens: int
    per_s: float


class Tally:
    """Counts what has been done since it was made.

    Args:
        total: how many units there are to do.
        unit: name of the units (`lines`).
        is_live: whether tokens are counted as they come, and not with the end of their unit.
        now: seconds of a clock that only goes forward.
    """

    def __init__(self, total: int, unit: str, *, is_live: bool = False, now: Callable[[], float] = time.perf_counter):
        self.total = total
        self.unit = unit
        self.done = 0
        self.tokens = 0
        self.retries = 0
        self._is_live = is_live
        self._now = now
        self._started_s = now()
        self._estimate: tuple[float, float] | None = None  # made at these seconds, of so many more
        self._recent = deque([(0.0, 0)])  # seconds and tokens
        self._service: tuple[ServiceTokens, ServiceTokens] | None = None  # when first asked, and now

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._now() - self._started_s

    def advance(self, done: int) -> None:
        """So many units are done. The rest is estimated then, and only becomes less until the next one is done."""
        if done != self.done and done:
            self._estimate = (self.seconds, self.seconds / done * (self.total - done))
        self.done = done

    def hear(self, service: ServiceTokens | None) -> None:
        """Take what the service says of itself; None if it says nothing."""
        if service is None or (self._service is not None and service.num_tokens < self._service[1].num_tokens):
            self._service = None  # it has started again, so that its count begins anew
        if service is not None:
            self._service = (service if self._service is None else self._service[0], service)

    def seen(self) -> tuple[int, int]:
        """Return the counts, which change as the work goes on."""
        return self.done, self.tokens

    def rates(self) -> str:
        """`812.3 tokens/s`, and the retries if there were any."""
        return f"{self.tokens / self.seconds:.1f} tokens/s{self._retried}"

    def line(self) -> str:
        """`120 of 500 lines, 812.3 tokens/s, 0:42 min left`"""
        return f"{self.done} of {self.total} {self.unit}{self.news()}"

    def news(self) -> str:
        """Return what a line has after the units."""
        return "".join((self._speed(), self._retried, self._left()))

    @property
    def _retried(self) -> str:
        return f", {self.retries} retries" if self.retries else ""

    def _speed(self) -> str:
        if self._is_live:
            return f", {self._recent_rate():.1f} tokens/s"
        if self._service is not None:
            first, last = self._service
            new = last.num_tokens - first.num_tokens
            return f", the service generates {last.per_s:.1f} tokens/s ({new} tokens so far)"
        return f", {self.tokens / self.seconds:.1f} tokens/s" if self.tokens else ""

    def _recent_rate(self) -> float:
        now_s = self.seconds
        while len(self._recent) > 1 and self._recent[1][0] <= now_s - RECENT_S:
            self._recent.popleft()
        then_s, tokens = self._recent[0]
        self._recent.append((now_s, self.tokens))
        return (self.tokens - tokens) / max(now_s - then_s, 0.1)

    def _left(self) -> str:
        if self._estimate is None:
            return ""
        at_s, left_s = self._estimate
        return f", {duration(max(at_s + left_s - self.seconds, 0))} left"


class ProgressReport:
    """Shows a `Tally` while the context lasts, from a thread of its own, so that it shows a stall too.

    Args:
        clock: tells when the next line is due.
        ask: what the service generates; None for a service that is not asked.
    """

    def __init__(self, tally: Tally, clock: Clock, ask: Callable[[], ServiceTokens | None] | None = None) -> None:
        self._tally = tally
        self._clock = clock
        self._ask = ask or (lambda: None)
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
        self._tally.hear(self._ask())
        while not self._clock.wait(self._stop, LINE_INTERVAL_S):
            self._tally.hear(self._ask())
            say(self._tally.line())

    def _show_bar(self) -> None:
        from rich.console import Console  # noqa: PLC0415  (a tenth of a second, for those who have a bar)
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=self._tally.total)
            asked_s = -ASK_INTERVAL_S
            while not self._stop.wait(0.1):
                if self._tally.seconds - asked_s >= ASK_INTERVAL_S:
                    asked_s = self._tally.seconds
                    self._tally.hear(self._ask())
                bar.update(task, completed=self._tally.done, description=f"{self._tally.unit}{self._tally.news()}")
