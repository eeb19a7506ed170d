"""`baton-scheduler`, a process, and what can be seen of it from outside. Executors are the test's own business."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests import ROOT
from tests.support.eventually import eventually


class SchedulerProcess:
    """The process, which may be started again and again with the same options.

    Args:
        folder: for its log.
        options: of the command.
        environment: more of it.
        prefix: of the command, as a shell's that sets limits first.
    """

    def __init__(self, folder: Path, *options: object, environment: dict[str, str] | None = None, prefix=()):
        self.log_path = folder / "log"
        self.environment = environment or {}
        self.command = [*prefix, sys.executable, "-m", "scheduler_svc", *map(str, options)]
        self.process = None

    def start(self, is_up):
        """Start it, and wait until it is up."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(self.command, cwd=ROOT, env=os.environ | self.environment, stderr=log)
        self.wait_for(is_up)

    @property
    def log(self):
        return self.log_path.read_text()

    @property
    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def wait_for(self, condition):
        """Wait while it runs."""

        def holds():
            assert self.is_running, self.log
            return condition()

        eventually(holds, told=lambda: self.log)

    def kill(self, number=signal.SIGKILL):
        """Send it a signal that ends it. Returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def stop(self):
        """End it in order, if it runs."""
        if self.is_running:
            assert self.kill(signal.SIGTERM) == 0
