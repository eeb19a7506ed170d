"""Both services as child processes of this one: started, watched, killed, and stopped in order.

`baton up`, `baton demo` and the end-to-end tests all run the services through `LocalFleet`. `supervisor.py`
decides what to do about a child that died.
"""

import contextlib
import http.client
import re
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from common.errors import BatonError
from common.installation import hide_working_folder, require_executor
from scheduler_svc.client.errors import FleetError, FleetMisconfigured
from scheduler_svc.client.processes.child import Child, ChildEnd, end_children, wait_children
from scheduler_svc.client.processes.keeper import keeper_listens, parent_of, pool_holders
from scheduler_svc.client.processes.log_tail import LogTail
from scheduler_svc.frontend_options import FrontendOptions

SCHEDULER = "scheduler"
KEEPER = "keeper"
STOP_TIMEOUT_S = 10.0
STOP_MARGIN_S = 5.0  # of a scheduler, after the grace of open answers

_LOG_LINES = 15  # that are looked at when a child has ended
_REASON_LINES = 5  # that say why, at most
# Lines of a log that are information, and those that click writes above an error: the user has not used this command.
_NO_REASON = re.compile(r"""(\blevel=|"level": ?")(debug|info)\b|^$|^Usage: |^Try '.* --help' for help\.$""")
_POLL_INTERVAL_S = 0.05
_HAND_OVER_S = 0.05  # from a process's end until the keeper has given its pool to a standby
_EXECUTOR = (sys.executable, "-m", "executor_svc")


@dataclass(frozen=True)
class FleetSpec:
    """What to start: one scheduler, and executors that connect to it.

    Attributes:
        model: as in `common.model_files.resolve_model`; None is the embedded demo model.
        host, port: where the scheduler serves HTTP.
        executor_port: port on loopback where executors connect.
        executors: how many `LocalFleet.start` starts.
        standbys: executors beside them that only wait for the memory of one that ends.
        keeper: socket of the keeper that executors leave their memory with; None for none.
        starts_keeper: whether the keeper is one of the children; otherwise it runs already.
        ranks: processes of each executor; torchrun starts them if there is more than one.
        gpus: numbers of the GPUs that executors divide among them, one for each rank; none if all see all.
        stop_grace_s: how long open answers may go on when the fleet stops.
        scheduler_options, executor_options: further command-line options. A scheduler keeps its journal in the user's
            state folder unless `--journal` names another place; a fleet that must leave no file behind names one.
        scheduler_command, executor_command: the programs; tests replace them.
    """

    model: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    executor_port: int = 5555
    executors: int = 1
    standbys: int = 0
    keeper: Path | None = None
    starts_keeper: bool = True
    ranks: int = 1
    gpus: tuple[str, ...] = ()
    stop_grace_s: float = FrontendOptions.stop_grace_s
    scheduler_options: tuple[str, ...] = ()
    executor_options: tuple[str, ...] = ()
    scheduler_command: tuple[str, ...] = (sys.executable, "-m", "scheduler_svc")
    keeper_command: tuple[str, ...] = (sys.executable, "-m", "keeper_svc")
    executor_command: tuple[str, ...] = _EXECUTOR

    @property
    def connect_host(self) -> str:
        """Where a client on this machine reaches the scheduler."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 (compared, not bound)

    @property
    def url(self) -> str:
        """The HTTP interface, for a client on this machine."""
        host = f"[{self.connect_host}]" if ":" in self.connect_host else self.connect_host
        return f"http://{host}:{self.port}"

    def command(self, name: str, *, is_standby: bool = False) -> list[str]:
        """The command line of the child called `name` (`scheduler`, `keeper`, `executor-0`, ...)."""
        if name == KEEPER:
            return [*self.keeper_command, "--socket", str(self.keeper)]
        model = [] if self.model is None else ["--model", self.model]
        endpoint = f"tcp://127.0.0.1:{self.executor_port}"
        if name == SCHEDULER:
            listen = ["--host", self.host, "--port", str(self.port), "--executor-endpoint", endpoint]
            grace = ["--stop-grace", str(self.stop_grace_s)]
            return [*self.scheduler_command, *model, *listen, *grace, *self.scheduler_options]
        python, *program = self.executor_command
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        start = [python, *(torchrun if self.ranks > 1 else ()), *program]
        keeps = ["--no-keep"] if self.keeper is None else ["--keeper", str(self.keeper)]
        waits = ["--standby"] if is_standby else []
        return [*start, *model, "--scheduler", endpoint, "--name", name, *keeps, *waits, *self.executor_options]

    def environment(self, name: str) -> dict[str, str]:
        """Variables of that child beside this process's own."""
        if name in (SCHEDULER, KEEPER) or not self.gpus:
            return {}
        first = int(name.rpartition("-")[2]) * self.ranks
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus[first : first + self.ranks])}


