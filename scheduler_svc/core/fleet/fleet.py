"""The lives of executors: which are in the fleet, under which epoch, and when one has left it.

A pure state machine in the manner of h11: messages and the time go in; events of the fleet and messages to send come
out. It opens no socket and reads no clock, so that the simulator (tests/sim) runs it in virtual time. `core.py` decides
what follows from the events.

    Hello ──▶ READY ──ask_to_leave(finish)──▶ FINISHING ──release──▶ DRAINING ──▶ EpochEnded
                │ ──ask_to_leave, Leaving──────────────────────────────▲
                └── silence, a broken or full connection, a hung or failed step, another Hello ──▶ EpochEnded
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from common import messages as m
from common.heartbeats import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S
from common.plan import ExecutorLimits
from common.vocabulary import Vocabulary
from scheduler_svc.core.actions import AdmitExecutor, DismissExecutor, Peer, SendToExecutor
from scheduler_svc.core.fleet.hello_check import mismatch
from scheduler_svc.core.fleet.membership import Membership, Standing
from scheduler_svc.core.fleet.probation import Probation
from scheduler_svc.core.fleet.step_clock import DEFAULT_FLOOR_S, Answered, Paces, StepClock

MAX_MEMBERS = 256
MAX_REMEMBERED = 1024  # executors that left
FAILURES = ("step_failed", "hung", "untrusted", "no_numbers", "disconnected", "silent")
LIES = ("untrusted", "no_numbers")  # failures that no sequence can have caused
UNSAFE = ("step_failed", *LIES)  # causes after which nothing that the executor's pool holds may count
BLAMABLE = ("step_failed", "hung", "disconnected", "silent")  # failures that a sequence may have caused
MIN_WRONGED = 2  # clients, for one may ask for what a model cannot compute, in many ways
DOUBTED_FOR_S = 60.0  # after a row without numbers
HELLO_AGAIN_S = 0.5  # a peer that has just joined need not join again, whatever became of its epoch


@dataclass(frozen=True, slots=True)
class ExecutorJoined:
    """An epoch begins; its Welcome comes after this event, so that a failure to send it ends a known epoch."""

    membership: Membership
    hello: m.Hello


@dataclass(frozen=True, slots=True)
class ExecutorRejected:
    """An executor may not join, now or ever."""

    hello: m.Hello
    reason: str


@dataclass(frozen=True, slots=True)
class ExecutorFinishing:
    """The executor is to leave: it gets no new sequences; call `release` when those it has have ended."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ExecutorDraining:
    """The executor is to leave: it gets no more plans; call `end` when those it has are answered."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StepAnswered:
    """The answer to a plan of a live epoch."""

    result: m.StepResult


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """An epoch is over, and with it all that its executor cached, unless its pool goes on.

    Attributes:
        cause: one word for metrics: one of FAILURES, or `restarted`, `drained`, `shutdown`.
        reason: for people; says all that the cause says.
        step: the one that failed, if it is known.
    """

    epoch: int
    hello: m.Hello
    cause: str
    reason: str
    step: int | None = None


FleetEvent = ExecutorJoined | ExecutorRejected | ExecutorFinishing | ExecutorDraining | StepAnswered | EpochEnded
Consequence = FleetEvent | SendToExecutor | AdmitExecutor | DismissExecutor


@dataclass(slots=True)
class Member:
    """An executor in one epoch of its life, with what only the fleet needs. Times are the caller's, in seconds.

    Attributes:
        wronged: clients whose rows had no numbers here and some elsewhere, each with the last time.
    """

    peer: Peer
    membership: Membership
    hello: m.Hello
    joined_at: float
    last_heard: float
    steps: StepClock
    wronged: dict[str, float] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """Its epoch."""
        return self.membership.epoch

    @property
    def standing(self) -> Standing:
        """Where it stands."""
        return self.membership.standing


def model_of(hello: m.Hello) -> str:
    """Name of what an executor computes with: executors of one model give a sequence the same tokens."""
    return f"{hello.fingerprint}/{hello.dtype}"


class Fleet:
    """All executors that have an epoch.

    Args:
        first_epoch: epochs count up from here; one that no earlier life of the scheduler has given out.
        step_floor_s: what any step may take before its executor counts as hung (see StepClock).
        vocabularies: by task, what members that take it must have; of others, that of the first one.
    """

    def __init__(
        self,
        first_epoch: int = 1,
        step_floor_s: float = DEFAULT_FLOOR_S,
        vocabularies: Mapping[m.Task, Vocabulary] | None = None,
    ) -> None:
        self._members: dict[Peer, Member] = {}
        self._by_epoch: dict[int, Member] = {}
        self._last_joins: dict[Peer, float] = {}  # when a peer that is connected joined last
        self._next_epoch = first_epoch
        self._step_floor_s = step_floor_s
        self._vocabularies = vocabularies or {}
        self._last_beat = float("-inf")
        self._probation = Probation()
        self._paces = Paces()
        self._earlier: OrderedDict[tuple[str, str], StepClock] = OrderedDict()  # of executors that left, by name

    def __iter__(self) -> Iterator[Member]:
        """Members in the order in which they joined."""
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def member(self, epoch: int) -> Member | None:
        """The member with this epoch, if it is alive."""
        return self._by_epoch.get(epoch)

    def find(self, executor: str) -> Member | str:
        """The member of this name, or with this epoch in decimal; or why there is not one such member."""
        found = [member for member in self._members.values() if str(member.epoch) == executor]
        found = found or [member for member in self._members.values() if member.hello.executor == executor]
        match found:
            case [member]:
                return member
            case []:
                return f"no executor {executor!r} is in the fleet"
            case _:
                epochs = ", ".join(str(member.epoch) for member in found)
                return f"{len(found)} executors are called {executor!r}; name one by its epoch ({epochs})"

    def receive(self, peer: Peer, message: m.ExecutorToScheduler, now: float) -> list[Consequence]:
        """What follows from a message of `peer`."""
        if isinstance(message, m.Hello):
            return self._hello(peer, message, now)
        member = self._members.get(peer)
        if member is None or member.epoch != message.epoch:
            # The peer's epoch has ended here, or an earlier scheduler gave it out: the executor has to say Hello.
            return [SendToExecutor(peer, m.EpochOver(epoch=message.epoch, reason="this epoch is unknown here"))]
        member.last_heard = now
        match message:
            case m.ExecutorHeartbeat(has_standby=has_standby):
                member.membership.has_standby = has_standby
                return []
            case m.StepResult():
                return [StepAnswered(message)]
            case m.StepFailed(step=step):
                reason = f"step {step} failed: {message.error}"
                return self._end(member, "step_failed", reason, now, tell=False, step=step)
            case m.Leaving():
                return self._drain(member)

    def plan_sent(self, epoch: int, step: int, num_tokens: int, now: float) -> None:
        """A plan of so many tokens is on its way to a live epoch: from now on the fleet waits for its answer."""
        member = self.member(epoch)
        assert member is not None, f"epoch {epoch} is over"
        member.steps.sent(step, num_tokens, now)

    def step_answered(self, epoch: int, step: int, now: float) -> Answered:
        """The answer to a plan of a live epoch has been checked."""
        if (member := self.member(epoch)) is None:
            return Answered(0, 0.0)
        membership = member.membership
        membership.is_late = False
        if (answered := member.steps.answered(step, now)).num_tokens:
            membership.slowness = self._paces.compared(membership.model, membership.slowness, answered)
        return answered

    def gave_no_numbers(self, epoch: int, client: str, now: float) -> list[Consequence]:
        """The scores of a client's row were no numbers, and another computation of it gave some.

        Once may be a bit that flipped. An executor that does so to two clients computes nonsense: its epoch ends.
        """
        if (member := self.member(epoch)) is None:
            return []
        member.wronged[client] = now
        member.membership.is_doubted = True
        if len(member.wronged) < MIN_WRONGED:
            return []
        return self._end(member, "no_numbers", f"scores for {len(member.wronged)} clients were no numbers", now)

    def paused(self, seconds: float, now: float) -> None:
        """The caller has not run for so long: executors may have spoken and answered in that time."""
        for member in self._members.values():
            member.last_heard = min(member.last_heard + seconds, now)
            member.steps.paused(seconds, now)

    def ask_to_leave(self, epoch: int, *, finish: bool) -> list[Consequence]:
        """An operator wants an executor to go: at the next step boundary, or (`finish`) when its sequences ended."""
        member = self.member(epoch)
        if member is None or member.standing is Standing.DRAINING:
            return []
        if not finish:
            return self.release(epoch)
        if member.standing is Standing.FINISHING:
            return []
        member.membership.standing = Standing.FINISHING
        return [ExecutorFinishing(epoch)]

    def release(self, epoch: int) -> list[Consequence]:
        """Tell an executor to leave, and drain it."""
        member = self.member(epoch)
        return [] if member is None else [SendToExecutor(member.peer, m.Leave(epoch=epoch)), *self._drain(member)]

    def end(self, epoch: int, cause: str, reason: str, now: float) -> list[Consequence]:
        """End an epoch and tell its executor (which may say Hello again)."""
        member = self.member(epoch)
        return [] if member is None else self._end(member, cause, reason, now)

    def disconnected(self, peer: Peer, now: float) -> list[Consequence]:
        """The connection to `peer` is gone."""
        self._last_joins.pop(peer, None)
        member = self._members.get(peer)
        if member is None:
            return []
        return self._lost(member, "connection broke", now)

    def chores(self, now: float) -> Iterator[list[Consequence]]:
        """Say which members are late, or doubted no more, and end epochs that have been silent or computing for too
        long, one at each step."""
        for member in self:
            member.membership.is_late = member.steps.is_late(now)
            if member.wronged and now - max(member.wronged.values()) > DOUBTED_FOR_S:
                member.wronged.clear()
                member.membership.is_doubted = False
            silence_s = now - member.last_heard
            if silence_s > LOSS_TIMEOUT_S:
                yield self._end(member, "silent", f"not heard for {silence_s:.1f} s", now)
            elif (overdue := member.steps.overdue(now)) is not None:
                yield self._end(member, "hung", str(overdue), now, step=overdue.step)

    def tick(self, now: float) -> list[Consequence]:
        """Send heartbeats when they are due."""
        if now - self._last_beat < HEARTBEAT_INTERVAL_S:
            return []
        self._last_beat = now
        return [SendToExecutor(member.peer, m.SchedulerHeartbeat(epoch=member.epoch)) for member in self]

    def _hello(self, peer: Peer, hello: m.Hello, now: float) -> list[Consequence]:
        if now - self._last_joins.get(peer, float("-inf")) < HELLO_AGAIN_S:
            return []  # the executor says Hello again every second
        consequences: list[Consequence] = []
        if (known := self._members.get(peer)) is not None:
            consequences += self._end(known, "restarted", "joined again by itself", now, tell=False)
        if (reject := mismatch(hello, [member.hello for member in self], self._vocabularies)) is not None:
            return [*consequences, ExecutorRejected(hello, reject.reason), SendToExecutor(peer, reject)]
        if len(self._members) >= MAX_MEMBERS:  # there may be room later, so the executor is not told to end
            full = f"{len(self._members)} executors are in this fleet, the limit is {MAX_MEMBERS}"
            return [*consequences, ExecutorRejected(hello, full)]
        if self._probation.is_out(hello.executor, now):
            return consequences
        if hello.pool is not None and (older := self._holder(hello.pool.pool)) is not None:
            if older.hello.pool is not None and hello.pool.lease < older.hello.pool.lease:
                return consequences  # said by a process that is gone, before its successor spoke
            # The older process has ended or released its lease, or it is the same one over another connection.
            consequences += self._lost(older, "its pool has another holder", now)
        model = model_of(hello)
        steps = StepClock(self._step_floor_s, self._earlier.get((hello.executor, model)))
        limits = ExecutorLimits.of(hello)
        membership = Membership(
            self._next_epoch, hello.executor, model, limits, grammars=hello.grammars, pool=hello.pool
        )
        self._next_epoch += 1
        member = Member(peer, membership, hello, joined_at=now, last_heard=now, steps=steps)
        self._members[peer] = self._by_epoch[member.epoch] = member
        self._last_joins[peer] = now
        return [
            *consequences,
            ExecutorJoined(membership, hello),
            AdmitExecutor(peer),
            SendToExecutor(peer, m.Welcome(epoch=membership.epoch)),
        ]

    def _holder(self, pool: str) -> Member | None:
        """The member that has a pool."""
        return next((m for m in self._members.values() if m.hello.pool is not None and m.hello.pool.pool == pool), None)

    def _lost(self, member: Member, reason: str, now: float) -> list[Consequence]:
        """An executor is gone. One that was asked to leave, and does not wait for its last step, has left in order."""
        if member.standing is Standing.DRAINING:
            return self._end(member, "drained", "drained", now, tell=False)
        return self._end(member, "disconnected", reason, now, tell=False)

    @staticmethod
    def _drain(member: Member) -> list[Consequence]:
        if member.standing is Standing.DRAINING:
            return []
        member.membership.standing = Standing.DRAINING
        return [ExecutorDraining(member.epoch)]

    def _end(
        self, member: Member, cause: str, reason: str, now: float, *, tell: bool = True, step: int | None = None
    ) -> list[Consequence]:
        del self._members[member.peer], self._by_epoch[member.epoch]
        self._earlier[member.hello.executor, member.membership.model] = member.steps
        if len(self._earlier) > MAX_REMEMBERED:
            self._earlier.popitem(last=False)
        if cause in FAILURES and member.steps.num_sent:
            worked, is_liar = member.steps.num_answered > 0, cause in LIES
            out_s = self._probation.failed(member.hello.executor, now, worked=worked, is_liar=is_liar)
            reason += f"; kept out for {out_s:.0f} s" if out_s else ""
        elif cause == "drained":
            self._probation.forgive(member.hello.executor)
        told = [SendToExecutor(member.peer, m.EpochOver(epoch=member.epoch, reason=reason[:4096]))] if tell else []
        return [*told, DismissExecutor(member.peer), EpochEnded(member.epoch, member.hello, cause, reason, step)]
