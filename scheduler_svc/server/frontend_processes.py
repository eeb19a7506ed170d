"""The processes beside the core: frontends, and the background worker of the store."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Container
from dataclasses import dataclass
from typing import Literal

from common.installation import hide_working_folder
from scheduler_svc.server.child_process import ChildEvents, ChildProcess, Popen

STOP_MARGIN_S = 4.0  # after the grace of open answers, until a frontend is killed
FRONTEND = ChildEvents("frontend died", "frontend cannot be started")
WORKER = ChildEvents("background worker died", "background worker cannot be started")


@dataclass(frozen=True)
class WorkerStart:
    """How the background worker is started.

    Attributes:
        listener: its listening Unix socket. The first frontend that wants something of the worker has it started; what
            the others want waits in the socket meanwhile, also while the worker is started again.
        arguments: further command-line arguments.
        is_due: whether there is work for it from the beginning.
    """

    listener: socket.socket
    arguments: list[str]
    is_due: bool


class FrontendProcesses:
    """`count` processes of `python -m scheduler_svc.frontend` that accept on one listening socket, and the worker.

    They die with this process, or the next one could not have the socket's address.

    Args:
        listener: listening TCP socket; every frontend inherits it, and the kernel spreads connections over them.
        arguments: further command-line arguments.
        worker: None for none.
        popen: starts a process as `subprocess.Popen` does.
    """

    def __init__(
        self,
        count: int,
        listener: socket.socket,
        arguments: list[str],
        worker: WorkerStart | None = None,
        popen: Popen = subprocess.Popen,
    ) -> None:
        hide_working_folder()
        frontend = _command("scheduler_svc.frontend", listener, arguments)
        self._listener = listener
        self._frontends = [ChildProcess(FRONTEND, frontend, [listener.fileno()], popen) for _ in range(count)]
        self._children = [*self._frontends]
        self._worker: ChildProcess | None = None
        self._worker_listener: socket.socket | None = None
        if worker is not None:
            command = _command("scheduler_svc.frontend.background", worker.listener, worker.arguments)
            self._worker = ChildProcess(WORKER, command, [worker.listener.fileno()], popen)
            if worker.is_due:
                self._children.append(self._worker)
            else:
                self._worker_listener = worker.listener

    @property
    def refusal(self) -> int | None:
        """The exit code of a process that cannot start without a change of configuration; None while another start is
        worth a try. A frontend that was there before is tried until all have ended so and none has served since."""
        refused = [child for child in self._children if child.refusal is not None]
        is_last = all(child in refused for child in self._frontends)
        return next((child.refusal for child in refused if child.is_first_start or is_last), None)

    def named(self) -> dict[str, int]:
        """Return the ids of the processes, by the names that they have in metrics."""
        named = {f"frontend-{number}": child for number, child in enumerate(self._frontends, start=1)}
        if self._worker is not None:
            named["worker"] = self._worker
        return {name: child.pid for name, child in named.items() if child.pid is not None}

    @property
    def num_failures(self) -> dict[str, int]:
        """Return how often processes have ended by themselves, or could not be started, by their kind."""
        worker = 0 if self._worker is None else self._worker.num_failures
        return {"frontend": sum(child.num_failures for child in self._frontends), "worker": worker}

    @property
    def worker_state(self) -> Literal["idle", "running", "down"]:
        """Return whether the worker runs; `idle` until it is wanted."""
        if self._worker is None or self._worker not in self._children:
            return "idle"
        return "running" if self._worker.is_alive else "down"

    def tick(self, now: float, serving: Container[int] = ()) -> None:
        """Start each process that is wanted and not running. Cheap; called every turn of the core.

        Args:
            now: s.
            serving: ids of the frontends that the core has heard of.
        """
        if self._worker_listener is not None and self._worker is not None:
            is_wanted, _, _ = select.select([self._worker_listener], [], [], 0)
            if is_wanted:
                self._children.append(self._worker)
                self._worker_listener = None
        for child in self._children:
            child.tick(now, serving)

    def end(self, pid: int) -> bool:
        """Kill the process with this id, which no longer answers. Returns whether it is one of these."""
        found = next((child for child in self._children if child.pid == pid), None)
        if found is not None:
            found.kill(wait=False)
        return found is not None

    def terminate(self) -> None:
        """Ask all to stop. Clients that connect from now on are refused: in the backlog they would wait for nothing."""
        self._listener.close()
        for child in self._children:
            child.terminate()

    def alive(self) -> bool:
        """Whether any still runs."""
        return any(child.is_alive for child in self._children)

    def kill(self) -> None:
        """Stop all at once."""
        for child in self._children:
            child.kill()


def _command(module: str, listener: socket.socket, arguments: list[str]) -> list[str]:
    own = ["--fd", str(listener.fileno()), "--parent", str(os.getpid())]
    return [sys.executable, "-m", module, *own, *arguments]
