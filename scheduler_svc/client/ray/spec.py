"""What an operator asked of a fleet on Ray, and the processes that follow from that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.curve import (
    ALLOWED_PREFIX,
    ALLOWED_SUFFIX,
    EXECUTOR_SECRET,
    SERVER_PUBLIC,
    SERVER_SECRET,
    KeyPair,
    certificate,
)
from scheduler_svc.client.ray.facts import Goal, HostName
from scheduler_svc.client.ray.task import ADDRESS_FILE, HEALTH_FILE, Task
from scheduler_svc.frontend_options import FrontendOptions

# Ray sets it to an actor's CPUs; an executor chooses its threads itself, as it does everywhere else.
_WITHOUT = ("OMP_NUM_THREADS",)
_PYTHON = "{python}"
_KEYS = "keys"
_API_KEYS = "api-keys.json"


@dataclass(frozen=True)
class RayFleetSpec:
    """Everything that the manager of a fleet has to know; the argument of its actor, with which Ray starts it again.

    Attributes:
        name: of the fleet.
        revision: counts the operator's changes; each has a manager of its own.
        executor_revision: counts the rollouts.
        is_stopping: everything is to go.
        model: as in `common.model_files.resolve_model`, on every node.
        host, port: where the scheduler serves HTTP, on the node that it is on.
        executor_port: where executors connect, on that node.
        executors: how many; with autoscaling, how many at first.
        scales: whether the scheduler says how many; its options say within which limits.
        cpus, gpus: of each executor, as Ray counts them; with several GPUs each has a rank of the model.
        scheduler_node: id of the node where it is to start.
        keeps: whether each node has a keeper.
        standby: whether each executor has a standby.
        by_standby: whether executors of an older revision leave only when a successor waits.
        journal: path of the journal on the scheduler's node; None is the scheduler's default there.
        no_journal: there is none.
        scheduler_options, executor_options: words for the command lines.
        scheduler_env, executor_env: Ray's runtime environments.
        api_keys: content of the file of API keys; None for none.
        status_key: an API key that may read /status; empty if none is needed.
        server_keys: CURVE keys of the scheduler.
        leave_timeout_s: how long a process has to leave in order; the scheduler's open answers have `stop_grace_s`
            before.
    """

    name: str
    model: str | None
    port: int
    executor_port: int
    executors: int
    server_keys: KeyPair
    revision: int = 1
    executor_revision: int = 1
    is_stopping: bool = False
    host: str = "0.0.0.0"  # noqa: S104  (clients are on other machines)
    scales: bool = False
    cpus: float = 1.0
    gpus: int = 0
    scheduler_node: str = ""
    keeps: bool = True
    standby: bool = False
    by_standby: bool = False
    journal: str | None = None
    no_journal: bool = False
    scheduler_options: tuple[str, ...] = ()
    executor_options: tuple[str, ...] = ()
    scheduler_env: Mapping[str, Any] = field(default_factory=dict)
    executor_env: Mapping[str, Any] = field(default_factory=dict)
    api_keys: str | None = field(default=None, repr=False)
    status_key: str = field(default="", repr=False)
    leave_timeout_s: float = 20.0
    stop_grace_s: float = FrontendOptions.stop_grace_s

    @property
    def namespace(self) -> str:
        """Ray's namespace of the fleet's actors."""
        return namespace_of(self.name)

    @property
    def connect_host(self) -> str:
        """Where the scheduler's own node reaches it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104  (compared, not bound)

    def goal(self, *, journal_is_shared: bool) -> Goal:
        """What the manager's plan has to reach."""
        return Goal(
            executors=self.executors,
            scales=self.scales,
            revision=self.executor_revision,
            keeps=self.keeps,
            standby=self.standby,
            by_standby=self.by_standby and self.keeps,
            journal_is_shared=journal_is_shared,
        )

    def bundle(self) -> dict[str, float]:
        """Resources of one executor, as Ray counts them."""
        return {"CPU": self.cpus, **({"GPU": float(self.gpus)} if self.gpus else {})}

    def scheduler_task(self, allowed: Mapping[str, str]) -> Task:
        """The scheduler.

        Args:
            allowed: public keys of executors that run already, by name.
        """
        files = {f"{_KEYS}/{SERVER_SECRET}": certificate(self.server_keys.public, self.server_keys.secret)}
        files |= dict(allowed_file(name, public) for name, public in allowed.items())
        words = ["scheduler_svc", *self._model(), "--host", self.host, "--port", str(self.port)]
        words += [
            "--executor-endpoint",
            f"tcp://{{host}}:{self.executor_port}",
            "--curve-keys",
            f"{{folder}}/{_KEYS}",
        ]
        words += ["--journal", self.journal] if self.journal else ["--no-journal"] if self.no_journal else []
        if self.api_keys is not None:
            files[_API_KEYS] = self.api_keys
            words += ["--api-keys", f"{{folder}}/{_API_KEYS}"]
        return Task(command=_program(*words, *self.scheduler_options), files=files)

    def keeper_task(self) -> Task:
        """A node's keeper."""
        return Task(command=_program("keeper_svc", "--socket", "{shared}/keeper.sock"))

    def executor_task(self, name: HostName, endpoint: str, keys: KeyPair, *, is_beside: bool) -> Task:
        """An executor.

        Args:
            endpoint: where the scheduler listens now.
            keys: its own.
            is_beside: whether another one serves in its place already, so that it may have to wait for that one's pool.
        """
        threads = (
            () if self.gpus or "--threads" in self.executor_options else ("--threads", str(max(1, int(self.cpus))))
        )
        words = [*self._model(), "--scheduler", f"file:{{folder}}/{ADDRESS_FILE}", "--name", name.in_fleet]
        words += ["--curve-keys", f"{{folder}}/{_KEYS}", "--health-file", f"{{folder}}/{HEALTH_FILE}"]
        words += ["--keeper", "{shared}/keeper.sock"] if self.keeps else ["--no-keep"]
        words += ["--place", name.where] if self.keeps else []
        words += ["--device", "cpu"] if not self.gpus and "--device" not in self.executor_options else []
        words += [*threads, *self.executor_options]
        ranks = (
            (*("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.gpus}"),)
            if self.gpus > 1
            else ()
        )
        start = (_PYTHON, *ranks, "-m", "executor_svc", *words)
        auto = (*start, "--standby", "auto") if self.keeps else start  # who comes back may find its place taken
        files = {
            ADDRESS_FILE: endpoint,
            f"{_KEYS}/{EXECUTOR_SECRET}": certificate(keys.public, keys.secret),
            f"{_KEYS}/{SERVER_PUBLIC}": certificate(self.server_keys.public),
        }
        return Task(
            command=auto if is_beside else start,
            again=auto,
            without=_WITHOUT,
            files=files,
            public_key=keys.public.decode(),
        )

    def _model(self) -> list[str]:
        return [] if self.model is None else ["--model", self.model]


def _program(module: str, *words: str) -> tuple[str, ...]:
    """The command line of a service, by the Python of the node and of its runtime environment."""
    return (_PYTHON, "-m", module, *words)


def namespace_of(name: str) -> str:
    """Ray's namespace of a fleet's actors."""
    return f"baton-{name}"


def allowed_file(name: str, public_key: str) -> tuple[str, str]:
    """Path and content of the file that lets an executor connect."""
    return f"{_KEYS}/{ALLOWED_PREFIX}{name}{ALLOWED_SUFFIX}", certificate(public_key.encode())
