"""An executor's side of its life in a fleet: hello, epochs, heartbeats, loss, leaving.

A pure state machine. It is told what arrived and what time it is, and answers with what is to be done about it;
sockets, threads, signals and logs are `executor_svc.service.server`'s.

    SEEKING --Welcome--> JOINED --leave() or Leave--> LEAVING --> STOPPED
       ^                    |                         (EpochOver, loss, failed step or 10 s)
       +--- EpochOver, loss, failed step

In SEEKING it first waits for the plans of the old epoch that are still being computed. If that never ends, because
the computing thread hangs, it gives up: whoever supervises the process starts a new one.
"""

import enum
import math
from dataclasses import dataclass, field
from typing import Any

from common import messages as m
from common.heartbeats import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S

HELLO_INTERVAL_S = 1.0
LEAVE_TIMEOUT_S = 10.0
STUCK_TIMEOUT_S = 120.0  # for a step whose answer nobody waits for any more
MAX_PLANS_WAITING = 16  # the scheduler keeps 2 in flight; far more means that it has lost count
EXIT_OK = 0
EXIT_CRASHED = 70  # EX_SOFTWARE of sysexits.h
EXIT_REJECTED = 78  # EX_CONFIG of sysexits.h: starting again without a change is pointless


class Phase(enum.Enum):
    """Where an executor stands with its scheduler."""

    SEEKING = "seeking"
    JOINED = "joined"
    LEAVING = "leaving"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Send:
    """Send this message. If that cannot be done at once, call `Link.connection_lost`."""

    message: m.ExecutorToScheduler


@dataclass(frozen=True)
class Run:
    """Run this plan and give its answer to `Link.on_answer`."""

    plan: m.Plan


@dataclass(frozen=True)
class Reconnect:
    """Replace the connection by a fresh one."""


@dataclass(frozen=True)
class Stop:
    """End the process."""

    exit_code: int


@dataclass(frozen=True)
class Drop:
    """A message made no sense here and was dropped: count it."""

    reason: str


@dataclass(frozen=True)
class Note:
    """Something an operator wants to read in the log."""

    event: str
    facts: dict[str, Any] = field(default_factory=dict)


Action = Send | Run | Reconnect | Stop | Drop | Note


