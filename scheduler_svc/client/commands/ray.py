"""`baton ray`: a fleet on a Ray cluster. Ray is imported by its subcommands, when they run."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.errors import BatonError
from common.installation import require
from scheduler_svc.api_key_options import api_key_options, require_keys_or_consent
from scheduler_svc.client.commands.executor_options import engine_options
from scheduler_svc.client.errors import EXIT_CODES_HELP, FleetMisconfigured, RequestFailed
from scheduler_svc.client.processes.words import words
from scheduler_svc.frontend_options import FrontendOptions, frontend_options

if TYPE_CHECKING:
    from scheduler_svc.client.ray.operator import Operator
    from scheduler_svc.client.ray.spec import RayFleetSpec

_POSITIVE = click.IntRange(min=1)


@click.group(epilog=EXIT_CODES_HELP)
def command() -> None:
    """Run a fleet on a Ray cluster.

    Ray places, replaces and scales it. What runs is the same scheduler and the same executors as everywhere else, each
    in an actor. Baton has to be installed on every node, with the extras `executor` and `ray`, or named in a runtime
    environment. It is not on PyPI: install it from a checkout, or from a wheel by its path.

    \b
    Example:
      baton ray up --model Qwen/Qwen3-8B --executors 8 --gpus-per-executor 1
      baton ray rollout --runtime-env '{"py_modules": ["./baton_llm-0.2.0-py3-none-any.whl"]}' --standby
      baton ray down
    """


def _fleet_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--address`, `--fleet` and `--timeout`; the command gets the first two as `where`."""

    @click.option("--address", default="auto", show_default=True, envvar="RAY_ADDRESS", show_envvar=True,
                  help="Of the Ray cluster, as `ray.init` takes it.")  # fmt: skip
    @click.option("--fleet", default="baton", show_default=True, callback=_check_fleet, help="Name of the fleet.")
    @wraps(function)
    def with_where(address: str, fleet: str, **options: Any) -> Any:
        return function(where=(address, fleet), **options)

    return with_where


