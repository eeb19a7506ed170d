"""Time that passes when a test says so."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Stands in for the module `time`."""

    now: float = 0.0

    def monotonic(self) -> float:
        """The time."""
        return self.now

    def time(self) -> float:
        """Seconds since 1970."""
        return 1.8e9 + self.now
