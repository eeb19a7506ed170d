"""Starts the frontends beside the core and starts one again when it dies."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

from common.logging import get_logger

RESTART_DELAY_S = 1.0
STOP_TIMEOUT_S = 8.0  # a frontend waits a few seconds for open answers to end

log = get_logger(__name__)


@dataclass(slots=True)
class _Slot:
    process: subprocess.Popen[bytes] | None = None
    start_at: float = 0.0


class FrontendProcesses:
    """`count` processes of `python -m scheduler_svc.frontend` that accept on one listening socket.

    Args:
        listener: listening TCP socket; every frontend inherits it, and the kernel spreads connections over them.
        arguments: further command-line arguments.
    """

    def __init__(self, count: int, listener: socket.socket, arguments: list[str]) -> None:
        self._listener = listener
        self._command = [
            *(sys.executable, "-m", "scheduler_svc.frontend", "--fd", str(listener.fileno())),
            *arguments,
        ]
        self._slots = [_Slot() for _ in range(count)]

    def tick(self, now: float) -> None:
        """Start each frontend that is not running. Cheap; called every turn of the core."""
        for slot in self._slots:
            if slot.process is not None and (code := slot.process.poll()) is not None:
                log.error("frontend died", pid=slot.process.pid, exit_code=code, restart_in_s=RESTART_DELAY_S)
                slot.process, slot.start_at = None, now + RESTART_DELAY_S
            if slot.process is None and now >= slot.start_at:
                slot.process = subprocess.Popen(self._command, pass_fds=[self._listener.fileno()], env=os.environ)

    def terminate(self) -> None:
        """Ask all frontends to stop."""
        for slot in self._slots:
            if slot.process is not None:
                slot.process.terminate()

    def alive(self) -> bool:
        """Whether any frontend still runs."""
        return any(slot.process is not None and slot.process.poll() is None for slot in self._slots)

    def kill(self) -> None:
        """Stop all frontends at once."""
        for slot in self._slots:
            if slot.process is not None and slot.process.poll() is None:
                slot.process.kill()
                slot.process.wait()
