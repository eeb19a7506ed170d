"""Virtual time and randomness. Nothing else decides how a run goes: no clock, no thread, no socket, no hash order."""

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import xxhash


class World:
    """What happens next.

    Args:
        seed: of everything random in the run.
        trace: is given each line of the run's story; None for no story.

    Attributes:
        now: virtual seconds since the start.
        digest: of everything that was sent and when; two equal runs have equal digests.
        faults: injected so far, by kind.
    """

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.now = 0.0
        self.digest = xxhash.xxh3_64()
        self.faults: Counter[str] = Counter()
        self._trace = trace
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._num_events = 0

    def stream(self, concern: str) -> Random:
        """Randomness of one concern, so that more of one does not change the others."""
        return Random(f"{self.seed}/{concern}")

    def at(self, when: float, do: Callable[..., object], *args: Any) -> None:
        """Let something happen at a time, after what happens at the same time and was said before."""
        self._num_events += 1
        heapq.heappush(self._events, (max(when, self.now), self._num_events, do, args))

    def after(self, delay_s: float, do: Callable[..., object], *args: Any) -> None:
        """Let something happen in so many seconds."""
        self.at(self.now + delay_s, do, *args)

    def run(self, until_s: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until a moment, or until the run is over.

        Returns:
            Whether it is over.
        """
        events = self._events
        while not is_over():
            if not events or events[0][0] > until_s:
                self.now = until_s
                return is_over()
            self.now, _, do, args = heapq.heappop(events)
            do(*args)
        return True

    def say(self, who: str, *words: object) -> None:
        """A line of the story."""
        if self._trace is not None:
            self._trace(f"{self.now:9.4f} {who:>10} {' '.join(map(str, words))}")
