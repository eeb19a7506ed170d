"""What the manager of a fleet on Ray sees, and what it does: plain values. Pure."""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

Role = Literal["scheduler", "keeper", "executor"]

_NAME = re.compile(r"(scheduler|keeper|executor)-([0-9a-z]+)-(\d+)-r(\d+)")


@dataclass(frozen=True)
class HostName:
    """The name of an actor that hosts one process; as text, `executor-3-0-r2`.

    Attributes:
        where: an executor's place by number; the beginning of a keeper's node id; 0 for the scheduler.
        number: tells apart those that are in one place at once (an executor and its standby or successor).
        revision: of the fleet's executors when its process was started.
    """

    role: Role
    where: str
    number: int
    revision: int

    @classmethod
    def parse(cls, text: str) -> "HostName | None":
        """The name in a text; None if that names no host."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        role, where, number, revision = match.groups()
        return cls(role, where, int(number), int(revision))  # type: ignore[arg-type]  # one of the three

    def __str__(self) -> str:
        return f"{self.role}-{self.where}-{self.number}-r{self.revision}"

    @property
    def slot(self) -> int:
        """Of an executor: its place."""
        return int(self.where)

    @property
    def in_fleet(self) -> str:
        """The name that the scheduler knows an executor by, the same in each revision."""
        return f"{self.role}-{self.where}-{self.number}"


class Life(Enum):
    """Where a host stands."""

    PENDING = "waits for Ray"
    RUNNING = "running"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True)
class HostReport:
    """What a host says about itself.

    Attributes:
        node: id of its node.
        pid: of its process; 0 between two.
        ends: how often its process has ended by itself.
        is_leaving: it was told to let its process end, and not to start it again.
        is_well: by the executor's health file: it serves, or waits as a standby.
        reason: how its process ended last, with the end of its log; empty if it never did.
        gpus: numbers of the GPUs of its process.
        public_key: of its executor, in Z85; empty for others.
    """

    node: str
    address: str
    pid: int = 0
    life: Life = Life.RUNNING
    ends: int = 0
    is_leaving: bool = False
    is_well: bool = False
    reason: str = ""
    gpus: tuple[str, ...] = ()
    public_key: str = ""


@dataclass(frozen=True)
class Host:
    """A host as the manager sees it; `report` is None until it has said something."""

    name: HostName
    report: HostReport | None = None
    failure: str = ""

    @property
    def life(self) -> Life:
        """Where it stands; a host that could not be made has failed."""
        if self.failure:
            return Life.FAILED
        return Life.PENDING if self.report is None else self.report.life

    @property
    def is_live(self) -> bool:
        """Whether it runs or will, and was not told to leave."""
        return self.life in (Life.PENDING, Life.RUNNING) and not self.is_leaving

    @property
    def is_leaving(self) -> bool:
        """Whether it was told to leave, and may have left."""
        return self.report is not None and self.report.is_leaving


def free_number(hosts: list[Host]) -> int:
    """The lowest number that no host of a place has."""
    taken = {host.name.number for host in hosts}
    return next(number for number in range(len(taken) + 1) if number not in taken)


@dataclass(frozen=True)
class Place:
    """Resources for one executor on one node: a placement group.

    Attributes:
        node: id of its node; empty while it waits for resources.
        is_lost: its node is gone.
    """

    slot: int
    node: str = ""
    is_lost: bool = False


@dataclass(frozen=True)
class Node:
    """A node that is alive.

    Attributes:
        drain_by_s: when it will go, by the clock of the plan; None if it stays, infinity if it is not known when.
    """

    id: str
    address: str
    drain_by_s: float | None = None

    @property
    def is_going(self) -> bool:
        """Whether it is to go."""
        return self.drain_by_s is not None


@dataclass(frozen=True)
class Goal:
    """What the operator asked for.

    Attributes:
        executors: how many; with autoscaling, how many at first.
        scales: whether the scheduler says how many, by its autoscaling.
        revision: of the fleet; executors of an older one are to be replaced.
        keeps: whether each node has a keeper.
        standby: whether each place has a standby beside its executor.
        by_standby: whether a replaced executor leaves only when a successor waits as its standby.
        journal_is_shared: whether a scheduler on another node finds the journal.
    """

    executors: int
    scales: bool = False
    revision: int = 1
    keeps: bool = True
    standby: bool = False
    by_standby: bool = False
    journal_is_shared: bool = False


@dataclass(frozen=True)
class Seen:
    """One look at the cluster and the fleet.

    Attributes:
        ready: names of executors that take work, as the scheduler reports; None if it did not answer.
        with_standby: those of them that a standby waits for.
        wanted: executors that the scheduler wants by its autoscaling; None if it has not said yet.
        drain_first: names of executors, the least useful first.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)
    ready: frozenset[str] | None = None
    with_standby: frozenset[str] = frozenset()
    wanted: int | None = None
    drain_first: tuple[str, ...] = ()

    def of_role(self, role: Role) -> list[Host]:
        """The hosts with a role."""
        return [host for host in self.hosts if host.name.role == role]

    def in_place(self, slot: int) -> list[Host]:
        """The hosts of a place, by number."""
        found = [host for host in self.of_role("executor") if host.name.slot == slot]
        return sorted(found, key=lambda host: (host.name.revision, host.name.number))

    def is_ready(self, host: Host) -> bool:
        """Whether the scheduler gives an executor work."""
        return self.ready is not None and host.name.in_fleet in self.ready


@dataclass(frozen=True)
class StartScheduler:
    """Start the scheduler, on this node if it can be."""

    node: str


@dataclass(frozen=True)
class StartKeeper:
    """Start a keeper on a node."""

    node: str


@dataclass(frozen=True)
class MakePlace:
    """Ask Ray for the resources of one executor."""

    slot: int


@dataclass(frozen=True)
class RemovePlace:
    """Give them back; what hosts are left in it end."""

    slot: int


@dataclass(frozen=True)
class StartExecutor:
    """Start an executor in a place.

    Attributes:
        beside: one that is there already, whose GPUs the new one shares; None takes the place's.
    """

    slot: int
    number: int
    beside: Host | None = None


@dataclass(frozen=True)
class Leave:
    """Let a host's process end, as SIGTERM does, and not start again."""

    name: HostName


@dataclass(frozen=True)
class Remove:
    """End an actor, and what is left of its process."""

    name: HostName


@dataclass(frozen=True)
class Say:
    """A line for the operator."""

    line: str


Action = StartScheduler | StartKeeper | MakePlace | RemovePlace | StartExecutor | Leave | Remove | Say
