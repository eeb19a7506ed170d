"""Starts executors that outlive the command that starts them."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from scheduler_svc.client.processes.child import ChildEnd, open_log


class Launcher:
    """Starts one process after another from the same command line, each in a session of its own.

    Args:
        command: program and arguments; no shell is involved.
        log_dir: folder for the output, a file for each process; made if it does not exist.
    """

    def __init__(self, command: Sequence[str], log_dir: Path) -> None:
        self._command = list(command)
        self._log_dir = log_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._num_started = 0
        self.log_path = log_dir

    def start(self) -> int:
        """Start another one. Returns its pid; `log_path` is its log from now on."""
        self._num_started += 1
        self.log_path = self._log_dir / f"rollout-{time.strftime('%Y%m%d-%H%M%S')}-{self._num_started}.log"
        with open_log(self.log_path) as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._started_s = time.monotonic()
        return self._process.pid

    def poll(self) -> ChildEnd | None:
        """How the last process ended; None while it runs."""
        if self._process is None or self._process.poll() is None:
            return None
        return ChildEnd("the successor", self._process.returncode, time.monotonic() - self._started_s)
