"""One executor as its keeper sees it."""

import math
from dataclasses import dataclass

from common import messages as m
from common.heartbeats import LOSS_TIMEOUT_S
from keeper_svc.actions import Connection, Handle

TAKEOVER_S = 10.0


@dataclass(frozen=True)
class Wish:
    """What a standby waits for.

    Attributes:
        order: the standby of the lowest one has waited longest.
        freed_since: pools that lost their holder before are none of its business.
    """

    kind: m.PoolKind
    num_blocks: int
    order: int
    freed_since: float


@dataclass(frozen=True)
class Role:
    """What an executor was told to be when it started, and when: one that waits for a pool, or one that serves."""

    kind: m.PoolKind
    waits: bool
    given_at: float


@dataclass(frozen=True)
class Reading:
    """Weights that an executor reads, by their kind and source, and since when."""

    wanted: tuple[m.WeightsKind, str]
    since: float


@dataclass(eq=False)
class Executor:
    """A process that registered. It is known until it has provably ended, whether it is connected or not.

    Attributes:
        instance: what it calls itself when it registers again.
        name, pid: for operators.
        process: its pidfd.
        can_kill: whether the keeper can signal it.
        connection: to it; None while there is none.
        watchdog: the connection to its watchdog, if there is one.
        role: what it was told to be, until it is that.
        reads: what it reads for all, as far as the keeper knows.
        wish: what it waits for, while it is a standby.
        heard_at: when it last said that it lives; None before it first did as the holder of its pool: until then it is
            busy with its start. A standby that gets a pool has done all that before, and has `TAKEOVER_S`.
        stuck_at: since when it says that it is stuck; None if it does not.
        is_condemned: whether its kill was asked for, or the log says that none can be.
        told_standbys: the last number of standbys that it was told.
    """

    instance: str
    name: str
    pid: int
    process: Handle
    can_kill: bool
    connection: Connection | None = None
    watchdog: Connection | None = None
    role: Role | None = None
    reads: Reading | None = None
    wish: Wish | None = None
    heard_at: float | None = None
    stuck_at: float | None = None
    is_condemned: bool = False
    told_standbys: int = 0

    def alive(self, state: m.HolderState, now: float) -> None:
        """It says that it lives."""
        self.heard_at = now
        if state != "stuck":
            self.stuck_at = None
        elif self.stuck_at is None:
            self.stuck_at = now

    @property
    def freed_since(self) -> float:
        """Pools that lost their holder before are not for this executor: it was told to wait until one does."""
        return self.role.given_at if self.role is not None and self.role.waits else -math.inf

    def loses_connection(self) -> None:
        """Its connection is gone, and with it its place among the standbys."""
        self.connection = self.wish = self.role = self.reads = None
        self.told_standbys = 0

    def waits(self, wish: Wish, now: float) -> None:
        """It has become a standby."""
        self.wish, self.role = wish, None
        self.heard_at = now

    def holds(self, now: float) -> None:
        """It has just become the holder of a pool."""
        self.heard_at = now + TAKEOVER_S if self.wish is not None else None
        self.wish = self.role = self.stuck_at = None

    def paused(self, seconds: float, now: float) -> None:
        """The keeper has not run for so long: the executor may have spoken in that time."""
        if self.heard_at is not None:
            self.heard_at = max(self.heard_at, min(self.heard_at + seconds, now))
        if self.stuck_at is not None:
            self.stuck_at = min(self.stuck_at + seconds, now)

    def is_standby(self, now: float) -> bool:
        """Whether it waits for a pool, and lives as far as anybody can tell."""
        return self.wish is not None and self.heard_at is not None and now - self.heard_at <= LOSS_TIMEOUT_S

    def hangs_because(self, now: float) -> str | None:
        """Why a holder counts as hung; None if it does not."""
        if self.heard_at is not None and now - self.heard_at > LOSS_TIMEOUT_S:
            return f"not heard for {now - self.heard_at:.1f} s"
        if self.stuck_at is not None and now - self.stuck_at > LOSS_TIMEOUT_S:
            return f"stuck in a step for {now - self.stuck_at:.1f} s"
        return None
