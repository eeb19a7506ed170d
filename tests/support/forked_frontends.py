"""Starts many frontends in little time: a process that has imported them forks for each, which takes a tenth of the CPU
time of a new process. All that a frontend does at its start it does in its own process.

`python -m tests.support.forked_frontends FD` reads from a socket what to start.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tests import ROOT

MAX_START_BYTES = 2**20


class ForkedFrontend:
    """What `subprocess.Popen` is for a process of one's own.

    Attributes:
        cpu_seconds: that all of them have computed whose end is known here.
    """

    cpu_seconds: ClassVar[float] = 0.0

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status  # a pipe, which says it once there is one, and the CPU time

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a frontend", timeout or 0)
            code, seconds = os.read(self._status, 100).split()
            os.close(self._status)
            self.returncode = int(code)
            ForkedFrontend.cpu_seconds += float(seconds)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, if it runs."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _parent() -> socket.socket:
    """Return a socket to the process that forks, which starts with the first call and ends with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, "-m", "tests.support.forked_frontends", str(its.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def start_frontend(
    arguments: Sequence[str], listener: socket.socket, log: int, environment: Mapping[str, str]
) -> ForkedFrontend:
    """Start one that has inherited this socket, this file as stderr, and this environment."""
    status, its_status = os.pipe()
    start = json.dumps([list(arguments), dict(environment)]).encode()
    parent = _parent()
    socket.send_fds(parent, [start], [listener.fileno(), log, its_status])
    os.close(its_status)
    return ForkedFrontend(int(parent.recv(100)), status)


def _serve(orders: socket.socket) -> Callable[[], Any] | None:
    """Start what is ordered, until no more can be. Returns what to run in each process that it starts."""
    from scheduler_svc.frontend.__main__ import main

    gc.freeze()
    running: dict[int, tuple[int, int]] = {}  # id and status of each, by its pidfd
    while True:
        for ready in select.select([orders.fileno(), *running], [], [])[0]:
            if ready == orders.fileno():
                start, descriptors, _, _ = socket.recv_fds(orders, MAX_START_BYTES, 3)
                if not start:
                    return None
                listener, log, status = descriptors
                if (pid := os.fork()) == 0:
                    orders.close()
                    for descriptor in (status, *running, *(status for _, status in running.values())):
                        os.close(descriptor)
                    arguments, environment = json.loads(start)
                    _become(environment, log)
                    return functools.partial(main.main, [*arguments, "--fd", str(listener)], "baton-frontend")
                os.close(listener)
                os.close(log)
                running[os.pidfd_open(pid)] = pid, status
                orders.send(str(pid).encode())
            else:
                pid, status = running.pop(ready)
                os.close(ready)
                _, ended, used = os.wait4(pid, 0)
                said = f"{os.waitstatus_to_exitcode(ended)} {used.ru_utime + used.ru_stime}"
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, said.encode())
                os.close(status)


def _become(environment: Mapping[str, str], log: int) -> None:
    """Take what a new process would have."""
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()


if __name__ == "__main__":
    if (run := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        run()