def _check_fleet(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", value):
        raise click.BadParameter(f"{value!r} is no name: 1 to 32 of a to z, 0 to 9 and dashes, no dash first")
    return value


def _timeout_option(default_s: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--timeout", "timeout_s", default=default_s, show_default=True,
                        type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
                        help="How long to wait. The fleet goes on by itself.")  # fmt: skip


@command.command("up", epilog=EXIT_CODES_HELP, context_settings={"show_default": True})
@click.option("--model", help="Folder or GGUF file (on every node), or hub id.  [default: the embedded demo model]")
@frontend_options
@click.option("--host", default="0.0.0.0", help="Where the scheduler serves HTTP, on its node.")  # noqa: S104
@click.option("--port", default=8000, type=click.IntRange(1, 65535), help="The same.")
@click.option("--executor-port", default=5555, type=click.IntRange(1, 65535),
              help="Where executors connect, on the scheduler's node; encrypted.")  # fmt: skip
@api_key_options(exists=True)
@click.option("--executors", default=1, type=click.IntRange(min=0), help="How many; those for which there are no "
              "resources yet wait.")  # fmt: skip
@click.option("--gpus-per-executor", default=0, type=click.IntRange(min=0), help="Of one node; several share the model "
              "(tensor parallel). 0 computes on CPUs.")  # fmt: skip
@click.option(
    "--cpus-per-executor", default=1.0, type=click.FloatRange(min=0, min_open=True), help="As Ray counts them."
)
@click.option("--threads", type=_POSITIVE, help="Threads of an executor on CPUs.  [default: its CPUs]")
@click.option("--min-executors", type=click.IntRange(min=0), help="Autoscaling: at least so many.  [default: 1]")
@click.option("--max-executors", type=_POSITIVE, help="Autoscaling: at most so many, by --target-ttft.")
@click.option("--target-ttft", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="Autoscaling: the time to the first token that is to be kept.")  # fmt: skip
@click.option("--standby", is_flag=True, help="A second process for each executor, which goes on where that one ends.")
@click.option("--no-keep", is_flag=True, help="Weights and KV cache of an executor end with it: no keepers.")
@click.option("--journal", help="File on a path that all nodes see, so that the scheduler may move to another node.  "
              "[default: one on its node]")  # fmt: skip
@click.option("--no-journal", is_flag=True, help="Lose open requests when the scheduler ends.")
@engine_options
@click.option("--runtime-env", metavar="JSON|FILE", help="Ray's runtime environment of all processes.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the fleet is complete.")
@_timeout_option(600.0)
@_fleet_options
def up(
    *,
    where: tuple[str, str],
    model: str | None,
    frontend: FrontendOptions,
    api_keys_file: Path | None,
    no_api_keys: bool,
    executors: int,
    gpus_per_executor: int,
    cpus_per_executor: float,
    threads: int | None,
    min_executors: int | None,
    max_executors: int | None,
    target_ttft: float | None,
    no_keep: bool,
    engine: tuple[str, ...],
    runtime_env: str | None,
    no_wait: bool,
    timeout_s: float,
    **options: Any,
) -> None:
    """Start a fleet on a Ray cluster.

    The scheduler starts on the node where this command runs, executors where Ray has the resources; keys for the link
    between them are made and handed out. What dies is started again, a node that is to go (Ray's drain notice) hands
    its sequences over first, and the fleet goes on when this command has ended.

    \b
    Example:
      baton ray up --model Qwen/Qwen3-32B --executors 2 --gpus-per-executor 4 --journal /shared/baton/journal.sqlite3
    """
    if options["standby"] and no_keep:
        raise click.UsageError("--standby and --no-keep contradict each other")
    if options["journal"] is not None and options["no_journal"]:
        raise click.UsageError("--journal and --no-journal contradict each other")
    if max_executors is None and (min_executors is not None or target_ttft is not None):
        raise click.UsageError("--min-executors and --target-ttft need --max-executors")
    require_keys_or_consent(api_keys_file, no_api_keys, options["journal"] and Path(options["journal"]).parent)
    limits = words(min_executors=min_executors, max_executors=max_executors, target_ttft=target_ttft)
    operator = _operator(where, runtime_env)
    from scheduler_svc.client.ray.start import announce, new_spec  # noqa: PLC0415  (--help needs no Ray)

    spec = new_spec(
        operator,
        model=model,
        executors=max(executors, min_executors or 0),
        scales=max_executors is not None,
        cpus=cpus_per_executor,
        gpus=gpus_per_executor,
        keeps=not no_keep,
        api_keys_file=api_keys_file,
        scheduler_options=(*frontend.arguments(), *limits, *(("--no-api-keys",) if no_api_keys else ())),
        stop_grace_s=frontend.stop_grace_s,
        executor_options=(*words(threads=threads), *engine),
        **options,
    )
    operator.start(spec, timeout_s)
    if not no_wait:
        announce(operator, spec, timeout_s)


@command.command("status", epilog=EXIT_CODES_HELP)
@_fleet_options
def status(*, where: tuple[str, str]) -> None:
    """Show where each process of the fleet is. `baton status --url URL` shows what the executors do.

    \b
    Example:
      baton ray status
    """
    operator = _operator(where)
    from scheduler_svc.client.ray.view import print_view  # noqa: PLC0415

    print_view(operator.view(), operator.spec())


@command.command("scale", epilog=EXIT_CODES_HELP)
@click.argument("executors", type=click.IntRange(min=0))
@click.option("--no-wait", is_flag=True, help="Do not wait until the fleet is complete.")
@_timeout_option(600.0)
@_fleet_options
def scale(*, where: tuple[str, str], executors: int, no_wait: bool, timeout_s: float) -> None:
    """Change how many executors there are to be, in a fleet without autoscaling.

    \b
    Example:
      baton ray scale 4
    """

    def change(spec: "RayFleetSpec") -> "RayFleetSpec":
        if spec.scales:
            raise RequestFailed("the scheduler says how many executors there are to be (--max-executors)")
        return replace(spec, executors=executors)

    operator = _operator(where)
    _follow(operator, operator.change(change, timeout_s), timeout_s, waits=not no_wait)


@command.command("rollout", epilog=EXIT_CODES_HELP)
@click.option("--runtime-env", metavar="JSON|FILE", help="Ray's runtime environment of the new executors.  "
              "[default: as it is]")  # fmt: skip
@click.option("--standby", "by_standby", is_flag=True, help="Each executor leaves when its successor waits as its "
              "standby, and nothing is computed again; otherwise the successor starts when it has left.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Do not wait until the fleet is complete.")
@_timeout_option(1800.0)
@_fleet_options
def rollout(
    *, where: tuple[str, str], runtime_env: str | None, by_standby: bool, no_wait: bool, timeout_s: float
) -> None:
    """Replace all executors, one by one, while they serve.

    A new one that cannot run as configured ends the rollout, and the old ones go on.

    \b
    Example:
      baton ray rollout --runtime-env '{"py_modules": ["./baton_llm-0.2.0-py3-none-any.whl"]}' --standby
    """

    operator = _operator(where, runtime_env)

    def change(spec: "RayFleetSpec") -> "RayFleetSpec":
        env = spec.executor_env if runtime_env is None else operator.runtime_env
        executor_revision = spec.executor_revision + 1
        return replace(spec, executor_env=env, executor_revision=executor_revision, by_standby=by_standby)

    _follow(operator, operator.change(change, timeout_s), timeout_s, waits=not no_wait)


@command.command("down", epilog=EXIT_CODES_HELP)
@_timeout_option(120.0)
@_fleet_options
def down(*, where: tuple[str, str], timeout_s: float) -> None:
    """End a fleet: the scheduler first, when its open answers have ended, then executors. The journal stays.

    \b
    Example:
      baton ray down
    """
    operator = _operator(where)
    from scheduler_svc.client.ray.operator import say  # noqa: PLC0415

    operator.change(lambda spec: replace(spec, is_stopping=True), timeout_s)
    operator.wait(lambda view: view.is_down, timeout_s, say, fails=False)
    operator.remove_manager()
    click.echo(f"fleet {where[1]} is down")


def _follow(operator: "Operator", spec: "RayFleetSpec", timeout_s: float, *, waits: bool) -> None:
    from scheduler_svc.client.ray.operator import say  # noqa: PLC0415

    revision = f"revision {spec.executor_revision}"
    if not waits:
        click.echo(f"fleet {spec.name} changes to {revision}; see `baton ray status`")
        return
    view = operator.wait(lambda view: view.is_complete, timeout_s, say)
    click.echo(f"fleet {spec.name}: {len(view.seen.ready or ())} executors of {revision}")


def _operator(where: tuple[str, str], runtime_env: str | None = None) -> "Operator":
    """Connect to Ray. Raises FleetMisconfigured if it is not installed."""
    try:
        require({"ray": "ray"}, "`baton ray`")
    except BatonError as error:
        raise FleetMisconfigured(str(error)) from error
    from scheduler_svc.client.ray.operator import Operator, read_runtime_env  # noqa: PLC0415

    return Operator(*where, read_runtime_env(runtime_env))