def executor_name(index: int) -> str:
    """Name of the executor with this index, as the scheduler knows it too."""
    return f"executor-{index}"


def free_ports(count: int) -> list[int]:
    """Different TCP ports of loopback that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


class LocalFleet:
    """The services of one `FleetSpec`; a context manager that starts them and stops what is left.

    The kernel kills the children when the *thread* that started them ends, so start them from the main thread, or
    from one that lives as long as the fleet.

    Args:
        spec: what to start.
        log_dir: folder for each child's output, `NAME.log`; None passes the output on to this process's stderr.

    Raises:
        FleetMisconfigured: executors are to start, and a package that they need is missing.
    """

    def __init__(self, spec: FleetSpec, log_dir: Path | None = None) -> None:
        hide_working_folder()
        if spec.executors + spec.standbys and spec.executor_command == _EXECUTOR:
            try:
                require_executor("an executor", device="cuda" if "cuda" in spec.executor_options else None)
            except BatonError as error:
                raise FleetMisconfigured(str(error)) from error
        self.spec = spec
        self._log_dir = log_dir
        self._children: dict[str, Child] = {}
        self._tails: dict[str, LogTail] = {}  # of what is passed on
        self._standbys: list[Child] = []  # children that were started as standbys

    def __enter__(self) -> Self:
        """Start everything; the caller decides whether to wait for it."""
        try:
            self.start()
        except BaseException:
            self.stop(timeout_s=0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in order; at once after an interrupt, as the user does not want to wait."""
        if kind is KeyboardInterrupt:
            self.stop(timeout_s=0)
        else:
            self.stop()

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each child that was started and is not known to have ended."""
        return {name: child.pid for name, child in self._children.items()}

    def start(self) -> None:
        """Start the scheduler, the keeper and the executors that the spec asks for."""
        if self.spec.keeper is not None and self.spec.starts_keeper:
            self.start_child(KEEPER)
            self._wait_for_keeper(self.spec.keeper)
        self.start_child(SCHEDULER)
        for index in range(self.spec.executors + self.spec.standbys):
            self.start_executor(index)

    def start_executor(self, index: int) -> int:
        """Start executor `index`, which must not be running. Returns its pid."""
        return self.start_child(executor_name(index))

    def start_child(self, name: str) -> int:
        """Start the child called `name`, which must not be running. Returns its pid.

        With standbys, an executor is one as long as so many others serve as the spec asks for.
        """
        assert name not in self._children, f"{name} is running already"
        is_standby = name not in (SCHEDULER, KEEPER) and self.spec.standbys > 0 and self._enough_serve()
        command = self.spec.command(name, is_standby=is_standby)
        self._children[name] = child = self._new_child(name, command)
        if is_standby:
            self._standbys.append(child)
        return child.pid

    def _new_child(self, name: str, command: list[str]) -> Child:
        environment = self.spec.environment(name)
        if (path := self._log_path(name)) is not None:
            return Child(name, command, path, environment)
        if sys.stderr.isatty():
            environment["TQDM_POSITION"] = "-1"  # a download shows its progress, though its log is a pipe
        self._tails[name] = tail = LogTail(_LOG_LINES)
        try:
            return Child(name, command, None, environment, output=tail.descriptor)
        finally:
            tail.started()

    def _enough_serve(self) -> bool:
        """Whether so many executors serve, or will when they have started, as the spec asks for. A standby serves once
        it has a pool: where a pool and the keeper ended together, those that wait would wait for ever."""
        executors = [child for name, child in self._children.items() if name not in (SCHEDULER, KEEPER)]
        self._standbys = [child for child in self._standbys if child in executors]
        holders: list[int] = []
        if self._standbys and self.spec.keeper is not None:
            time.sleep(_HAND_OVER_S)
            holders = pool_holders(self.spec.keeper)
        # A pool is held by a rank, which torchrun has started, if there are several.
        holders = [*holders, *map(parent_of, holders)]
        serving = [child for child in executors if child not in self._standbys or child.pid in holders]
        return len(serving) >= self.spec.executors

    def kill_executor(self, index: int) -> None:
        """SIGKILL executor `index`; returns when the kernel has removed it."""
        child = self._children.pop(executor_name(index))
        child.kill()

    def terminate_executor(self, index: int) -> None:
        """SIGTERM executor `index`: it hands its sequences over and leaves. `wait_executor` returns the outcome."""
        self._children[executor_name(index)].terminate()

    def wait_executor(self, index: int, timeout_s: float = 60.0) -> int:
        """Wait for executor `index` to end; past `timeout_s` seconds it is killed.

        Returns:
            Its exit code, 0 if it left in order; minus the signal if it was killed.
        """
        child = self._children.pop(executor_name(index))
        wait_children([child], timeout_s)
        return child.returncode

    def poll(self) -> list[ChildEnd]:
        """Children that ended by themselves since the last call; each is returned once."""
        ended = [child for child in self._children.values() if child.has_ended()]
        for child in ended:
            del self._children[child.name]
            child.kill()  # processes that it started may still live
        return [ChildEnd(child.name, child.returncode, child.uptime_s) for child in ended]

    def is_ready(self) -> bool:
        """Whether the service would take a request now: `GET /ready` answers 200."""
        connection = http.client.HTTPConnection(self.spec.connect_host, self.spec.port, timeout=2.0)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def wait_ready(self, timeout_s: float = 180.0) -> None:
        """Wait until the service takes requests.

        Raises:
            FleetError: a child ended first, or `timeout_s` seconds passed.
        """
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            for end in self.poll():
                raise self.failure(end)
            if time.monotonic() > deadline:
                raise FleetError(f"the service at {self.spec.url} was not ready after {timeout_s:.0f} s")
            time.sleep(_POLL_INTERVAL_S)

    def keeper_listens(self) -> bool:
        """Whether a keeper, this fleet's or another's, is at the socket of the spec."""
        return self.spec.keeper is not None and keeper_listens(self.spec.keeper)

    def _wait_for_keeper(self, socket_path: Path) -> None:
        """Executors would go on without a keeper that cannot start; for a fleet that was to have one it is an error."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not keeper_listens(socket_path):
            for end in self.poll():
                if not end.wants_another_start:  # else another one has come first, and is about to listen
                    raise self.failure(end)
            if time.monotonic() > deadline:
                raise FleetError(f"the keeper did not listen at {socket_path} within {STOP_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_INTERVAL_S)

    def failure(self, end: ChildEnd) -> FleetError:
        """The error that says how a child ended, and why: by the last lines of its log that are no information."""
        said = [line for line in self.log_tail(end.name).splitlines() if not _NO_REASON.search(line)]
        message = "\n".join((f"{end}:", *said[-_REASON_LINES:])) if said else f"{end}; its log above says why"
        if end.returncode == -signal.SIGKILL:
            message = (
                f"{end}; so the system ends what takes too much memory: see --kv-cache-memory, or a limit of yours"
            )
        return FleetMisconfigured(message) if end.misconfigured else FleetError(message)

    def log_tail(self, name: str, lines: int = _LOG_LINES) -> str:
        """The last lines a child wrote; empty if there is no such child. Without a `log_dir` the child has to have
        ended, and they are `_LOG_LINES` at most."""
        if name in self._tails:
            return self._tails[name].text()
        path = self._log_path(name)
        if path is None or not path.exists():
            return ""
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop the scheduler, whose open answers the executors finish; then the executors, and at last the keeper. Each
        gets SIGTERM and, after its time, SIGKILL.

        Args:
            timeout_s: of each, instead of its own.
        """
        scheduler_s = self.spec.stop_grace_s + STOP_MARGIN_S
        groups = ((SCHEDULER,), [name for name in self._children if name not in (SCHEDULER, KEEPER)], (KEEPER,))
        try:
            for names, own_s in zip(groups, (scheduler_s, STOP_TIMEOUT_S, STOP_TIMEOUT_S), strict=True):
                children = [self._children[name] for name in names if name in self._children]
                end_children(children, own_s if timeout_s is None else timeout_s)
                for child in children:
                    if (tail := self._tails.get(child.name)) is not None:
                        tail.ended()
        finally:  # a second Ctrl-C must not leave anything behind
            for child in self._children.values():
                child.kill()
            self._children.clear()

    def _log_path(self, name: str) -> Path | None:
        return None if self._log_dir is None else self._log_dir / f"{name}.log"
