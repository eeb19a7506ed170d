"""An executor's registration with its scheduler: hello, epochs, heartbeats, loss, leaving.

A pure state machine. Its methods are the events (a message arrived, a plan was answered, the connection broke, the
operator wants the process to end, time passed). Each returns the actions to carry out. Sockets, threads, signals and
logs are in `executor_svc.service.process`.

    SEEKING --Welcome--> JOINED --leave_requested() or Leave--> LEAVING --> STOPPED
     |  ^                   |                         (EpochOver, loss, failed step or 10 s)
     |  +--- EpochOver, loss, failed step
     +--another protocol version--> PAUSING --30 s--> STOPPED

In SEEKING the executor first waits for the plans of the old epoch that are still being computed. If they never end,
because the computing thread hangs, the process stops: its supervisor starts a new one.
"""

import enum
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from common import messages as m
from common.exit_codes import EXIT_CRASHED, EXIT_OK, EXIT_REJECTED, EXIT_TRY_AGAIN
from common.heartbeats import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S

HELLO_INTERVAL_S = 1.0
LEAVE_TIMEOUT_S = 10.0
STUCK_TIMEOUT_S = 120.0  # for a step of an epoch that has ended
MAX_PLANS_WAITING = 16  # above the largest window of a scheduler: one that sends more has lost count
PAUSE_S = 30.0  # between two starts, while something else has to change first


class RegistrationState(enum.Enum):
    """Where an executor stands with its scheduler."""

    SEEKING = "seeking"
    PAUSING = "pausing"
    JOINED = "joined"
    LEAVING = "leaving"
    STOPPED = "stopped"


@dataclass(frozen=True)
class SendToScheduler:
    """Send this message. If it cannot be sent at once, call `Registration.connection_lost`."""

    message: m.ExecutorToScheduler


@dataclass(frozen=True)
class RunPlan:
    """Run this plan and give its answer to `Registration.plan_answered`."""

    plan: m.Plan


@dataclass(frozen=True)
class TagPool:
    """Write into the pool's tag that plans of this epoch may write the pool, before any of them runs; 0 after a failed
    step: nobody knows what is in the pool."""

    epoch: int


@dataclass(frozen=True)
class Reconnect:
    """Replace the connection by a fresh one."""


@dataclass(frozen=True)
class StopProcess:
    """End the process."""

    exit_code: int


@dataclass(frozen=True)
class DropMessage:
    """A message made no sense here and was dropped: count it."""

    reason: str


Level = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class LogEvent:
    """Write a line to the log."""

    event: str
    facts: dict[str, Any] = field(default_factory=dict)
    level: Level = "info"


RegistrationAction = SendToScheduler | RunPlan | TagPool | Reconnect | StopProcess | DropMessage | LogEvent


