"""The lives of executors: who is in the fleet, under which epoch, and when one has left it.

A pure state machine in the manner of h11: messages and the time go in, effects come out. It opens no socket and
reads no clock, so a simulator can run it in virtual time. `engine.py` carries the effects out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from common import messages as m
from common.wire import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S

Peer = bytes

MAX_BLOCKS = 2**22
MAX_LANES = 2**16
MAX_SLOTS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to `peer`."""

    peer: Peer
    message: m.SchedulerToExecutor


@dataclass(frozen=True, slots=True)
class Joined:
    """An epoch begins; its Welcome comes after this effect, so that a failure to send it ends a known epoch."""

    epoch: int
    hello: m.Hello


@dataclass(frozen=True, slots=True)
class Draining:
    """The executor wants to leave: plan nothing more for it and call `end` once its plans are answered."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a plan of a live epoch."""

    result: m.StepResult


@dataclass(frozen=True, slots=True)
class Ended:
    """An epoch is over, and with it all that its executor cached.

    Attributes:
        cause: one word for metrics (`silent`, `disconnected`, `step_failed`, `restarted`, `drained`, `untrusted`,
            `shutdown`).
        reason: for people.
    """

    epoch: int
    hello: m.Hello
    cause: str
    reason: str


Effect = Send | Joined | Draining | Answered | Ended


@dataclass(slots=True)
class Member:
    """An executor in one epoch of its life. Times are the caller's, in seconds."""

    peer: Peer
    epoch: int
    hello: m.Hello
    joined_at: float
    last_heard: float
    draining: bool = False


class Fleet:
    """All executors that have an epoch.

    Args:
        first_epoch: epochs count up from here; one that no earlier life of the scheduler has given out.
    """

    def __init__(self, first_epoch: int = 1) -> None:
        self._members: dict[Peer, Member] = {}
        self._next_epoch = first_epoch
        self._last_beat = float("-inf")

    def __iter__(self) -> Iterator[Member]:
        """Members in the order in which they joined."""
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def member(self, epoch: int) -> Member | None:
        """The member with this epoch, if it is alive."""
        return next((member for member in self._members.values() if member.epoch == epoch), None)

    def receive(self, peer: Peer, message: m.ExecutorToScheduler, now: float) -> list[Effect]:
        """What follows from a message of `peer`."""
        if isinstance(message, m.Hello):
            return self._hello(peer, message, now)
        member = self._members.get(peer)
        if member is None or member.epoch != message.epoch:
            # A peer whose connection or patience broke, or that knew an earlier scheduler: it has to say Hello.
            return [Send(peer, m.EpochOver(epoch=message.epoch, reason="this epoch is unknown here"))]
        member.last_heard = now
        match message:
            case m.ExecutorHeartbeat():
                return []
            case m.StepResult():
                return [Answered(message)]
            case m.StepFailed():
                return self._end(member, "step_failed", f"step {message.step} failed: {message.error}", tell=False)
            case m.Leaving():
                return self.drain(member.epoch)

    def drain(self, epoch: int) -> list[Effect]:
        """Let an executor leave as soon as its plans are answered."""
        member = self.member(epoch)
        if member is None or member.draining:
            return []
        member.draining = True
        return [Draining(epoch)]

    def end(self, epoch: int, cause: str, reason: str) -> list[Effect]:
        """End an epoch and tell its executor (which may say Hello again)."""
        member = self.member(epoch)
        return [] if member is None else self._end(member, cause, reason)

    def disconnected(self, peer: Peer) -> list[Effect]:
        """The connection to `peer` is gone."""
        member = self._members.get(peer)
        return [] if member is None else self._end(member, "disconnected", "connection broke", tell=False)

    def tick(self, now: float) -> list[Effect]:
        """Ends epochs that have been silent too long, and sends heartbeats when they are due."""
        effects: list[Effect] = []
        for member in self:
            silence = now - member.last_heard
            if silence > LOSS_TIMEOUT_S:
                effects += self._end(member, "silent", f"not heard for {silence:.1f} s")
        if now - self._last_beat >= HEARTBEAT_INTERVAL_S:
            self._last_beat = now
            effects += self.heartbeats()
        return effects

    def heartbeats(self) -> list[Effect]:
        """A heartbeat for everyone; sending them also finds out whose connection is gone."""
        return [Send(member.peer, m.SchedulerHeartbeat(epoch=member.epoch)) for member in self]

    def _hello(self, peer: Peer, hello: m.Hello, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if (known := self._members.get(peer)) is not None:
            effects += self._end(known, "restarted", "it said Hello again", tell=False)
        if (reason := self._mismatch(hello)) is not None:
            return [*effects, Send(peer, m.Reject(reason=reason))]
        member = Member(peer, self._next_epoch, hello, joined_at=now, last_heard=now)
        self._next_epoch += 1
        self._members[peer] = member
        return [*effects, Joined(member.epoch, hello), Send(peer, m.Welcome(epoch=member.epoch))]

    def _mismatch(self, hello: m.Hello) -> str | None:
        """What keeps an executor from joining: its books must fit our memory and its slots an int32, and sequences
        must be able to move between any two members."""
        for what, value, limit in (
            ("num_blocks", hello.num_blocks, MAX_BLOCKS),
            ("max_num_seqs", hello.max_num_seqs, MAX_LANES),
            ("num_blocks * block_size", hello.num_blocks * hello.block_size, MAX_SLOTS),
        ):
            if value > limit:
                return f"{what} is {value}, the limit is {limit}"
        for member in self:
            for what in ("fingerprint", "dtype", "vocab_size"):
                theirs, ours = getattr(hello, what), getattr(member.hello, what)
                if theirs != ours:
                    return f"{what} is {theirs}, that of {member.hello.executor} in this fleet is {ours}"
        return None

    def _end(self, member: Member, cause: str, reason: str, *, tell: bool = True) -> list[Effect]:
        del self._members[member.peer]
        told = [Send(member.peer, m.EpochOver(epoch=member.epoch, reason=reason))] if tell else []
        return [*told, Ended(member.epoch, member.hello, cause, reason)]
