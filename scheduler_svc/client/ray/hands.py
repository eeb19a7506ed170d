"""Carries out what the plan of a fleet says: starts and ends hosts, hands out keys, tells executors where to go."""

from common.curve import KeyPair
from scheduler_svc.client.ray.cluster import RayCluster
from scheduler_svc.client.ray.facts import (
    Action,
    HostName,
    Leave,
    Life,
    MakePlace,
    Remove,
    RemovePlace,
    Seen,
    StartExecutor,
    StartKeeper,
    StartScheduler,
)
from scheduler_svc.client.ray.spec import RayFleetSpec, allowed_file
from scheduler_svc.client.ray.task import ADDRESS_FILE, in_url


class Hands:
    """Methods return at once.

    Args:
        cluster: where it all is.
        spec: what the operator asked for.
    """

    def __init__(self, cluster: RayCluster, spec: RayFleetSpec) -> None:
        self._cluster = cluster
        self._spec = spec
        self._keys: dict[HostName, str] = {}  # public ones, of executors that have not reported yet
        self._allowed: dict[HostName, dict[HostName, str]] = {}  # by scheduler host: keys that it has been given
        self._told: dict[HostName, str] = {}  # by executor: where the scheduler is

    def do(self, action: Action, seen: Seen) -> None:
        """Carry one action out; lines for the operator are the manager's to say."""
        match action:
            case StartScheduler(node):
                self._start_scheduler(seen, node)
            case StartKeeper(node):
                name = HostName("keeper", node[:8], 0, self._spec.executor_revision)
                env = self._spec.scheduler_env
                self._cluster.start_on_node(name, self._spec.keeper_task(), node, soft=False, env=env)
            case MakePlace(slot):
                self._cluster.make_place(slot, self._spec.bundle())
            case RemovePlace(slot):
                self._cluster.remove_place(slot)
            case StartExecutor():
                self._start_executor(seen, action)
            case Leave(name):
                grace_s = self._spec.stop_grace_s if name.role == "scheduler" else 0.0
                self._cluster.leave(name, grace_s + self._spec.leave_timeout_s)
            case Remove(name):
                self._cluster.remove(name)

    def keep_told(self, seen: Seen) -> None:
        """See to it that the scheduler lets each executor in, and that each executor knows where the scheduler is."""
        executors = seen.of_role("executor")
        self._keys = {name: key for name, key in self._keys.items() if name in {host.name for host in executors}}
        self._keys |= {host.name: host.report.public_key for host in executors if host.report is not None}
        for host in seen.of_role("scheduler"):
            if host.life is not Life.RUNNING:
                continue
            allowed = self._allowed.get(host.name, {})
            for name, key in self._keys.items():
                if allowed.get(name) != key:
                    self._cluster.call(host.name, "put_file", *allowed_file(str(name), key))
            for name in allowed.keys() - self._keys.keys():
                self._cluster.call(host.name, "drop_file", allowed_file(str(name), "")[0])
            self._allowed = {host.name: dict(self._keys)}
        endpoint = self._endpoint(seen)
        for host in executors:
            if endpoint and host.life is Life.RUNNING and self._told.get(host.name) != endpoint:
                self._cluster.call(host.name, "put_file", ADDRESS_FILE, endpoint)
                self._told[host.name] = endpoint
        self._told = {host.name: self._told[host.name] for host in executors if host.name in self._told}

    def _start_scheduler(self, seen: Seen, node: str) -> None:
        number = 1 - max((host.name.number for host in seen.of_role("scheduler")), default=1)
        name = HostName("scheduler", "0", number, self._spec.executor_revision)
        task = self._spec.scheduler_task({str(name): key for name, key in self._keys.items()})
        self._allowed = {name: dict(self._keys)}
        self._cluster.start_on_node(name, task, node, soft=True, env=self._spec.scheduler_env)

    def _start_executor(self, seen: Seen, action: StartExecutor) -> None:
        name = HostName("executor", str(action.slot), action.number, self._spec.executor_revision)
        endpoint = self._endpoint(seen)
        if not endpoint:
            return  # the scheduler has gone since; the plan sees it
        keys = KeyPair.generate()
        self._keys[name] = keys.public.decode()
        task = self._spec.executor_task(name, endpoint, keys, is_beside=action.beside is not None)
        self._told[name] = endpoint
        gpus = None if action.beside is None or action.beside.report is None else action.beside.report.gpus
        self._cluster.start_in_place(name, task, self._spec.bundle(), gpus, self._spec.executor_env)

    def _endpoint(self, seen: Seen) -> str:
        """Where executors find the scheduler; empty if that is not known."""
        at = scheduler_address(seen)
        return f"tcp://{in_url(at)}:{self._spec.executor_port}" if at else ""


def scheduler_address(seen: Seen) -> str:
    """Address of the node that the scheduler is on; empty if none runs."""
    running = [host for host in seen.of_role("scheduler") if host.life is Life.RUNNING and not host.is_leaving]
    return next((host.report.address for host in running if host.report is not None), "")
