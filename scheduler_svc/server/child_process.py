"""A process beside the core that is started again when it dies."""

import subprocess
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from common.exit_codes import EXIT_REJECTED, EXIT_USAGE
from common.logging import get_logger

RESTART_DELAY_S = 1.0

Popen = Callable[..., subprocess.Popen[bytes]]

log = get_logger(__name__)


class ChildEvents(NamedTuple):
    """What the log calls a child's troubles."""

    died: str
    cannot_be_started: str


class ChildProcess:
    """One process, or the place for it.

    Args:
        events: for the log.
        command: that starts it.
        fds: descriptors that it inherits.
        popen: starts a process as `subprocess.Popen` does.

    Attributes:
        num_failures: how often a process ended by itself, or could not be started.
        refusal: what its last process ended with, if that says that only a change of configuration helps; None once
            another one serves.
    """

    def __init__(
        self, events: ChildEvents, command: Sequence[str], fds: Sequence[int], popen: Popen = subprocess.Popen
    ) -> None:
        self._popen = popen
        self._events = events
        self._command = list(command)
        self._fds = tuple(fds)
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0
        self._num_started = 0
        self.num_failures = 0
        self.refusal: int | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, which may have ended."""
        return None if self._process is None else self._process.pid

    @property
    def is_first_start(self) -> bool:
        """Whether no second process was started yet."""
        return self._num_started <= 1

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def tick(self, now: float, serving: Container[int] = ()) -> None:
        """Start it if it does not run. Cheap; called every turn of the core.

        Never raises for what a process needs and the machine is short of (files, processes, memory): the core goes on,
        and tries again.

        Args:
            now: s.
            serving: ids of processes that are known to serve.
        """
        if self._process is not None and (code := self._process.poll()) is not None:
            self.num_failures += 1
            self.refusal = code if code in (EXIT_USAGE, EXIT_REJECTED) else None
            plan = {"restart_in_s": RESTART_DELAY_S} if self.refusal is None else {}  # else the service may end
            log.error(self._events.died, pid=self._process.pid, exit_code=code, **plan)
            self._process, self._start_at = None, now + RESTART_DELAY_S
        elif self._process is not None and self._process.pid in serving:
            self.refusal = None
        if self._process is None and now >= self._start_at:
            self._start_at = now + RESTART_DELAY_S
            try:
                self._process = self._popen(self._command, pass_fds=self._fds)
                self._num_started += 1
            except (OSError, MemoryError, subprocess.SubprocessError) as error:
                self.num_failures += 1
                log.error(self._events.cannot_be_started, reason=str(error), restart_in_s=RESTART_DELAY_S)

    def terminate(self) -> None:
        """Ask it to stop."""
        if self._process is not None:
            self._process.terminate()

    def kill(self, *, wait: bool = True) -> None:
        """Stop it at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            if wait:
                self._process.wait()
