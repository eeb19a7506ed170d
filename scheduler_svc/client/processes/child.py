"""One child process: its own process group, its log, and a kernel that kills it when its parent dies."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from common.exit_codes import EXIT_REJECTED, EXIT_TRY_AGAIN, EXIT_USAGE
from common.parent_death import killed_with
from common.paths import why_not
from scheduler_svc.client.errors import FleetMisconfigured

_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True)
class ChildEnd:
    """How a child ended on its own.

    Attributes:
        returncode: exit code, or minus the signal that killed it.
        uptime_s: how long it lived.
    """

    name: str
    returncode: int
    uptime_s: float

    @property
    def misconfigured(self) -> bool:
        """Its exit code says that its configuration is wrong, so starting it again would not help."""
        return self.returncode in (EXIT_USAGE, EXIT_REJECTED)

    @property
    def wants_another_start(self) -> bool:
        """Its exit code says that it could not start now, and may later."""
        return self.returncode == EXIT_TRY_AGAIN

    def __str__(self) -> str:
        """For people: `scheduler exited with code 78`, `executor-0 was killed by signal 9 (Killed)`."""
        if self.returncode < 0:
            return f"{self.name} was killed by signal {-self.returncode} ({signal.strsignal(-self.returncode)})"
        return f"{self.name} exited with code {self.returncode}"


def open_log(path: Path) -> BinaryIO:
    """Open a log to write to its end, in a folder that is made. Raises FleetMisconfigured."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise FleetMisconfigured(f"the log {path} cannot be written: {why_not(error)}; see --log-dir") from error


class Child:
    """One service process, the head of its own process group.

    The group keeps a Ctrl-C at the terminal from the child, so that the parent decides the order of stopping. A kill
    of the group takes the processes that the child started too.

    Args:
        log_path: file to which its stdout and stderr are appended; None passes them on to `output`.
        environment: variables that it has beside the parent's.
        without: variables of the parent's that it does not have.
        output: descriptor; 2 is the parent's stderr.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        log_path: Path | None,
        environment: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
        output: int = 2,
    ) -> None:
        self.name = name
        self._started_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            if log_path is not None:
                output = stack.enter_context(open_log(log_path)).fileno()
            inherited = {name: value for name, value in os.environ.items() if name not in without}
            self._process = subprocess.Popen(
                command,
                env={**inherited, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                preexec_fn=killed_with(os.getpid()),  # noqa: PLW1509 (it takes no lock and imports nothing)
            )

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        return self._process.pid

    @property
    def returncode(self) -> int:
        """How it ended: its exit code, or minus the signal that killed it."""
        assert self._process.returncode is not None, f"{self.name} has not ended"
        return self._process.returncode

    @property
    def uptime_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started_s

    def has_ended(self) -> bool:
        """Whether the child has ended; the processes that it started may live on."""
        return self._process.poll() is not None

    def terminate(self) -> None:
        """SIGTERM the child alone: it stops its own children."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL what is left of its group, and reap the child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def end_children(children: Sequence[Child], timeout_s: float) -> None:
    """SIGTERM all, then as `wait_children`."""
    for child in children:
        child.terminate()
    wait_children(children, timeout_s)


def wait_children(children: Sequence[Child], timeout_s: float) -> None:
    """Wait until all are gone or `timeout_s` seconds have passed; SIGKILL what is left, and reap."""
    deadline = time.monotonic() + timeout_s
    while not all(child.has_ended() for child in children) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)
    for child in children:
        child.kill()
