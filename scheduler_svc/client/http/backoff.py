"""How long to wait before something that failed is tried again."""

import random

_MAX_DOUBLINGS = 32  # beyond any limit there is; 2.0**1024 is an OverflowError


def backoff_s(attempt: int, first_s: float, max_s: float) -> float:
    """Seconds after failure number `attempt` (from 0): twice as long each time, less up to half of it at random,
    so that requests that failed together are not repeated together."""
    delay_s: float = min(first_s * 2.0 ** min(attempt, _MAX_DOUBLINGS), max_s)
    return delay_s * random.uniform(0.5, 1.0)  # noqa: S311 (no secret)
