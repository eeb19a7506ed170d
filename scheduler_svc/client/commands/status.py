"""`baton status`: what the service is doing now."""

import contextlib
import sys
from typing import TYPE_CHECKING

import click

from scheduler_svc.client.errors import EXIT_CODES_HELP
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.options import service_options
from scheduler_svc.client.service_address import ServiceAddress

if TYPE_CHECKING:
    from common.messages import StatusReport
    from scheduler_svc.client.http.api import Api


@click.command(epilog=EXIT_CODES_HELP)
@click.option(
    "--watch",
    "interval_s",
    is_flag=False,
    flag_value=2.0,
    type=click.FloatRange(min=0.1),
    metavar="[SECONDS]",
    help="Show it again every so many seconds (2 if no number is given) until Ctrl-C.",
)
@click.option("--json", "as_json", is_flag=True, help="The report of GET /status; with --watch one line each.")
@service_options
def command(*, interval_s: float | None, as_json: bool, service: ServiceAddress) -> None:
    """Show the executors, the queue and the throughput.

    A service with API keys needs one that was made with --metrics or --admin.

    \b
    Example:
      baton status --watch
    """
    with connect(service) as api:
        if interval_s is None:
            _show(api.status(), as_json=as_json)
            return
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the command; it is not a failure
            if sys.stdout.isatty() and not as_json:
                _watch_live(api, interval_s)
            else:
                _watch_lines(api, interval_s, as_json=as_json)


def _show(report: "StatusReport", *, as_json: bool, compact: bool = False) -> None:
    if as_json:
        import msgspec  # noqa: PLC0415

        line = msgspec.json.encode(report)
        click.echo(line if compact else msgspec.json.format(line, indent=2))
    else:
        from scheduler_svc.client.status.view import print_status  # noqa: PLC0415

        print_status(report)


def _watch_lines(api: "Api", interval_s: float, *, as_json: bool) -> None:
    """Print the status repeatedly."""
    while True:
        _show(api.status(), as_json=as_json, compact=True)
        api.clock.sleep(interval_s)


def _watch_live(api: "Api", interval_s: float) -> None:
    """Redraw in place; if the service is away for a moment (a restart), wait for it."""
    from rich.live import Live  # noqa: PLC0415

    from scheduler_svc.client.status.view import status_view  # noqa: PLC0415

    with Live(status_view(api.status()), screen=True, auto_refresh=False) as live:
        while True:
            api.clock.sleep(interval_s)
            try:
                live.update(status_view(api.status()), refresh=True)
            except click.ClickException as error:
                live.update(error.format_message(), refresh=True)
