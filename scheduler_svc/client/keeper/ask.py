"""One question to the keeper of this machine."""

import os
from pathlib import Path

import click

from common import messages as m
from common.errors import KeeperError
from common.installation import this_command
from common.keeper_socket import NAME
from common.paths import user_name
from scheduler_svc.client.errors import EXIT_UNREACHABLE, RequestFailed
from scheduler_svc.client.processes.keeper import ask_keeper

TIMEOUT_S = 10.0


class KeeperUnreachable(click.ClickException):
    """No keeper answers at the path."""

    exit_code = EXIT_UNREACHABLE


def owner_elsewhere(socket_path: Path) -> str:
    """Name the other user whose keeper a path may be of, and who alone may ask it; empty if there is nothing."""
    for path in (socket_path.absolute(), *socket_path.absolute().parents):
        try:
            uid = path.lstat().st_uid
        except PermissionError:
            continue  # the folder that is closed to this user tells whose all of it is
        except OSError:
            return ""
        return user_name(uid) if uid != os.geteuid() else ""
    return ""


def advice(socket_path: Path) -> str:
    """Say what helps where no keeper answers: another user has one there or at a usual place, or none runs."""
    usual = [Path("/run/baton/keeper.sock"), Path("/run/baton/keeper/keeper.sock")]  # of units, and of the images
    usual += sorted(folder / NAME for folder in Path("/tmp").glob("baton-[0-9]*"))  # noqa: S108  (only looked at)
    for path in (socket_path, *usual):
        if user := owner_elsewhere(path):
            return (
                f"ask the one of user {user} as that user: "
                f"sudo -u {user} {this_command(by_sudo=True)} keeper status --socket {path}"
            )
    return "start one with `baton-keeper`, or name another by --socket"


def ask(socket_path: Path, message: m.KeeperQuery | m.DropKept) -> m.FromKeeper:
    """Send a message, and return the answer.

    Raises:
        KeeperUnreachable: there is no keeper, or it has not answered within `TIMEOUT_S`.
        RequestFailed: it refuses.
    """
    try:
        answer = ask_keeper(socket_path, message, TIMEOUT_S)
    except KeeperError as error:
        raise KeeperUnreachable(f"{error}; {advice(socket_path)}") from error
    if isinstance(answer, m.Refused):
        raise RequestFailed(f"the keeper refuses: {answer.reason}")
    return answer
