"""One question to the keeper of this machine."""

from pathlib import Path

import click

from common import messages as m
from common.errors import KeeperError, WireError
from common.keeper_socket import connect_to_keeper
from common.packets import PacketConnection
from scheduler_svc.client.errors import EXIT_UNREACHABLE, RequestFailed

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
        connection: PacketConnection[m.FromKeeper] = PacketConnection(
            connect_to_keeper(socket_path, TIMEOUT_S), m.FromKeeper, m.MAX_ANSWER_BYTES
        )
    except KeeperError as error:
        raise KeeperUnreachable(f"{error}; start one with `baton-keeper`, or name another by --socket") from error
    try:
        connection.send(message)
        answer = connection.receive()
    except (OSError, WireError) as error:
        raise KeeperUnreachable(f"the keeper at {socket_path} does not answer: {error}") from error
    finally:
        connection.close()
    if answer is None:
        raise KeeperUnreachable(f"the keeper at {socket_path} closed the connection")
    if isinstance(answer[0], m.Refused):
        raise RequestFailed(f"the keeper refuses: {answer[0].reason}")
    return answer[0]
