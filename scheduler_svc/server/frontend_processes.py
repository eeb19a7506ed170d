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

    They die with this process, or the next one could not have the socket's address.

    Args:
        listener: listening TCP socket; every frontend inherits it, and the kernel spreads connections over them.
        arguments: further command-line arguments.
    """

    def __init__(self, count: int, listener: socket.socket, arguments: list[str]) -> None:
        self._listener = listener
        self._command = [
            *(sys.executable, "-m", "scheduler_svc.frontend", "--fd", str(listener.fileno())),
            *("--parent", str(os.getpid())),
            *arguments,
        ]
        self._slots = [_Slot() for _ in range(count)]

    def tick(self, now: float) -> None:
        """Start each frontend that is not running. Cheap; called every turn of the core.

        Never raises for what a process needs and the machine is short of (files, processes, memory): the core goes on,
        and tries again.
        """
        for slot in self._slots:
            if slot.process is not None and (code := slot.process.poll()) is not None:
                log.error("frontend died", pid=slot.process.pid, exit_code=code, restart_in_s=RESTART_DELAY_S)
                slot.process, slot.start_at = None, now + RESTART_DELAY_S
            if slot.process is None and now >= slot.start_at:
                slot.start_at = now + RESTART_DELAY_S
                try:
                    slot.process = subprocess.Popen(self._command, pass_fds=[self._listener.fileno()])
                except (OSError, MemoryError, subprocess.SubprocessError) as error:
                    log.error("frontend cannot be started", reason=str(error), restart_in_s=RESTART_DELAY_S)

    def end(self, pid: int) -> bool:
        """Kill the frontend with this process id, which no longer answers. Returns whether it is one of these."""
        found = next((slot.process for slot in self._slots if slot.process and slot.process.pid == pid), None)
        if found is not None:
            found.kill()
        return found is not None

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
