"""At a process's start: the keeper of this machine, and a standby's turn."""

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from common.errors import KeeperError
from common.keeper_socket import default_socket
from common.logging import get_logger
from executor_svc.keeper.conversation import KEEPER_TIMEOUTS, START_RETRY_S, KeeperTimeouts
from executor_svc.keeper.kept_pool import KeptPool
from executor_svc.keeper.link import KeeperLink

log = get_logger("executor")


def find_keeper(
    socket_path: Path | None, executor_name: str, *, is_required: bool, timeouts: KeeperTimeouts = KEEPER_TIMEOUTS
) -> KeeperLink | None:
    """A link to the keeper, if there is one.

    Args:
        socket_path: None looks where a keeper listens that was told nothing else; one that is named is waited for.
        is_required: without a keeper there is nothing to do.
        timeouts: while the executor starts.

    Raises:
        KeeperError: there is none and it is required.
    """
    path = default_socket() if socket_path is None else socket_path
    try:
        return _link(path, executor_name, timeouts, 0.0 if socket_path is None else timeouts.start_s)
    except KeeperError as error:
        if is_required:
            raise KeeperError(f"{error}; a standby needs a keeper (start baton-keeper)") from error
        level = log.info if socket_path is None else log.warning
        level("no keeper: weights and KV cache end with this process", reason=str(error))
        return None


def _link(path: Path, executor_name: str, timeouts: KeeperTimeouts, wait_s: float) -> KeeperLink:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return KeeperLink(path, executor_name, timeouts)
        except KeeperError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(START_RETRY_S)


def become_active(pool: KeptPool, waiting: Callable[[bool], None]) -> bool:
    """Wait until this standby has a pool. False if SIGTERM or SIGINT comes before.

    Args:
        waiting: is told twice a second whether a keeper is there.

    Raises:
        BatonError: as `KeptPool.wait` does.
    """
    wake, woken = socket.socketpair()
    wake.setblocking(False)
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    try:
        log.info("standby ready")
        return pool.wait(woken.fileno(), waiting)
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in previous.items():
            signal.signal(number, handler)
        wake.close()
        woken.close()
