"""One side of a comparison in a process of its own, which stays up and runs when it is asked to (parent_lines.py)."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

from benchmarks.cpu.take_turns import RunRequests
from benchmarks.rig.runs import TimedRun

START_TIMEOUT_S = 1200.0
RUN_TIMEOUT_S = 1200.0
STOP_TIMEOUT_S = 30.0
_POLL_S = 1.0
_QUOTED_BYTES = 2000


class SideProcess:
    """A context manager that starts the process, waits until it is ready, and ends it. Its value is `run`.

    Between runs the process is blocked on its socket. It ends when the socket closes, so it does not outlive this one.

    Args:
        name: for error messages.
        command: what to start; the number of the process's socket is added at its end.
        wanted: the first message: what all runs have in common.
        environment: the process's environment variables.

    Attributes:
        facts: the process's answer to the first message.

    Raises:
        RuntimeError: the process ended; the message has the end of its standard error.
        TimeoutError: the process did not answer.
    """

    def __init__(
        self, name: str, command: Sequence[str], wanted: dict[str, Any], environment: Mapping[str, str] = os.environ
    ) -> None:
        self.facts: dict[str, Any] = {}
        self._name = name
        self._command = command
        self._wanted = wanted
        self._environment = environment

    def __enter__(self) -> RunRequests:
        self._errors = tempfile.TemporaryFile()
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile("r", encoding="utf-8")
        with theirs:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # logs
                stderr=self._errors,
                env=self._environment,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        try:
            self.facts = self._ask(self._wanted, START_TIMEOUT_S)
        except BaseException:
            self._stop(timeout_s=0)
            raise
        return self.run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(STOP_TIMEOUT_S if kind is None else 0)

    def run(self, name: str, limit: int | None) -> TimedRun:
        """Run all requests, each to its end or to `limit` tokens."""
        return TimedRun(**self._ask({"name": name, "limit": limit}, RUN_TIMEOUT_S))

    def _ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        line = ""
        with contextlib.suppress(ConnectionError):  # the process has ended, so there will be no line
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            if self._has_answered(timeout_s):
                line = self._answers.readline()
        if not line:
            self._fail()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _has_answered(self, timeout_s: float) -> bool:
        """Wait until there is something to read; False if the process ended without answering."""
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None:  # its children may hold the socket after its end
            if select.select([self._socket], [], [], _POLL_S)[0]:
                return True
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._name} has not answered for {timeout_s:.0f} s")
        return bool(select.select([self._socket], [], [], 0)[0])

    def _fail(self) -> NoReturn:
        """The process has closed its socket without an answer: raise what it said."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _QUOTED_BYTES))
        said = self._errors.read().decode(errors="replace")
        raise RuntimeError(f"{self._name} ended with {self._process.returncode}: {said}")

    def _stop(self, timeout_s: float) -> None:
        """Close the socket, which asks the process to end, and kill what is left of its process group afterwards."""
        with contextlib.suppress(OSError):  # the process has ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._answers.close()
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()