class Link:
    """The state machine. Times are seconds of any monotonic clock.

    Args:
        hello: what this executor says about itself.
        now: the current time.
    """

    def __init__(self, hello: m.Hello, now: float) -> None:
        self.phase = Phase.SEEKING
        self._hello = hello
        self._epoch: int | None = None
        self._plans_waiting = 0
        self._hello_due = now
        self._beat_due = now
        self._heard = now
        self._leave_by = now
        self._stuck_at = math.inf

    @property
    def epoch(self) -> int | None:
        """The epoch that lives; plans of any other are not worth running."""
        return self._epoch

    @property
    def leaving(self) -> bool:
        """Whether `leave` has been called."""
        return self.phase in (Phase.LEAVING, Phase.STOPPED)

    def hello_due(self, now: float) -> bool:
        """Whether `tick` would say Hello if it could: no epoch, and nothing left to compute from an old one."""
        return self.phase is Phase.SEEKING and self._plans_waiting == 0 and now >= self._hello_due

    def next_tick(self) -> float:
        """When `tick` is to be called at the latest; infinity if something else has to happen first."""
        if self.phase is Phase.SEEKING:
            return self._hello_due if self._plans_waiting == 0 else self._stuck_at
        due = min(self._beat_due, self._heard + LOSS_TIMEOUT_S)
        return min(due, self._leave_by) if self.phase is Phase.LEAVING else due

    def tick(self, now: float, *, writable: bool) -> list[Action]:
        """Do what is due by now. `writable`: whether a message could be sent at once."""
        if self.phase is Phase.SEEKING:
            if self._plans_waiting and now >= self._stuck_at:
                self.phase = Phase.STOPPED
                return [Note("stuck in a step", {"waited_s": STUCK_TIMEOUT_S}), Stop(EXIT_CRASHED)]
            if not (writable and self.hello_due(now)):
                return []
            self._hello_due = now + HELLO_INTERVAL_S
            return [Send(self._hello)]
        if self._epoch is None:  # stopped
            return []
        actions: list[Action] = []
        if now >= self._heard + LOSS_TIMEOUT_S:
            actions = self._end_epoch(f"nothing heard from the scheduler for {LOSS_TIMEOUT_S} s", now, reconnect=True)
        elif self.phase is Phase.LEAVING and now >= self._leave_by:
            actions = self._end_epoch(f"not released within {LEAVE_TIMEOUT_S:.0f} s", now)
        elif now >= self._beat_due:
            self._beat_due = now + HEARTBEAT_INTERVAL_S
            actions = [Send(m.ExecutorHeartbeat(epoch=self._epoch))]
        return actions

    def on_message(self, message: m.SchedulerToExecutor, now: float) -> list[Action]:
        """Take in what the scheduler said."""
        self._heard = now
        actions: list[Action] = []
        match message:
            case m.Welcome():
                actions = self._on_welcome(message.epoch, now)
            case m.Reject():
                actions = self._on_reject(message.reason)
            case m.EpochOver() if message.epoch != self._epoch:
                pass  # news of an epoch that has ended here as well
            case _ if message.epoch != self._epoch:
                actions = [Drop(f"{type(message).__name__} of epoch {message.epoch}, this is {self._epoch}")]
            case m.EpochOver():
                actions = self._end_epoch(message.reason, now)
            case m.Leave() if not self.leaving:
                actions = self.leave(now)
            case m.Plan():
                actions = self._on_plan(message, now)
            case _:  # a heartbeat, or a second Leave
                pass
        return actions

    def on_answer(self, answer: m.StepResult | m.StepFailed | None, now: float) -> list[Action]:
        """A plan of a `Run` is done with: its answer, or None if it was not run because its epoch had ended."""
        self._plans_waiting -= 1
        if answer is None or answer.epoch != self._epoch:
            return []
        return self._fail(answer, now) if isinstance(answer, m.StepFailed) else [Send(answer)]

    def connection_lost(self, now: float) -> list[Action]:
        """A message could not be sent: the connection is down, or its peer has stopped reading."""
        if self._epoch is None:
            return []
        return self._end_epoch("the connection to the scheduler broke", now, reconnect=True)

    def leave(self, now: float) -> list[Action]:
        """The operator wants this process to end."""
        if self._epoch is None:
            self.phase = Phase.STOPPED
            return [Note("leaving"), Stop(EXIT_OK)]
        self.phase = Phase.LEAVING
        self._leave_by = now + LEAVE_TIMEOUT_S
        return [Note("leaving", {"epoch": self._epoch}), Send(m.Leaving(epoch=self._epoch))]

    def _on_welcome(self, epoch: int, now: float) -> list[Action]:
        if self.leaving:
            return [Drop("a Welcome while leaving")]
        if epoch == self._epoch:  # two Hellos crossed one Welcome
            return []
        actions = [] if self._epoch is None else self._end_epoch("the scheduler began another", now)
        self.phase = Phase.JOINED
        self._epoch = epoch
        self._beat_due = now
        return [*actions, Note("joined", {"epoch": epoch})]

    def _on_reject(self, reason: str) -> list[Action]:
        if self.phase is not Phase.SEEKING:
            return [Drop("a Reject in the middle of an epoch")]
        self.phase = Phase.STOPPED
        return [Note("rejected", {"reason": reason}), Stop(EXIT_REJECTED)]

    def _on_plan(self, plan: m.Plan, now: float) -> list[Action]:
        if self._plans_waiting >= MAX_PLANS_WAITING:
            error = f"{self._plans_waiting} plans are waiting already"
            return self._fail(m.StepFailed(epoch=plan.epoch, step=plan.step, error=error), now)
        self._plans_waiting += 1
        return [Run(plan)]

    def _fail(self, answer: m.StepFailed, now: float) -> list[Action]:
        return [Send(answer), *self._end_epoch(f"step {answer.step} failed", now)]

    def _end_epoch(self, reason: str, now: float, *, reconnect: bool = False) -> list[Action]:
        ended = Note("epoch over", {"epoch": self._epoch, "reason": reason})
        self._epoch = None
        if self.phase is Phase.LEAVING:
            self.phase = Phase.STOPPED
            return [ended, Stop(EXIT_OK)]
        self.phase = Phase.SEEKING
        self._hello_due = now
        self._stuck_at = now + STUCK_TIMEOUT_S
        return [ended, Reconnect()] if reconnect else [ended]
