"""`baton drain`: let one executor leave."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from scheduler_svc.client.errors import EXIT_CODES_HELP, RequestFailed
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.options import STATUS_TIMEOUT_S, address_options, timeout_option
from scheduler_svc.client.service_address import ServiceAddress

if TYPE_CHECKING:
    from common.messages import StatusReport
    from scheduler_svc.client.http.api import Api

_POLL_INTERVAL_S = 0.2


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("executor")
@click.option("--finish", is_flag=True, help="Let its sequences end there, instead of handing them over.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it has left.")
@timeout_option(300.0, "Seconds to wait.")
@address_options
def command(*, executor: str, finish: bool, wait: bool, timeout_s: float, service: ServiceAddress) -> None:
    """Let an executor leave; its sequences go on elsewhere.

    EXECUTOR is a name or an epoch, as in `baton status`. Its process ends with exit code 0; whether another one is
    started is up to its supervisor.

    \b
    Example:
      baton drain executor-0
    """
    with connect(replace(service, timeout_s=STATUS_TIMEOUT_S)) as api:
        before = api.status_for_operator()
        epoch = api.drain(executor, finish=finish)
        status = next((status for status in before.executors if status.epoch == epoch), None)
        name = f"{status.executor if status else executor} (epoch {epoch})"
        work = f"; it ran {status.running} sequences" if status else ""
        if not wait:
            click.echo(f"{name} is leaving{work}")
            return
        started_s = api.clock.now_s()
        _wait_until_gone(api, before, epoch, name, timeout_s)
        click.echo(f"{name} has left after {api.clock.now_s() - started_s:.1f} s{work}")


def _wait_until_gone(api: "Api", before: "StatusReport", epoch: int, name: str, timeout_s: float) -> None:
    """Poll the fleet until the epoch is gone.

    Raises:
        RequestFailed: the epoch is still there when the time is up, or the executor came back after the scheduler was
            restarted.
    """
    from scheduler_svc.client.rollout.roster import Roster  # noqa: PLC0415  (not needed for --help)

    roster = Roster(before)
    process = next((process for process in roster.processes if process.epoch == epoch), None)
    deadline_s = api.clock.now_s() + timeout_s
    how_it_is = ""
    while api.clock.now_s() < deadline_s:
        report = api.status_unless_away()
        if report is None:
            how_it_is = "the scheduler does not answer"
        else:
            roster.see(report, api.clock.now_s())
            status = next((status for status in report.executors if status.epoch == epoch), None)
            if status is not None:
                how_it_is = f"it is {status.state} and runs {status.running} sequences"
            elif roster.num_restarts and process is not None and process.is_present:
                raise RequestFailed(f"the scheduler was restarted, and {name} is back, with epoch {process.epoch}")
            elif not roster.num_restarts or process is None or process.is_gone(api.clock.now_s()):
                return
        api.clock.sleep(_POLL_INTERVAL_S)
    raise RequestFailed(f"{name} has not left within {timeout_s:g} s: {how_it_is}")
