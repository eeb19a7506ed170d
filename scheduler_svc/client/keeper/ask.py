"""One question to the keeper of this machine."""

from pathlib import Path

import click

from common import messages as m
from common.errors import KeeperError
from scheduler_svc.client.errors import EXIT_UNREACHABLE, RequestFailed
from scheduler_svc.client.processes.keeper import ask_keeper

TIMEOUT_S = 10.0


class KeeperUnreachable(click.ClickException):
    """No keeper answers at the path."""

    exit_code = EXIT_UNREACHABLE


def ask(socket_path: Path, message: m.KeeperQuery | m.DropKept) -> m.FromKeeper:
    """Send a message, and return the answer.

    Raises:
        KeeperUnreachable: there is no keeper, or it has not answered within `TIMEOUT_S`.
        RequestFailed: it refuses.
    """
    try:
        answer = ask_keeper(socket_path, message, TIMEOUT_S)
    except KeeperError as error:
        raise KeeperUnreachable(f"{error}; start one with `baton-keeper`, or name another by --socket") from error
    if isinstance(answer, m.Refused):
        raise RequestFailed(f"the keeper refuses: {answer.reason}")
    return answer
