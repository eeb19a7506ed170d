"""`baton keys`: who may connect as an executor, and who may send requests."""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from scheduler_svc.api_key_options import KEYS_FOLDER, KEYS_FOLDER_VARIABLE
from scheduler_svc.client.errors import EXIT_CODES_HELP, EXIT_USAGE
from scheduler_svc.client.output import say

if TYPE_CHECKING:
    from scheduler_svc.client.keys.key_ring import Entry, KeyRing

_SPAN = re.compile(r"([0-9]{1,6})([mhd])", re.ASCII)
HEADS = (
    *("KIND", "NAME", "MADE", "LAST USED", "EXPIRES"),
    *("OPEN REQUESTS", "REQUESTS/MIN", "TOKENS/MIN", "WEIGHT", "RIGHTS", "KEY", "ID"),
)
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


class KeysError(click.ClickException):
    """A command on keys failed; nothing has been changed."""

    exit_code = EXIT_USAGE


def dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--dir`."""
    return click.option(
        "--dir",
        "root",
        envvar=KEYS_FOLDER_VARIABLE,
        show_envvar=True,
        default=KEYS_FOLDER,
        show_default=True,
        type=click.Path(file_okay=False, readable=False, path_type=Path),
        help="The folder with all keys; keep it where you keep secrets.",
    )(command)


@click.group(epilog=EXIT_CODES_HELP)
def command() -> None:
    """Make, list and revoke the keys of executors and clients.

    Executors prove theirs on an encrypted connection (CURVE), clients send theirs with each request. A running
    scheduler notices a new or a revoked key within two seconds.

    \b
    Example:
      baton keys init                           once; then, for each machine with executors:
      baton keys executor gpu-1                 copy baton-keys/executors/gpu-1 to it
      baton keys api alice --max-open-requests 64 --tokens-per-minute 100000 --expires 90d
      baton keys api alice --rotate             later: a second key; then: baton keys revoke alice --old
      baton-scheduler --executor-endpoint tcp://0.0.0.0:5555 \\
        --curve-keys baton-keys/scheduler --api-keys baton-keys/scheduler/api-keys.json
      baton-executor --scheduler tcp://SCHEDULER:5555 --curve-keys gpu-1
    """


@command.command(epilog=EXIT_CODES_HELP)
@click.option("--executor", "executors", multiple=True, metavar="NAME", help="Make the keys of this executor too.")
@dir_option
def init(*, executors: tuple[str, ...], root: Path) -> None:
    """Make the scheduler's own keys; nothing changes if it has them."""
    with _key_ring(root) as ring:
        made = ring.init()
        for name in executors:
            ring.add_executor(name)
    say(f"baton: the scheduler's keys are in {ring.scheduler}" + ("" if made else ", and were before"))
    say(f"  baton-scheduler --executor-endpoint tcp://0.0.0.0:5555 --curve-keys {ring.scheduler}")


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("name")
@dir_option
def executor(*, name: str, root: Path) -> None:
    """Make the keys of executor NAME, and let it connect; nothing changes if that has been done.

    Executors on one machine may share a key: it says who may connect, not who is who.
    """
    with _key_ring(root) as ring:
        made = ring.add_executor(name)
    say(
        f"baton: {name} may connect"
        + ("" if made else ", and could before")
        + "; copy to its machine, and keep mode 600:"
    )
    click.echo(ring.executor_folder(name))


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("name")
@click.option("--max-open-requests", default=0, type=click.IntRange(0, 2**31 - 1), help="Sequences (answers) open at "
              "once: a request with n=4 counts as four. 0 is no limit.")  # fmt: skip
@click.option("--requests-per-minute", default=0, type=click.IntRange(0, 2**31 - 1), help="0 is no limit.")
@click.option("--tokens-per-minute", default=0, type=click.IntRange(0, 2**31 - 1), help="Of prompts, and of answers as "
              "long as they may become; what they do not become is given back. 0 is no limit.")  # fmt: skip
@click.option("--weight", default=1.0, type=click.FloatRange(0.01, 100), show_default=True,
              callback=lambda _, __, weight: _number(weight),
              help="Of its share, where clients compete: 2 gets twice what 1 does.")  # fmt: skip
@click.option("--expires", metavar="WHEN", callback=lambda _, __, when: _moment(when), help="Accept the key only until "
              "90d, 12h, 2027-03-01 or 2027-03-01T12:00 (UTC), or for ever (never).  [default: never]")  # fmt: skip
@click.option("--metrics/--no-metrics", help="May read /status and /metrics (baton status, Prometheus).")
@click.option("--admin/--no-admin", help="As --metrics; may also drain executors (baton drain, baton rollout).")
@click.option("--min-priority", default=0, type=click.IntRange(-100, 0), show_default=True,
              help="Lowest `priority` of its requests: lower values are served earlier. An admin has all.")  # fmt: skip
@click.option("--cache-group", metavar="GROUP", help="Share cached prefixes with the other keys of GROUP, which could "
              "then find out what this client sends.  [default: share with no other key]")  # fmt: skip
@click.option("--rotate", is_flag=True, help="Make a second key of NAME, with all that NAME has: files, responses, "
              "open requests, and rights unless other ones are given here.")  # fmt: skip
@dir_option
@click.pass_context
def api(context: click.Context, /, *, name: str, rotate: bool, root: Path, **rights: Any) -> None:
    """Make an API key for client NAME, and print it; it cannot be shown again.

    A client is its key and not its name: who gets the name of a revoked client gets nothing of what that one had.
    """
    source = context.get_parameter_source
    given = {right: value for right, value in rights.items() if source(right) is not ParameterSource.DEFAULT}
    with _key_ring(root) as ring:
        key = ring.add_api_key(name, rotate=rotate, **given)
    say(f"baton: this is the only time that {name}'s key is shown; {ring.api_keys} has its hash")
    say(f"  a scheduler that finds this file starts only with --api-keys {ring.api_keys} (or --no-api-keys)")
    click.echo(key)


@command.command("list", epilog=EXIT_CODES_HELP)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list of objects.")
@click.option("--state", type=click.Path(file_okay=False, readable=False, path_type=Path), envvar="BATON_STATE_DIR",
              show_envvar=True, metavar="FOLDER", help="The folder of the scheduler's journal, which says when keys "
              "were used.  [default: $XDG_STATE_HOME/baton, and the folder that --dir is in]")  # fmt: skip
@dir_option
def list_(*, as_json: bool, state: Path | None, root: Path) -> None:
    """Show who may connect, and which clients have a key."""
    uses, unknown = _last_uses([state] if state is not None else [*_own_state(), root.absolute().parent])
    with _key_ring(root) as ring:
        entries = ring.entries(uses)
    for reason in unknown:
        say(f"baton: when keys were last used is not known: {reason} (the scheduler's user may read it)")
    if as_json:
        import msgspec  # noqa: PLC0415  (not needed for --help)

        click.echo(msgspec.json.format(msgspec.json.encode(entries), indent=2))
    else:
        _print_table(entries)


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("name", metavar="NAME|ID")
@click.option("--old", "only_old", is_flag=True, help="End a rotation: only the newest key of the client stays.")
@dir_option
def revoke(*, name: str, only_old: bool, root: Path) -> None:
    """Take away the key of an executor, or all keys of a client.

    An executor that is connected loses its place within a few seconds, and its sequences go on elsewhere. A client is
    refused at once; a running scheduler ends its open requests, responses and batches 10 to 15 s later, and deletes
    what it has stored after a day. The same key put back before then finds what is stored.
    """
    with _key_ring(root) as ring:
        kind = ring.revoke(name, only_old=only_old)
    what = "may connect no more" if kind == "executor" else "may send requests no more"
    what = "has its newest key only" if only_old else what
    say(f"baton: {name} {what}; if {ring.scheduler} is a copy of what the scheduler reads, copy it there again")


@contextlib.contextmanager
def _key_ring(root: Path) -> Iterator["KeyRing"]:
    """The folder, with each error as one line."""
    from common.errors import BatonError  # noqa: PLC0415  (zmq and msgspec are not needed for --help)
    from common.paths import why_not  # noqa: PLC0415
    from scheduler_svc.client.keys.key_ring import KeyRing, as_owner_of  # noqa: PLC0415

    try:
        with as_owner_of(root):
            yield KeyRing(root)
    except (BatonError, OSError) as error:
        raise KeysError(why_not(error)) from error


def _own_state() -> list[Path]:
    """The folder in which this user's scheduler keeps its journal by default; none for a user without a home."""
    from scheduler_svc.store_options import state_folder  # noqa: PLC0415

    try:
        return [state_folder()]
    except RuntimeError:
        return []


def _last_uses(folders: Sequence[Path]) -> tuple[dict[str, float], list[str]]:
    """When keys were last used, as far as these folders tell, and why others do not."""
    from common.paths import why_not  # noqa: PLC0415
    from scheduler_svc.key_uses import last_uses  # noqa: PLC0415

    found: dict[str, float] = {}
    faults = []
    for folder in folders:
        try:
            uses = last_uses(folder)
        except OSError as error:
            faults.append(why_not(error))
            uses = {}
        found |= {name: max(at, found.get(name, 0.0)) for name, at in uses.items()}
    return found, faults


def _moment(when: str | None) -> datetime | None:
    """Read what `--expires` says, None for never. Raises BadParameter."""
    if when is None or when == "never":
        return None
    now = datetime.now(UTC)
    try:
        if span := _SPAN.fullmatch(when):
            moment = now + timedelta(**{_UNITS[span[2]]: int(span[1])})
        else:
            moment = datetime.fromisoformat(when)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{when!r} is no time: write 90d, 12h, 2027-03-01, 2027-03-01T12:00 or never"
        ) from None
    if moment <= now:
        raise click.BadParameter(f"{when} is over")
    return moment.astimezone(UTC).replace(microsecond=0)


def _number(value: float) -> float:
    """Return the value. Raises BadParameter for NaN, which no range keeps out."""
    if math.isnan(value):
        raise click.BadParameter("nan is no number")
    return value


def _print_table(entries: Sequence["Entry"]) -> None:
    rows: list[tuple[str, ...]] = [HEADS]
    now = datetime.now(UTC)
    for entry in entries:
        limits = (entry.max_open_requests, entry.requests_per_minute, entry.tokens_per_minute)
        has_expired = entry.expires and datetime.fromisoformat(entry.expires) <= now
        rows.append(
            (
                entry.kind,
                entry.name + (" (old)" if entry.is_old else ""),
                entry.created[:10],
                entry.last_used[:16].replace("T", " ") or "-",
                "expired" if has_expired else entry.expires[:10] or "-",
                *(str(limit or "no limit") if entry.kind == "api" else "-" for limit in limits),
                f"{entry.weight:g}" if entry.kind == "api" else "-",
                "admin" if entry.admin else "metrics" if entry.metrics else "-",
                entry.key,
                entry.id,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
