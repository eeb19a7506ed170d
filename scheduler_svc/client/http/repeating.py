"""Repeats requests that may be sent twice, while the service is away or has too much to do."""

import http
from collections.abc import Callable
from typing import TypeVar

import click

from scheduler_svc.client.clock import Clock
from scheduler_svc.client.errors import RequestFailed, ServiceSilent
from scheduler_svc.client.http.patience import Patience
from scheduler_svc.client.http.resume import NO_EXECUTOR, is_outage
from scheduler_svc.client.output import OutageNotice

_LASTING_CODES = ("insufficient_quota",)  # 429, but nothing changes by waiting

Result = TypeVar("Result")


def repeated(
    call: Callable[[], Result],
    is_waited_for: Callable[[click.ClickException], bool],
    limit_s: float,
    outage: OutageNotice,
    clock: Clock,
) -> Result:
    """What a call gives, once the service is there for it.

    Args:
        is_waited_for: whether the call is repeated after an error.
        limit_s: seconds that an outage may last; 0 gives up at once.
        outage: is told of it.
        clock: by which it waits.

    Raises:
        click.ClickException: the call's last error: one that is not waited for, or one that did not pass in time.
    """
    patience = Patience(limit_s)
    while True:
        try:
            result = call()
        except click.ClickException as error:
            if not is_waited_for(error):
                raise
            at_least_s = error.retry_after_s if isinstance(error, RequestFailed) else 0.0
            delay_s = patience.delay_after(error, clock.now_s(), at_least_s)
            outage.away(how_it_is(error))
            clock.sleep(delay_s)
        else:
            outage.back()
            return result


def may_pass(error: click.ClickException) -> bool:
    """Whether the same request may succeed later."""
    return is_outage(error) or isinstance(error, ServiceSilent) or _is_overload(error) or _may_come(error)


def how_it_is(error: click.ClickException) -> str:
    """What an error that may pass says of the service, for an `OutageNotice`."""
    if _is_overload(error):
        return "busy"
    return f"there, but {error.message}" if _may_come(error) else "away"


def _may_come(error: click.ClickException) -> bool:
    return isinstance(error, RequestFailed) and error.code == NO_EXECUTOR


def _is_overload(error: click.ClickException) -> bool:
    if not isinstance(error, RequestFailed):
        return False
    return error.status == http.HTTPStatus.TOO_MANY_REQUESTS and error.code not in _LASTING_CODES
