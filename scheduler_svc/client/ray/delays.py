"""How long to wait before what has ended is started again. Pure."""

_FIRST_S = 1.0
_MAX_S = 60.0
_STABLE_AFTER_S = 120.0


class Delays:
    """Counts starts by key: the first is due at once, and each that follows within two minutes waits twice as long."""

    def __init__(self) -> None:
        self._starts: dict[
            str, tuple[float, int]
        ] = {}  # time of the last one; how many, each soon after the one before

    def is_due(self, key: str, now_s: float) -> bool:
        """Whether it may be started now."""
        if key not in self._starts:
            return True
        last_s, count = self._starts[key]
        delay_s = 0.0 if count == 1 else min(_FIRST_S * 2.0 ** (count - 2), _MAX_S)
        return now_s >= last_s + delay_s

    def started(self, key: str, now_s: float) -> None:
        """It is started now."""
        last_s, count = self._starts.get(key, (now_s, 0))
        self._starts[key] = now_s, 1 if now_s - last_s > _STABLE_AFTER_S else count + 1
