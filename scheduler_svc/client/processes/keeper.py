"""The keeper of this machine, as the client asks it."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import KeeperError, WireError
from common.keeper_socket import connect_to_keeper

if TYPE_CHECKING:
    from common import messages as m

_TIMEOUT_S = 1.0  # of a fleet, which has other things to do


def ask_keeper(socket_path: Path, message: "m.KeeperQuery | m.DropKept", timeout_s: float) -> "m.FromKeeper":
    """Send a message, and return the answer.

    Raises:
        KeeperError: there is no keeper, or it has not answered within `timeout_s`.
    """
    from common import messages as m  # noqa: PLC0415  (--help needs no messages)
    from common.packets import PacketConnection  # noqa: PLC0415

    connected = connect_to_keeper(socket_path, timeout_s)
    with contextlib.closing(PacketConnection[m.FromKeeper](connected, m.FromKeeper, m.MAX_ANSWER_BYTES)) as connection:
        try:
            connection.send(message)
            answer = connection.receive()
        except (OSError, WireError) as error:
            raise KeeperError(f"the keeper at {socket_path} does not answer: {error}") from error
    if answer is None:
        raise KeeperError(f"the keeper at {socket_path} closed the connection")
    return answer[0]


def keeper_listens(socket_path: Path) -> bool:
    """Whether a keeper runs there."""
    try:
        connect_to_keeper(socket_path, _TIMEOUT_S).close()
    except KeeperError:
        return False
    return True


def parent_of(pid: int) -> int:
    """Process id of a process's parent; 0 if the process cannot be seen."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:")), 0)


def pool_holders(socket_path: Path) -> list[int]:
    """Process ids of the executors that hold a pool; none if no keeper answers there."""
    from common import messages as m  # noqa: PLC0415  (--help needs no messages)

    try:
        report = ask_keeper(socket_path, m.KeeperQuery(), _TIMEOUT_S)
    except KeeperError:
        return []
    return [pool.holder_pid for pool in report.pools if pool.holder] if isinstance(report, m.KeeperReport) else []
