"""Tells a request that found its queue full when it is worth another try."""

from collections import deque
from math import ceil

MAX_RETRY_AFTER_S = 48  # frontends add up to a quarter, and clients of OpenAI and Anthropic follow 60 at most

_WINDOW_S = 30.0
_INTERVAL_S = 1.0  # between two looks that are kept


class QueuePace:
    """Measures how fast the queue of one task empties.

    Who is refused takes a place in a line that only this class keeps: after those who were refused before and have not
    been let in since. So clients that are refused together are told different times, and the time grows with them.
    """

    def __init__(self) -> None:
        self._num_accepted = 0
        self._looks: deque[tuple[float, int]] = deque()  # when, and how many sequences had left until then
        self._line = 0
        self._left_at_refusal = 0

    def accepted(self, num_sequences: int, num_waiting: int, now: float) -> None:
        """So many sequences came into the queue; so many wait now."""
        self._num_accepted += num_sequences
        self._look(num_waiting, now)

    def retry_after_s(self, num_sequences: int, num_waiting: int, max_waiting: int, now: float) -> int:
        """Return in how many seconds a refused request fits in, at the pace of the last half minute.

        Args:
            num_sequences: of the request.
            num_waiting, max_waiting: of the queue, now and at most.

        Returns:
            1 to MAX_RETRY_AFTER_S.
        """
        num_left = self._look(num_waiting, now)
        self._line = max(self._line - (num_left - self._left_at_refusal), 0)
        self._line = min(self._line + num_sequences, max_waiting)
        self._left_at_refusal = num_left
        since, before = self._looks[0]
        num_seconds_each = (now - since) / max(num_left - before, 1)
        return min(max(ceil(self._line * num_seconds_each), 1), MAX_RETRY_AFTER_S)

    def _look(self, num_waiting: int, now: float) -> int:
        """Note how many sequences have left the queue since the start, and return it. Those that came back from an
        executor, or from the journal, came without being accepted: they count as fewer that left."""
        num_left = self._num_accepted - num_waiting
        while self._looks and self._looks[0][0] < now - _WINDOW_S:
            self._looks.popleft()
        if not self._looks or self._looks[-1][0] <= now - _INTERVAL_S:
            self._looks.append((now, num_left))
        return num_left
