"""How long an answer that broke off is waited for; pure."""

import click

from scheduler_svc.client.http.backoff import backoff_s

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 2.0


class Patience:
    """Counts failures since the last event, and the time since the first of them.

    Args:
        limit_s: seconds that an outage may last, from a break to the next event; 0 gives up at once.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._broke_s: float | None = None
        self._num_failures = 0

    @property
    def is_broken(self) -> bool:
        """Whether no event has come since the last failure."""
        return self._broke_s is not None

    def came(self) -> None:
        """An event came, which ends an outage."""
        self._broke_s = None
        self._num_failures = 0

    def delay_after(self, error: click.ClickException, now_s: float, at_least_s: float = 0.0) -> float:
        """Seconds to wait before the next attempt, after one that failed with `error` at the time `now_s`.

        Args:
            at_least_s: seconds before which the service does not want the next attempt.

        Raises:
            click.ClickException: `error`, when it is too late, or will be by then.
        """
        self._broke_s = now_s if self._broke_s is None else self._broke_s
        left_s = self._broke_s + self._limit_s - now_s
        if left_s <= 0 or at_least_s > left_s:
            raise error
        delay_s = max(min(backoff_s(self._num_failures, _FIRST_DELAY_S, _MAX_DELAY_S), left_s), at_least_s)
        self._num_failures += 1
        return delay_s
