"""What a manager remembers: how long something has been so, and when something was started last. Pure."""

_FIRST_S = 1.0
_MAX_S = 60.0
_STABLE_AFTER_S = 120.0


class Durations:
    """How long each of many conditions has held."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def of(self, key: str, now_s: float, *, holds: bool) -> float:
        """Seconds for which a condition has held, as far as it was asked about; 0 if it does not hold."""
        if not holds:
            self._since.pop(key, None)
            return 0.0
        return now_s - self._since.setdefault(key, now_s)


class Delays:
    """Counts starts by key: the first is due at once, and each that follows within two minutes waits twice as long."""

    def __init__(self) -> None:
        # Of each key: the time of the last start, and how many there were, each soon after the one before.
        self._starts: dict[str, tuple[float, int]] = {}

    def starts(self, key: str, now_s: float) -> bool:
        """Whether it may be started now; if so, it counts as started."""
        last_s, count = self._starts.get(key, (now_s, 0))
        if now_s < last_s + (0.0 if count <= 1 else min(_FIRST_S * 2.0 ** (count - 2), _MAX_S)):
            return False
        self._starts[key] = now_s, 1 if now_s - last_s > _STABLE_AFTER_S else count + 1
        return True
