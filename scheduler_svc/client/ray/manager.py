"""The manager of a fleet on Ray, an actor: it looks at the cluster, decides by `plan.py`, and acts. Ray restarts it."""

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from common.logging import get_logger, setup_logging
from common.messages import StatusReport
from scheduler_svc.client.ray.cluster import RayCluster
from scheduler_svc.client.ray.facts import Action, HostName, Life, Seen
from scheduler_svc.client.ray.hands import Hands, scheduler_address
from scheduler_svc.client.ray.journal_probe import JournalProbe
from scheduler_svc.client.ray.plan import FleetPlan
from scheduler_svc.client.ray.spec import RayFleetSpec
from scheduler_svc.client.ray.task import in_url
from scheduler_svc.client.ray.telling import told

MANAGER_PREFIX = "manager-r"

_LOOK_INTERVAL_S = 0.25
_FIRST_REPORTS_S = 5.0
_NUM_EVENTS = 200

log = get_logger("fleet")


@dataclass(frozen=True)
class Event:
    """Something that a manager did.

    Attributes:
        number: counts those of this manager's life.
        at: in UTC, ISO 8601.
    """

    number: int
    at: str
    words: str


@dataclass(frozen=True)
class FleetView:
    """What `baton ray` shows.

    Attributes:
        url: of the HTTP interface; empty while there is no scheduler.
        wanted: how many executors there are to be.
        seen: the last look.
        is_complete: all is as asked for.
        is_down: nothing is left.
        failures: why processes cannot run as they are configured.
        journal_blind: addresses of nodes that do not see the journal; None if it is not known, or it is on one node.
        events: what was done last.
    """

    url: str
    wanted: int
    seen: Seen
    is_complete: bool
    is_down: bool
    failures: list[str]
    journal_blind: list[str] | None
    events: list[Event]


class Manager:
    """Starts at once, and ends managers of older revisions first: what they have started is this one's now.

    Args:
        spec: what the operator asked for.
    """

    def __init__(self, spec: RayFleetSpec) -> None:
        setup_logging("fleet")
        self._spec = spec
        self._cluster = RayCluster(spec.name)
        self._plan = FleetPlan(spec.goal(journal_is_shared=False), spec.scheduler_node)
        self._plan.is_stopping = spec.is_stopping
        self._hands = Hands(self._cluster, spec)
        self._probe = JournalProbe(spec.journal)
        self._seen = Seen()
        self._has_taken_over = False
        self._knows_all = False
        self._started_s = time.monotonic()
        self._status: StatusReport | None = None
        self._status_asked: tuple[HostName, Any] | None = None
        self._events: deque[Event] = deque(maxlen=_NUM_EVENTS)
        self._num_events = 0
        threading.Thread(target=self._run, name="manager", daemon=True).start()

    def __repr__(self) -> str:
        """What Ray's dashboard and logs call it."""
        return "manager"

    def view(self) -> FleetView:
        """How the fleet is."""
        seen, address = self._seen, scheduler_address(self._seen)
        return FleetView(
            url=f"http://{in_url(address)}:{self._spec.port}" if address else "",
            wanted=self._plan.wanted,
            seen=seen,
            is_complete=self._knows_all and self._plan.is_complete(seen),
            is_down=self._knows_all and self._plan.is_stopping and self._plan.is_down(seen),
            failures=self._plan.failures(seen),
            journal_blind=self._probe.blind,
            events=list(self._events),
        )

    def spec(self) -> RayFleetSpec:
        """What the operator asked for last."""
        return self._spec

    def _take_over(self) -> None:
        """End managers of older revisions, and keep what executors of this one need."""
        for revision in range(self._spec.revision):
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(f"{MANAGER_PREFIX}{revision}"))
        self._cluster.hold(self._spec.executor_env, None if self._spec.is_stopping else self._spec.executor_revision)
        self._has_taken_over = True

    def _run(self) -> None:
        while True:
            try:
                if not self._has_taken_over:
                    self._take_over()
                self._look()
                if not self._has_heard_all():
                    continue
                for action in self._plan.see(self._seen, time.monotonic()):
                    self._say(action)
                    self._hands.do(action, self._seen)
                self._hands.keep_told(self._seen)
            except Exception:  # Ray may be out of reach for a moment; what was left undone is seen the next time
                log.exception("a look at the cluster failed")
            finally:
                time.sleep(_LOOK_INTERVAL_S)

    def _has_heard_all(self) -> bool:
        """Whether each host has said how it is, once since this manager's start: one that has not would seem to be
        waiting for Ray, though it may serve. A host that hangs is waited for only so long."""
        if not self._knows_all:
            is_late = time.monotonic() - self._started_s > _FIRST_REPORTS_S
            self._knows_all = is_late or all(host.life is not Life.PENDING for host in self._seen.hosts)
        return self._knows_all

    def _look(self) -> None:
        nodes, hosts = self._cluster.nodes(), self._cluster.hosts()
        self._ask_for_status(hosts)
        seen = Seen(nodes=nodes, places=self._cluster.places(), hosts=hosts)
        if self._status is not None:
            ready = [executor for executor in self._status.executors if executor.state == "ready"]
            scale = self._status.scale
            seen = replace(
                seen,
                ready=frozenset(executor.executor for executor in ready),
                with_standby=frozenset(executor.executor for executor in ready if executor.has_standby),
                wanted=None if scale is None else scale.wanted,
                drain_first=() if scale is None else tuple(scale.drain_first),
            )
        self._seen = seen
        schedulers = [host for host in hosts if host.name.role == "scheduler" and host.report is not None]
        scheduler_node = next((host.report.node for host in schedulers if host.report is not None), "")
        self._probe.see({node.id: node.address for node in nodes.values()}, scheduler_node, time.monotonic())
        if self._plan.goal.journal_is_shared != self._probe.is_shared:
            self._plan.goal = replace(self._plan.goal, journal_is_shared=self._probe.is_shared)

    def _ask_for_status(self, hosts: list[Any]) -> None:
        """The scheduler's report as it was when it was last asked; None when it did not answer."""
        running = [host.name for host in hosts if host.name.role == "scheduler" and host.life is Life.RUNNING]
        if self._status_asked is not None:
            name, asked = self._status_asked
            if name in running and not ray.wait([asked], timeout=0)[0]:
                return
            self._status_asked = None
            self._status = _report(asked) if name in running else None
        if running:
            spec = self._spec
            asked = self._cluster.call(running[0], "get", spec.connect_host, spec.port, "/status", spec.status_key)
            self._status_asked = running[0], asked
        else:
            self._status = None

    def _say(self, action: Action) -> None:
        """Tell the operator what is done, in the manager's log and in what `baton ray` shows."""
        words = told(action, self._seen, self._spec.executor_revision)
        log.info(words)
        self._num_events += 1
        self._events.append(Event(self._num_events, datetime.now(UTC).isoformat(timespec="milliseconds"), words))


def _report(asked: Any) -> StatusReport | None:
    try:
        answer = ray.get(asked)
        return None if answer is None else msgspec.json.decode(answer, type=StatusReport)
    except (RayError, msgspec.MsgspecError):
        return None