class Registration:
    """The state machine. Times are seconds of any monotonic clock.

    Args:
        hello: what this executor says about itself.
        now: the current time.

    Attributes:
        has_standby: whether another process waits to continue this one's pool; the scheduler is told.
    """

    def __init__(self, hello: m.Hello, now: float) -> None:
        self.state = RegistrationState.SEEKING
        self.has_standby = False
        self._hello = hello
        self._epoch: int | None = None
        self._plans_waiting = 0
        self._hello_due = now
        self._beat_due = now
        self._heard = now
        self._leave_by = now
        self._stuck_at = math.inf
        self._pause_over = math.inf

    @property
    def epoch(self) -> int | None:
        """The epoch that lives; plans of any other are not worth running."""
        return self._epoch

    @property
    def holder_state(self) -> m.HolderState:
        """What the keeper of its pool is told."""
        if self._epoch is not None:
            return "serving"
        return "stuck" if self._plans_waiting else "seeking"

    @property
    def leaving(self) -> bool:
        """Whether `leave_requested` has been called."""
        return self.state in (RegistrationState.LEAVING, RegistrationState.STOPPED)

    @property
    def seeks(self) -> bool:
        """Whether it looks for a scheduler, and no plan of an old epoch keeps it from that."""
        return self.state is RegistrationState.SEEKING and self._plans_waiting == 0

    def hello_due(self, now: float) -> bool:
        """Whether `tick` would send a Hello if it could: no epoch, and no plan of an old one is being computed."""
        return self.seeks and now >= self._hello_due

    def next_tick(self) -> float:
        """When `tick` is to be called at the latest; infinity if another event has to come first."""
        if self.state is RegistrationState.SEEKING:
            return self._hello_due if self._plans_waiting == 0 else self._stuck_at
        if self.state is RegistrationState.PAUSING:
            return self._pause_over
        due = min(self._beat_due, self._heard + LOSS_TIMEOUT_S)
        return min(due, self._leave_by) if self.state is RegistrationState.LEAVING else due

    def tick(self, now: float, *, writable: bool) -> list[RegistrationAction]:
        """Time has passed: do what is due. `writable`: whether a message could be sent at once."""
        if self.state is RegistrationState.SEEKING:
            if self._plans_waiting and now >= self._stuck_at:
                self.state = RegistrationState.STOPPED
                return [LogEvent("stuck in a step", {"waited_s": STUCK_TIMEOUT_S}, "error"), StopProcess(EXIT_CRASHED)]
            if not (writable and self.hello_due(now)):
                return []
            self._hello_due = now + HELLO_INTERVAL_S
            return [SendToScheduler(self._hello)]
        if self.state is RegistrationState.PAUSING and now >= self._pause_over:
            self.state = RegistrationState.STOPPED
            return [StopProcess(EXIT_TRY_AGAIN)]
        if self._epoch is None:  # pausing or stopped
            return []
        actions: list[RegistrationAction] = []
        if now >= self._heard + LOSS_TIMEOUT_S:
            actions = self._end_epoch(f"nothing heard from the scheduler for {LOSS_TIMEOUT_S} s", now, reconnect=True)
        elif self.state is RegistrationState.LEAVING and now >= self._leave_by:
            actions = self._end_epoch(f"not released within {LEAVE_TIMEOUT_S:.0f} s", now)
        elif now >= self._beat_due:
            self._beat_due = now + HEARTBEAT_INTERVAL_S
            actions = [SendToScheduler(m.ExecutorHeartbeat(epoch=self._epoch, has_standby=self.has_standby))]
        return actions

    def message_received(self, message: m.SchedulerToExecutor, now: float) -> list[RegistrationAction]:
        """A message of the scheduler has arrived."""
        self._heard = now
        actions: list[RegistrationAction] = []
        match message:
            case m.Welcome():
                actions = self._on_welcome(message.epoch, now)
            case m.Reject():
                actions = self._on_reject(message, now)
            case m.EpochOver() if message.epoch != self._epoch:
                pass  # that epoch has ended here as well
            case _ if message.epoch != self._epoch:
                actions = [DropMessage(f"{type(message).__name__} of epoch {message.epoch}, this is {self._epoch}")]
            case m.EpochOver():
                actions = self._end_epoch(message.reason, now)
            case m.Leave() if not self.leaving:
                actions = self.leave_requested(now)
            case m.Plan():
                actions = self._on_plan(message, now)
            case _:  # a heartbeat, or a second Leave
                pass
        return actions

    def version_differs(self, reason: str, now: float) -> list[RegistrationAction]:
        """The scheduler speaks another version of the protocol: end in a while, as one of both may be upgraded."""
        return self._pause(reason, now) if self.state is RegistrationState.SEEKING else [DropMessage(reason)]

    def plan_answered(self, answer: m.StepResult | m.StepFailed | None, now: float) -> list[RegistrationAction]:
        """The plan of a `RunPlan` has its answer, or None if it was not run because its epoch had ended."""
        self._plans_waiting -= 1
        if isinstance(answer, m.StepFailed):
            # The pool's next holder may be heard of before this answer, or instead of it.
            return [*self._tag(0), *(self._fail(answer, now) if answer.epoch == self._epoch else [])]
        return [] if answer is None or answer.epoch != self._epoch else [SendToScheduler(answer)]

    def connection_lost(self, now: float) -> list[RegistrationAction]:
        """A message could not be sent: the connection is down, or its peer has stopped reading."""
        if self._epoch is None:
            return []
        return self._end_epoch("the connection to the scheduler broke", now, reconnect=True)

    def leave_requested(self, now: float) -> list[RegistrationAction]:
        """The operator wants this process to end."""
        if self._epoch is None:
            self.state = RegistrationState.STOPPED
            return [LogEvent("leaving"), StopProcess(EXIT_OK)]
        self.state = RegistrationState.LEAVING
        self._leave_by = now + LEAVE_TIMEOUT_S
        return [LogEvent("leaving", {"epoch": self._epoch}), SendToScheduler(m.Leaving(epoch=self._epoch))]

    def _on_welcome(self, epoch: int, now: float) -> list[RegistrationAction]:
        if self.leaving:
            return [DropMessage("a Welcome while leaving")]
        if epoch == self._epoch:  # two Hellos crossed one Welcome
            return []
        actions: list[RegistrationAction] = []
        if self._epoch is not None:
            actions += self._end_epoch("the scheduler began another", now)
        self.state = RegistrationState.JOINED
        self._epoch = epoch
        self._beat_due = now
        return [*actions, *self._tag(epoch), LogEvent("joined", {"epoch": epoch})]

    def _tag(self, epoch: int) -> list[RegistrationAction]:
        if self._hello.pool is None:
            return []
        self._hello = msgspec.structs.replace(self._hello, pool=msgspec.structs.replace(self._hello.pool, epoch=epoch))
        return [TagPool(epoch)]

    def _on_reject(self, reject: m.Reject, now: float) -> list[RegistrationAction]:
        if self.state is not RegistrationState.SEEKING:
            return [DropMessage("a Reject in the middle of an epoch")]
        if reject.may_pass:
            return self._pause(reject.reason, now)
        self.state = RegistrationState.STOPPED
        return [LogEvent("rejected", {"reason": reject.reason}, "error"), StopProcess(EXIT_REJECTED)]

    def _pause(self, reason: str, now: float) -> list[RegistrationAction]:
        self.state, self._pause_over = RegistrationState.PAUSING, now + PAUSE_S
        return [LogEvent("rejected", {"reason": reason, "ends_in_s": PAUSE_S}, "error")]

    def _on_plan(self, plan: m.Plan, now: float) -> list[RegistrationAction]:
        if self._plans_waiting >= MAX_PLANS_WAITING:
            error = f"{self._plans_waiting} plans are waiting already"
            return self._fail(m.StepFailed(epoch=plan.epoch, step=plan.step, error=error), now)
        self._plans_waiting += 1
        return [RunPlan(plan)]

    def _fail(self, answer: m.StepFailed, now: float) -> list[RegistrationAction]:
        return [SendToScheduler(answer), *self._end_epoch(f"step {answer.step} failed", now)]

    def _end_epoch(self, reason: str, now: float, *, reconnect: bool = False) -> list[RegistrationAction]:
        level: Level = "info" if self.state is RegistrationState.LEAVING else "warning"
        ended = LogEvent("epoch over", {"epoch": self._epoch, "reason": reason}, level)
        self._epoch = None
        if self.state is RegistrationState.LEAVING:
            self.state = RegistrationState.STOPPED
            return [ended, StopProcess(EXIT_OK)]
        self.state = RegistrationState.SEEKING
        self._hello_due = now
        self._stuck_at = now + STUCK_TIMEOUT_S
        return [ended, Reconnect()] if reconnect else [ended]
