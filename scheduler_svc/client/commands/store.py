"""`baton store`: copies of what the service keeps, from its files and without it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from scheduler_svc.client.errors import EXIT_CODES_HELP
from scheduler_svc.client.output import say
from scheduler_svc.store_options import state_folder

_FILE = click.Path(dir_okay=False, path_type=Path)


def folder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--store` and `--port`."""
    folder = click.option("--store", "folder", type=click.Path(file_okay=False, readable=False, path_type=Path),
                          metavar="FOLDER", help="The service's store.  [default: journal-PORT.store in "
                          "$XDG_STATE_HOME/baton]")  # fmt: skip
    port = click.option("--port", type=click.IntRange(1, 65535), help="Of the service, if it has neither --store nor "
                        "--journal.  [default: 8000]")  # fmt: skip
    return folder(port(command))


@click.group(epilog=EXIT_CODES_HELP)
def command() -> None:
    """Back up what the service keeps, or restore it.

    That is responses, files and batches. Both work on this machine's files, as the user that the service runs as. The
    folder of a service's store is in its log (`core started`), and beside the journal if none was named.

    \b
    Example:
      baton store backup baton-2026-11-29.db                         while the service runs, or not
      baton store restore baton-2026-11-29.db                        while it does not
    """


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("file", type=_FILE)
@folder_options
def backup(*, file: Path, folder: Path | None, port: int | None) -> None:
    """Copy the store into a new FILE, as it is in one moment, while the service runs.

    The copy is checked. It holds conversations in the clear, and only this user may read it. API keys, whose ids own
    what is in it, are in another file (baton keys): keep a copy of that, too.
    """
    from scheduler_svc.store.backup import back_up  # noqa: PLC0415  (--help needs no sqlite3)

    folder = folder or _default_folder(port)
    say(f"{file} has the store in {folder}: {_told(folder, lambda: back_up(folder, file))}")


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("file", type=_FILE)
@folder_options
def restore(*, file: Path, folder: Path | None, port: int | None) -> None:
    """Make the store of a service that does not run from the backup FILE.

    A folder that has a store is left alone: move it away before. Batches and responses in the background that were open
    go on at the next start.
    """
    from scheduler_svc.store.backup import restore as restored  # noqa: PLC0415  (--help needs no sqlite3)

    folder = folder or _default_folder(port)
    say(f"{folder} has the store in {file}: {_told(folder, lambda: restored(file, folder))}; start the service")


def _default_folder(port: int | None) -> Path:
    """Return the folder of the service at this port. Raises click.UsageError where there are several, and none said."""
    try:
        folder = state_folder()
    except RuntimeError as error:
        raise click.UsageError("this user has no home; name the folder by --store") from error
    name = "journal-{}.store"
    if port is None and len(stores := sorted(folder.glob(name.format("*")))) > 1:
        raise click.UsageError(
            f"there are {', '.join(map(str, stores))}: name the one that is meant by --port or --store"
        )
    return folder / name.format(port or 8000)


def _told(folder: Path, work: Callable[[], dict[str, int]]) -> str:
    """Do the work on the store in a folder, and return what it copied, for people."""
    from scheduler_svc.store.errors import StoreError  # noqa: PLC0415  (not for --help)

    try:
        counts = work()
    except StoreError as error:
        raise click.ClickException(f"{_other_user(folder, error)}{error}") from error
    num_bytes = counts.pop("bytes")
    return ", ".join([f"{num_bytes / 1e6:.1f} MB", *(f"{name}: {count}" for name, count in counts.items())])


def _other_user(folder: Path, error: Exception) -> str:
    """Say as which user the command works where it has failed because the folder is another user's; empty else."""
    from common.installation import this_command  # noqa: PLC0415  (not for --help)
    from common.paths import nearest, user_name  # noqa: PLC0415
    from common.trust import is_waived  # noqa: PLC0415

    place = nearest(folder)
    uid = place.stat().st_uid
    is_free = is_waived() if os.geteuid() == 0 else os.access(place, os.R_OK | os.W_OK | os.X_OK)
    if is_free or uid == os.geteuid() or isinstance(error.__cause__, FileNotFoundError):
        return ""
    name = user_name(uid)
    return f"run it as user {name}: sudo -u {name} {this_command(by_sudo=True)} store ...; "
