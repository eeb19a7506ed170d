"""`baton keeper`: what the keeper of this machine keeps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from scheduler_svc.client.errors import EXIT_CODES_HELP


def socket_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--socket`."""
    return click.option(
        "--socket",
        "socket_path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="BATON_KEEPER_SOCKET",
        show_envvar=True,
        help="Where the keeper listens.  "
        "[default: keeper.sock in $XDG_RUNTIME_DIR/baton, /tmp/baton-UID or ~/.baton-HOST]",
    )(command)


@click.group(epilog=EXIT_CODES_HELP)
def command() -> None:
    """Show what this machine's keeper keeps, or have it drop some.

    A keeper (`baton-keeper`) holds the KV memory and the weights of executors, so that they outlive them.

    \b
    Example:
      baton keeper status
      baton keeper drop                         pools that no executor holds, weights that none uses
    """


@command.command(epilog=EXIT_CODES_HELP)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@socket_option
def status(*, as_json: bool, socket_path: Path | None) -> None:
    """Show what is kept, for whom and since when."""
    from common.messages import KeeperQuery, KeeperReport  # noqa: PLC0415  (not needed for --help)
    from scheduler_svc.client.keeper.ask import ask  # noqa: PLC0415
    from scheduler_svc.client.keeper.view import print_report, report_json  # noqa: PLC0415

    report = ask(_path(socket_path), KeeperQuery())
    assert isinstance(report, KeeperReport)
    if as_json:
        click.echo(report_json(report))
    else:
        print_report(report)


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("name", default="")
@socket_option
def drop(*, name: str, socket_path: Path | None) -> None:
    """Have memory given back to the machine.

    Without NAME, that of all pools without a holder and all weights without a user. NAME is the beginning of the name
    of such a pool, or of the fingerprint of weights, which go even if they are in use: their users keep them.
    """
    from common.messages import DropKept, Dropped  # noqa: PLC0415
    from scheduler_svc.client.keeper.ask import ask  # noqa: PLC0415
    from scheduler_svc.client.keeper.view import size  # noqa: PLC0415

    dropped = ask(_path(socket_path), DropKept(name=name))
    assert isinstance(dropped, Dropped)
    pools = f"{dropped.num_pools} pool{'s' if dropped.num_pools != 1 else ''}"
    click.echo(f"dropped {pools} and {dropped.num_weights} sets of weights, {size(dropped.num_bytes)}")


def _path(given: Path | None) -> Path:
    from common.keeper_socket import default_socket  # noqa: PLC0415

    return given if given is not None else default_socket()
