"""Starts the watchdog (`watchdog.py`) of this executor."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from common import messages as m
from common.errors import KeeperError
from common.keeper_socket import connect_to_keeper
from common.packets import PacketConnection

_PROGRAM = Path(__file__).with_name("watchdog.py")


class WatchdogProcess:
    """At most one child process, which watches this process for the keeper.

    Args:
        socket_path: the keeper's.
        instance: of this executor.
    """

    def __init__(self, socket_path: Path, instance: str) -> None:
        self._path = socket_path
        self._instance = instance
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout_s: float) -> None:
        """Start it, in place of the one before.

        Raises:
            KeeperError: the keeper is gone again, or no process can be started, or none could kill this one.
        """
        self.stop()
        if os.getpid() == 1:  # the kernel spares the first process of a namespace from signals of the others
            raise KeeperError("this is process 1 of its PID namespace: start it under an init, or beside the keeper")
        connection: PacketConnection[m.FromKeeper] = PacketConnection(
            connect_to_keeper(self._path, timeout_s), m.FromKeeper, m.MAX_ANSWER_BYTES
        )
        try:
            connection.send(m.Watch(version=m.KEEPER_VERSION, instance=self._instance))
            os.set_blocking(connection.fileno(), True)  # its timeout made it non-blocking
            self._process = _start_program(connection.fileno())
        except OSError as error:
            raise KeeperError(f"no watchdog can be started for the keeper at {self._path}: {error}") from error
        finally:
            connection.close()

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()
            self._process.wait()
            self._process = None


def _start_program(connection: int) -> "subprocess.Popen[bytes]":
    pidfd = os.pidfd_open(os.getpid())
    try:
        order = msgspec.msgpack.encode(m.KillHolder()).hex()
        command = [sys.executable, "-I", "-S", str(_PROGRAM), str(connection), str(pidfd), order]
        return subprocess.Popen(command, pass_fds=(connection, pidfd), stdin=subprocess.DEVNULL)
    finally:
        os.close(pidfd)
