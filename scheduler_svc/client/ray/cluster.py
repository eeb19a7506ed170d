"""Ray, as the manager of a fleet uses it: nodes, placement groups as places, and actors as hosts."""

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RuntimeEnvSetupError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from scheduler_svc.client.ray.facts import Host, HostName, HostReport, Node, Place
from scheduler_svc.client.ray.host import ProcessHost
from scheduler_svc.client.ray.task import Task

FAILURE_KEPT_S = 60.0  # then a host that could not be made is tried again

_CONCURRENCY = 4  # calls of one host at once; a status request may take two seconds
_HOLDER_PREFIX = "environment-r"
_LOST_STATES = ("RESCHEDULING",)


class HostActor(ProcessHost):
    """A host that asks Ray where it is."""

    def __init__(self, name: str, fleet: str, task: Task, gpus: tuple[str, ...] | None) -> None:
        node = ray.get_runtime_context().get_node_id()
        super().__init__(name, fleet, task, (node, str(ray.util.get_node_ip_address())), gpus)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        """What Ray's dashboard and logs call it."""
        return self._name


class Holder:
    """Keeps what a runtime environment names in the cluster: Ray forgets what was uploaded when no actor uses it."""


class RayCluster:
    """The part of a Ray cluster that belongs to one fleet; the caller's process is connected to Ray's namespace of it.

    Args:
        fleet: its name.
    """

    def __init__(self, fleet: str) -> None:
        self._fleet = fleet
        self._place_prefix = f"baton-{fleet}-place-"
        self._handles: dict[HostName, Any] = {}
        self._asked: dict[HostName, Any] = {}
        self._reports: dict[HostName, HostReport] = {}
        self._failures: dict[HostName, tuple[str, float]] = {}
        self._told_to_leave: set[HostName] = set()

    def nodes(self) -> dict[str, Node]:
        """Nodes that are alive, by id; times are of `time.monotonic`."""
        ahead_s = time.time() - time.monotonic()
        draining = _draining_nodes()
        nodes = {}
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            if not node["Alive"]:
                continue
            drain_by_s = None
            if (deadline_ms := draining.get(node["NodeID"])) is not None:
                drain_by_s = deadline_ms / 1000 - ahead_s if deadline_ms else math.inf
            nodes[node["NodeID"]] = Node(node["NodeID"], node["NodeManagerAddress"], drain_by_s)
        return nodes

    def places(self) -> list[Place]:
        """The fleet's placement groups."""
        places = []
        for group in placement_group_table().values():
            slot = group["name"].removeprefix(self._place_prefix)
            if slot == group["name"] or not slot.isdecimal() or group["state"] == "REMOVED":
                continue  # the table has the groups of everyone
            nodes = list(group["bundles_to_node_id"].values())
            places.append(Place(int(slot), nodes[0] if nodes else "", group["state"] in _LOST_STATES))
        return sorted(places, key=lambda place: place.slot)

    def make_place(self, slot: int, bundle: Mapping[str, float]) -> None:
        """Ask for resources, which Ray gives when it has them."""
        placement_group([dict(bundle)], "STRICT_PACK", name=f"{self._place_prefix}{slot}", lifetime="detached")

    def remove_place(self, slot: int) -> None:
        """Give resources back; actors that have some of them end."""
        for name in [name for name in self._failures if name.role == "executor" and name.slot == slot]:
            del self._failures[name]
        with contextlib.suppress(ValueError):  # it is gone
            remove_placement_group(self._group(slot))

    def hosts(self) -> list[Host]:
        """The fleet's actors, each with the last that it has said; none waits for one that does not answer."""
        names = [name for text in ray.util.list_named_actors() if (name := HostName.parse(text)) is not None]
        for name in [name for name in self._handles if name not in names]:
            self._answer_of(name)  # why it has ended
            self._forget(name)
        for name in names:
            with contextlib.suppress(ValueError):  # it has ended since
                self._handles.setdefault(name, ray.get_actor(str(name)))
                self._answer_of(name)
                self._asked.setdefault(name, self._handles[name].report.remote())
        now_s = time.monotonic()
        self._failures = {name: (why, at) for name, (why, at) in self._failures.items() if now_s - at < FAILURE_KEPT_S}
        self._told_to_leave &= set(names)
        hosts = [Host(name, self._report_of(name)) for name in names]
        return hosts + [Host(name, failure=why) for name, (why, _) in self._failures.items() if name not in names]

    def start_on_node(self, name: HostName, task: Task, node: str, *, soft: bool, env: Mapping[str, Any]) -> None:
        """Start a host on a node, or if `soft` on another one where it cannot be there; on any if `node` is empty."""
        strategy = NodeAffinitySchedulingStrategy(node, soft) if node else "DEFAULT"
        self._start(name, task, None, num_cpus=0, scheduling_strategy=strategy, runtime_env=dict(env))

    def start_in_place(
        self,
        name: HostName,
        task: Task,
        bundle: Mapping[str, float],
        gpus: tuple[str, ...] | None,
        env: Mapping[str, Any],
    ) -> None:
        """Start a host with the resources of its place; with `gpus`, with none of its own beside one that has these."""
        takes = {} if gpus is not None else bundle
        strategy = PlacementGroupSchedulingStrategy(self._group(name.slot), placement_group_bundle_index=0)
        resources = {"num_cpus": takes.get("CPU", 0), "num_gpus": takes.get("GPU", 0)}
        self._start(name, task, gpus, scheduling_strategy=strategy, runtime_env=dict(env), **resources)

    def call(self, name: HostName, method: str, *arguments: Any) -> Any:
        """Call a method of a host. Returns Ray's reference to the answer; None if there is no such host."""
        handle = self._handles.get(name)
        return None if handle is None else getattr(handle, method).remote(*arguments)

    def leave(self, name: HostName, timeout_s: float) -> None:
        """Tell a host to let its process end; reports say so from now on."""
        self._told_to_leave.add(name)
        self.call(name, "leave", timeout_s)

    def remove(self, name: HostName) -> None:
        """End a host, and with it its process."""
        self._failures.pop(name, None)
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(str(name)))

    def hold(self, env: Mapping[str, Any], revision: int | None) -> None:
        """Keep the runtime environment of a revision, and no other; None keeps none."""
        wanted = None if revision is None or not env else f"{_HOLDER_PREFIX}{revision}"
        there = [name for name in ray.util.list_named_actors() if name.startswith(_HOLDER_PREFIX)]
        if wanted is not None and wanted not in there:
            ray.remote(Holder).options(
                name=wanted, lifetime="detached", max_restarts=-1, num_cpus=0, runtime_env=dict(env)
            ).remote()
        for name in there:
            if name != wanted:
                with contextlib.suppress(ValueError):
                    ray.kill(ray.get_actor(name))

    def _start(self, name: HostName, task: Task, gpus: tuple[str, ...] | None, **options: Any) -> None:
        actor = ray.remote(HostActor).options(
            name=str(name), lifetime="detached", max_restarts=0, max_concurrency=_CONCURRENCY, **options
        )
        with contextlib.suppress(ValueError):  # an actor of this name is there: it is seen next time
            self._handles[name] = actor.remote(str(name), self._fleet, task, gpus)
            self._asked[name] = self._handles[name].report.remote()

    def _report_of(self, name: HostName) -> HostReport | None:
        report = self._reports.get(name)
        return report if report is None or name not in self._told_to_leave else replace(report, is_leaving=True)

    def _answer_of(self, name: HostName) -> None:
        """Take in what a host has answered, if it has."""
        if name not in self._asked or not ray.wait([self._asked[name]], timeout=0)[0]:
            return
        try:
            self._reports[name] = ray.get(self._asked.pop(name))
        except (RayActorError, RuntimeEnvSetupError) as error:
            if isinstance(error, RuntimeEnvSetupError) or error.actor_init_failed:
                self._failures[name] = _last_line(error), time.monotonic()
        except RayError:
            pass  # asked again at the next look

    def _forget(self, name: HostName) -> None:
        for table in (self._handles, self._asked, self._reports):
            table.pop(name, None)

    def _group(self, slot: int) -> PlacementGroup:
        group: PlacementGroup = get_placement_group(f"{self._place_prefix}{slot}")
        return group


def _draining_nodes() -> dict[str, int]:
    """Ids of nodes that are to go, with the time in ms since 1970, or 0. Ray's own libraries ask like this: there is no
    public way."""
    return dict(ray._private.state.state.get_draining_nodes())


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
