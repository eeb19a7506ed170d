"""What `baton ray` does to a fleet: finds its manager, replaces it by one of another revision, waits."""

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from scheduler_svc.client.errors import FleetError, FleetMisconfigured, RequestFailed
from scheduler_svc.client.ray.manager import MANAGER_PREFIX, FleetView, Manager
from scheduler_svc.client.ray.spec import RayFleetSpec, namespace_of

_POLL_INTERVAL_S = 0.1
_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 20.0
_CONCURRENCY = 4


class Operator:
    """A connection to a Ray cluster, and one fleet on it.

    Args:
        address: of the cluster, as `ray.init` takes it.
        fleet: its name.
        runtime_env: what it names on this machine is uploaded.

    Raises:
        FleetError: there is no cluster.
        FleetMisconfigured: the runtime environment is no good.

    Attributes:
        runtime_env: with addresses in the cluster for what was uploaded.
    """

    def __init__(self, address: str, fleet: str, runtime_env: Mapping[str, Any] | None = None) -> None:
        self.fleet = fleet
        self.runtime_env: dict[str, Any] = {}
        if runtime_env:  # a job of its own: what this one starts would inherit it
            self._connect(address, runtime_env)
            self.runtime_env = dict(ray.get_runtime_context().runtime_env)
            ray.shutdown()
        self._connect(address, {})

    def _connect(self, address: str, runtime_env: Mapping[str, Any]) -> None:
        try:
            _require_listener(address)
            ray.init(
                address=address,
                namespace=namespace_of(self.fleet),
                runtime_env=dict(runtime_env),
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, TimeoutError, socket.gaierror) as error:
            message = f"there is no Ray cluster at {address} ({error}); start one with `ray start --head`"
            raise FleetError(message) from error
        except (ValueError, TypeError) as error:
            raise FleetMisconfigured(f"the runtime environment: {error}") from error

    def node(self) -> str:
        """Id of the node that this process is connected by."""
        return str(ray.get_runtime_context().get_node_id())

    def start(self, spec: RayFleetSpec, timeout_s: float) -> None:
        """Start a fleet. Raises RequestFailed if one of this name is there."""
        if self._revision() is not None:
            option = fleet_option(self.fleet)
            hint = f"`baton ray status{option}` shows it, and `baton ray down{option}` ends it"
            raise RequestFailed(f"there is a fleet {self.fleet} already; {hint}")
        self._start_manager(spec, timeout_s)

    def change(self, change: Callable[[RayFleetSpec], RayFleetSpec], timeout_s: float) -> RayFleetSpec:
        """Give the fleet a manager of the next revision, which ends this one. Returns what is asked of it."""
        spec = self.spec()
        changed = replace(change(spec), revision=spec.revision + 1)
        self._start_manager(changed, timeout_s)
        return changed

    def spec(self) -> RayFleetSpec:
        """What was asked of the fleet last."""
        spec: RayFleetSpec = self._ask("spec")
        return spec

    def view(self) -> FleetView:
        """How the fleet is."""
        view: FleetView = self._ask("view")
        return view

    def remove_manager(self) -> None:
        """End the manager of a fleet that is down."""
        revision = self._revision()
        if revision is not None:
            ray.kill(ray.get_actor(f"{MANAGER_PREFIX}{revision}"))

    def wait(
        self,
        is_done: Callable[[FleetView], bool],
        timeout_s: float,
        say: Callable[[str], None],
        *,
        fails: bool = True,
    ) -> FleetView:
        """Wait, and tell what a manager that has just started does meanwhile.

        Args:
            fails: whether a process that cannot run as it is configured ends the wait.

        Raises:
            FleetMisconfigured: a process cannot run as it is configured.
            FleetError: it takes too long.
        """
        deadline, told = time.monotonic() + timeout_s, 0
        while True:
            view = self.view()
            newest = view.events[-1].number if view.events else 0
            told = min(told, newest)  # Ray has restarted the manager
            for event in view.events:
                if event.number > told:
                    say(event.words)
            told = newest
            if is_done(view):
                return view
            if fails and view.failures:
                raise FleetMisconfigured(
                    "\n".join([*view.failures, "It is tried again each minute; see baton ray status"])
                )
            if time.monotonic() > deadline:
                waiting = [f"{place.slot}" for place in view.seen.places if not place.node]
                short = f"; executors {', '.join(waiting)} wait for resources" if waiting else ""
                raise FleetError(f"not done after {timeout_s:.0f} s{short}; the fleet goes on, see `baton ray status`")
            time.sleep(_POLL_INTERVAL_S)

    def _start_manager(self, spec: RayFleetSpec, timeout_s: float) -> None:
        actor = ray.remote(Manager).options(
            name=f"{MANAGER_PREFIX}{spec.revision}",
            lifetime="detached",
            max_restarts=-1,
            num_cpus=0,
            max_concurrency=_CONCURRENCY,
            scheduling_strategy=NodeAffinitySchedulingStrategy(spec.scheduler_node, soft=True),
            runtime_env=dict(spec.scheduler_env),
        )
        try:
            manager: Any = actor.remote(spec)
            ray.get(manager.spec.remote(), timeout=timeout_s)
        except GetTimeoutError as error:
            message = f"the fleet's manager has not started after {timeout_s:.0f} s; it goes on, see `baton ray status`"
            raise FleetError(message) from error
        except RayError as error:
            raise FleetError(f"the fleet's manager cannot be started: {error}") from error
        except ValueError as error:  # the name is taken
            raise RequestFailed(f"another command is changing the fleet {self.fleet}: {error}") from error

    def _ask(self, method: str) -> Any:
        """Call the manager, which Ray may be restarting."""
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while True:
            revision = self._revision()
            if revision is None:
                raise FleetError(f"there is no fleet {self.fleet} on this cluster; `baton ray up` starts one")
            try:
                manager = ray.get_actor(f"{MANAGER_PREFIX}{revision}")
                return ray.get(getattr(manager, method).remote(), timeout=_ANSWER_TIMEOUT_S)
            except GetTimeoutError as error:
                raise FleetError(f"the fleet's manager has not answered for {_ANSWER_TIMEOUT_S:.0f} s") from error
            except (RayActorError, ValueError) as error:
                if time.monotonic() > deadline:
                    raise FleetError(f"the fleet's manager does not answer: {error}") from error
            time.sleep(_POLL_INTERVAL_S)

    def _revision(self) -> int | None:
        """Of the manager; None if there is none."""
        names = [name for name in ray.util.list_named_actors() if name.startswith(MANAGER_PREFIX)]
        return max((int(name.removeprefix(MANAGER_PREFIX)) for name in names), default=None)


def read_runtime_env(text: str | None) -> dict[str, Any]:
    """The runtime environment in JSON text, or in a file of JSON. Raises FleetMisconfigured."""
    if text is None:
        return {}
    try:
        read = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    except OSError as error:
        raise FleetMisconfigured(f"--runtime-env {text}: {error.strerror}") from error
    except ValueError as error:
        raise FleetMisconfigured(f"--runtime-env {text[:100]}: this is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise FleetMisconfigured(f"--runtime-env {text[:100]}: this is no JSON object")
    return read


def _require_listener(address: str) -> None:
    """Fail now, where Ray would try for minutes. Raises OSError."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()


def fleet_option(fleet: str) -> str:
    """What a `baton ray` command needs to mean this fleet."""
    return "" if fleet == "baton" else f" --fleet {fleet}"


def say(line: str) -> None:
    """A line for the operator, on stderr."""
    click.echo(f"  {line}", err=True)
