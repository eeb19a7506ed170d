"""Executors that fail as soon as they are given work are kept out for a while. Pure: the time is the caller's.

A broken GPU joins, fails its first step, and joins again within milliseconds, idle and therefore attractive. Without
this it would collect a strike for every sequence of the service in no time.
"""

from collections import OrderedDict

FREE_FAILURES = 3  # in a row without a break: the cause may be one request, which has been ended by then
FIRST_BREAK_S = 1.0
LONGEST_BREAK_S = 30.0
MAX_NAMES = 1024


class Probation:
    """Failures in a row, by the name of the executor, without a step that was answered in between."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._out_until: dict[str, float] = {}

    def failed(self, name: str, now: float, *, worked: bool, is_liar: bool = False) -> float:
        """An epoch of this executor ended with a failure.

        Args:
            worked: whether it had answered any plan in that epoch.
            is_liar: whether the failure was an answer that cannot be true: no sequence can have caused that.

        Returns:
            Seconds for which it is kept out, 0 if it may come back at once.
        """
        if worked and not is_liar:
            self.forgive(name)
            return 0.0
        failures = max(self._failures.pop(name, 0), FREE_FAILURES if is_liar else 0) + 1
        self._failures[name] = failures
        if len(self._failures) > MAX_NAMES:
            oldest, _ = self._failures.popitem(last=False)
            self._out_until.pop(oldest, None)
        if failures <= FREE_FAILURES:
            return 0.0
        out_s = min(LONGEST_BREAK_S, FIRST_BREAK_S * 2.0 ** min(failures - FREE_FAILURES - 1, 30))
        self._out_until[name] = now + out_s
        return out_s

    def forgive(self, name: str) -> None:
        """The executor has shown that it can work, or left in order."""
        self._failures.pop(name, None)
        self._out_until.pop(name, None)

    def is_out(self, name: str, now: float) -> bool:
        """Whether the executor is kept out."""
        return now < self._out_until.get(name, float("-inf"))
