"""`baton rollout`: replace all executors, one by one, while they serve."""

import shlex
import shutil
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.installation import this_command
from scheduler_svc.client.errors import (
    EXIT_CODES_HELP,
    EXIT_INTERRUPTED,
    FleetMisconfigured,
    RequestFailed,
    ServiceSilent,
    ServiceUnreachable,
)
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.http.resume import is_outage
from scheduler_svc.client.options import STATUS_TIMEOUT_S, address_options, timeout_option
from scheduler_svc.client.output import say
from scheduler_svc.client.service_address import ServiceAddress

if TYPE_CHECKING:
    from scheduler_svc.client.http.api import Api
    from scheduler_svc.client.processes.successor import Launcher
    from scheduler_svc.client.rollout.plan import Action, Rollout

_POLL_INTERVAL_S = 0.3


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("names", metavar="[EXECUTOR]...", nargs=-1)
@click.option(
    "--replace-with",
    metavar="COMMAND",
    help="Start this for each executor first, and wait until it has joined. Default: a supervisor (compose, "
    "Kubernetes, systemd, baton up) starts a successor for each executor that has left.",
)
@click.option("--finish", is_flag=True, help="Let the sequences of each end there, instead of handing them over.")
@timeout_option(300.0, "Seconds for each executor, until its successor is ready.")
@click.option("--expect-build", default="", metavar="VERSION", help="Stop at a successor of another build; without "
              "a commit (0.2.0) any of this version will do.")  # fmt: skip
@click.option(
    "--expect-fingerprint", default="", metavar="START", help="Stop at a successor whose fingerprint does not start so."
)
@click.option(
    "--log-dir",
    default=".",
    show_default="this folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the output of what --replace-with starts.",
)
@address_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    names: tuple[str, ...],
    replace_with: str | None,
    finish: bool,
    timeout_s: float,
    expect_build: str,
    expect_fingerprint: str,
    log_dir: Path,
    service: ServiceAddress,
) -> None:
    """Replace all executors, one by one, while they serve.

    Each one (or each EXECUTOR) is told to leave when as many executors are ready as at the start, and the next one's
    turn comes when it has a successor that is ready. No request is lost, and none is ended early; with a single
    executor and no --replace-with, streams pause until its successor is there. A standby waits until an executor has
    left, and goes on with what that one has computed: nothing is computed again.

    \b
    Example:
      baton rollout --expect-build 0.2.0
      baton rollout --replace-with "baton-executor --model Qwen/Qwen3-0.6B --dtype bfloat16"
      baton rollout --replace-with "baton-executor --model Qwen/Qwen3-0.6B --standby"
    """
    from scheduler_svc.client.processes.successor import Launcher  # noqa: PLC0415
    from scheduler_svc.client.rollout.plan import Rollout, RolloutSettings  # noqa: PLC0415  (none is needed for --help)
    from scheduler_svc.client.rollout.view import print_replaced, stop_report  # noqa: PLC0415

    launcher = None if replace_with is None else Launcher(_words(replace_with), log_dir)
    settings = RolloutSettings(
        timeout_s=timeout_s,
        finish=finish,
        starts_successors=launcher is not None,
        starts_standbys=launcher is not None and "--standby" in _words(replace_with or ""),
        build=expect_build,
        fingerprint=expect_fingerprint,
    )
    with connect(replace(service, timeout_s=STATUS_TIMEOUT_S)) as api:
        rollout = Rollout(api.status_for_operator(), names, settings, service.clock.now_s())
        _check_targets(rollout, names)
        try:
            _run(api, rollout, launcher, finish=finish)
        except KeyboardInterrupt:
            rollout.stop("interrupted")
            say(stop_report(rollout))
            ctx.exit(EXIT_INTERRUPTED)
        finally:
            print_replaced(rollout)
    if rollout.stopped:
        raise RequestFailed(stop_report(rollout))


def _words(command_line: str) -> list[str]:
    """The command as words. Raises UsageError if it cannot be started."""
    try:
        words = shlex.split(command_line)
    except ValueError as error:
        raise click.UsageError(f"--replace-with {command_line!r}: {error}") from error
    if not words or shutil.which(words[0]) is None:
        raise click.UsageError(f"--replace-with {command_line!r}: there is no such program (and no shell to ask)")
    return words


def _check_targets(rollout: "Rollout", names: tuple[str, ...]) -> None:
    """Raise RequestFailed if there is no such executor to replace."""
    targets = [process.name for process in rollout.queue]
    if missing := [name for name in names if name not in targets]:
        raise RequestFailed(f"no executor {', '.join(missing)} is ready; see `{this_command()} status`")
    if not targets:
        raise RequestFailed(f"there is no executor that is ready; see `{this_command()} status`")
    say(f"replacing {rollout.targets}")


def _run(api: "Api", rollout: "Rollout", launcher: "Launcher | None", *, finish: bool) -> None:
    """Read the status, decide and act, until the rollout is over."""
    while True:
        try:
            for action in rollout.see(api.status_unless_away(), api.clock.now_s()):
                _act(action, api, rollout, launcher, finish=finish)
        except (OSError, FleetMisconfigured) as error:
            rollout.stop(f"no successor can be started: {error}")
        except click.ClickException as error:
            rollout.stop(error.message)
        if launcher is not None and rollout.waits_for_start and (end := launcher.poll()) is not None:
            rollout.stop(f"{end} before it had joined; its log is {launcher.log_path}")
        if rollout.is_done:
            return
        api.clock.sleep(_POLL_INTERVAL_S)


def _act(action: "Action", api: "Api", rollout: "Rollout", launcher: "Launcher | None", *, finish: bool) -> None:
    from scheduler_svc.client.rollout.plan import Drain, Say, StartSuccessor  # noqa: PLC0415  (not for --help)

    match action:
        case Say(line):
            say(line)
        case StartSuccessor():
            assert launcher is not None, "only asked for with --replace-with"
            say(f"  started a successor (pid {launcher.start()}), its log is {launcher.log_path}", dim=True)
        case Drain(epoch):
            _drain(api, rollout, epoch, finish=finish)


def _drain(api: "Api", rollout: "Rollout", epoch: int, *, finish: bool) -> None:
    """Tell an executor to leave. If the scheduler does not answer, it is asked again after the next report."""
    try:
        rollout.drain_accepted(api.drain(str(epoch), finish=finish))
    except RequestFailed as error:
        if error.status == HTTPStatus.CONFLICT:
            rollout.drain_refused(error.message)
        elif not (is_outage(error) or isinstance(error, ServiceSilent) or error.code == "executor_not_found"):
            raise
    except ServiceUnreachable:
        pass
