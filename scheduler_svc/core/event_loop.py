"""One turn of the core's loop, on sockets, a journal and a clock that the caller provides.

`server/core_process.py` provides real ones, and `tests/sim` simulated ones, so that the simulator runs this very loop.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from common import messages as m
from scheduler_svc.core.actions import (
    Action,
    AdmitExecutor,
    DismissExecutor,
    EndFrontend,
    Peer,
    SendToExecutor,
    SendToFrontend,
    Sent,
    WriteLog,
)
from scheduler_svc.core.core import Core
from scheduler_svc.core.requests.group_commit import JournalBatch, JournalResult

TICK_S = 0.1
PART_S = 0.002  # of CPU time for each part of a turn: what is left then waits for the next turn, which comes at once
FULL_PAUSE_S = 0.05  # before a frontend whose queue is full is offered its outputs again

Incoming_co = TypeVar("Incoming_co", covariant=True)
Item = TypeVar("Item")


class Port(Protocol[Incoming_co]):
    """A socket that many peers are connected to. None of its methods waits."""

    def receive(self) -> Iterable[tuple[Peer, Incoming_co]]:
        """Messages that have arrived, with their senders. Those that the caller does not get to are given again."""

    def send(self, peer: Peer, message: m.Message) -> Sent:
        """Send a message."""

    def admit(self, peer: Peer) -> None:
        """A peer is no stranger any more: it may take memory, files and time like one that belongs here."""

    def dismiss(self, peer: Peer) -> None:
        """A peer is a stranger again."""

    def disconnect(self, peer: Peer) -> None:
        """Close the connection to a peer."""

    def lost_connections(self) -> list[Peer]:
        """The peers whose connections broke since the last call."""


class JournalWriter(Protocol):
    """What writes batches, and says later what became of them."""

    def write(self, batch: JournalBatch) -> None:
        """Take a batch."""

    def results(self) -> list[JournalResult]:
        """What became of batches, and of the journal, since the last call."""


class EventLoop:
    """Tells the core what has happened, and carries out the actions that it answers with.

    Args:
        journal: None runs without.
        clock: seconds of a monotonic clock.
        cpu_clock: seconds of CPU time that this thread has used.
        write_log: writes a line.
        kill_frontend: kills a frontend's process; None where they are not ours.

    Attributes:
        is_behind: whether the last turn has left work for the next, which should come at once.
    """

    def __init__(
        self,
        core: Core,
        executors: Port[m.ExecutorToScheduler],
        frontends: Port[m.FrontendToCore],
        journal: JournalWriter | None,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        write_log: Callable[[WriteLog], None],
        kill_frontend: Callable[[int], object] | None = None,
    ) -> None:
        self.core = core
        self._executors = executors
        self._frontends = frontends
        self._journal = journal
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._write_log = write_log
        self._kill_frontend = kill_frontend
        self._full_until: dict[Peer, float] = {}
        self._lost: deque[Peer] = deque()  # executors whose connections broke
        self._told_last: Peer = b""  # the frontend that was sent outputs last
        self.is_behind = False

    @property
    def max_wait_s(self) -> float:
        """How long the caller may wait for something to happen before the next turn is due."""
        if self.is_behind:
            return 0.0
        due_in_s = self.core.journal_due_in_s(self._clock())
        return TICK_S if due_in_s is None else min(TICK_S, due_in_s)

    def turn(self) -> None:
        """Take in what has happened, and do what follows from it, some of each however much there is: so heartbeats go
        out in time, and nobody's storm keeps others waiting."""
        self.is_behind = False
        for peer, message in self._for_a_while(self._executors.receive()):
            self.carry_out(self.core.from_executor(peer, message, self._clock()))
        self._take_journal_results()
        for peer, request in self._for_a_while(self._frontends.receive()):
            self.carry_out(self.core.from_frontend(peer, request, self._clock()))
        self._take_lost_connections()
        for actions in self._for_a_while(self.core.chores(self._clock())):
            self.carry_out(actions)
        self.carry_out(self.core.tick(self._clock()))
        for plans in self._for_a_while(self.core.plans(self._clock())):
            self.carry_out(plans)
        self._write_journal()
        for _ in self._for_a_while(self._send_outputs()):
            pass

    def settle(self) -> bool:
        """Bring what was recorded to the journal; to be called until it is done, once the core has been shut down.

        Returns:
            Whether all is written, or the disk has shown that it does not work.
        """
        self._take_journal_results()
        self._write_journal()
        self.carry_out(self.core.settle(self._clock()))
        return self.core.is_settled

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Carry actions out, and what follows from that."""
        for action in actions:
            match action:
                case SendToExecutor(peer, message):
                    self._send_to_executor(peer, message)
                case AdmitExecutor(peer):
                    self._executors.admit(peer)
                case DismissExecutor(peer):
                    self._executors.dismiss(peer)
                case SendToFrontend(peer, message):
                    if self._frontends.send(peer, message) is Sent.GONE:
                        self.carry_out(self.core.frontend_gone(peer, self._clock()))
                case EndFrontend(peer, pid):
                    self._frontends.disconnect(peer)
                    if self._kill_frontend is not None:
                        self._kill_frontend(pid)
                case WriteLog():
                    self._write_log(action)
                    self.core.logged(action, self._clock())

    # --- the parts of a turn ---

    def _for_a_while(self, items: Iterable[Item]) -> Iterator[Item]:
        """One item, and others until they have taken long enough."""
        until: float | None = None
        for item in items:
            yield item
            now = self._cpu_clock()
            until = now + PART_S if until is None else until
            if now >= until:
                self.is_behind = True
                return

    def _take_lost_connections(self) -> None:
        self._lost += self._executors.lost_connections()
        for peer in self._for_a_while(self._taken(self._lost)):
            self.carry_out(self.core.executor_gone(peer, self._clock()))
        for peer in self._frontends.lost_connections():
            self._full_until.pop(peer, None)
            self.carry_out(self.core.frontend_gone(peer, self._clock()))

    def _take_journal_results(self) -> None:
        if self._journal is None:
            return
        for result in self._journal.results():
            self.carry_out(self.core.batch_written(result, self._clock()))

    def _write_journal(self) -> None:
        """Hand over the next batch, if it is time."""
        if self._journal is not None and (batch := self.core.next_batch(self._clock())) is not None:
            self._journal.write(batch)

    @staticmethod
    def _taken(items: deque[Item]) -> Iterator[Item]:
        while items:
            yield items.popleft()

    def _send_outputs(self) -> Iterator[Peer]:
        """Send frontends what waits for them, several tokens in one message to those that are slow. Yields after each
        message; who was served last comes last the next time."""
        now = self._clock()
        peers = self.core.frontends_with_outputs()
        first = peers.index(self._told_last) + 1 if self._told_last in peers else 0
        for peer in peers[first:] + peers[:first]:
            self._told_last = peer
            if now < self._full_until.get(peer, 0.0):
                continue
            self._full_until.pop(peer, None)
            sent = Sent.OK
            while sent is Sent.OK and (message := self.core.next_output(peer)) is not None:
                sent = self._frontends.send(peer, message)
                if sent is Sent.OK:
                    self.core.output_sent(peer)
                    yield peer
            if sent is Sent.GONE:
                self.carry_out(self.core.frontend_gone(peer, now))
            elif sent is Sent.FULL:
                self._full_until[peer] = now + FULL_PAUSE_S

    def _send_to_executor(self, peer: Peer, message: m.SchedulerToExecutor) -> None:
        match self._executors.send(peer, message):
            case Sent.GONE:
                self._lost.append(peer)
                self.is_behind = True
            case Sent.FULL if isinstance(message, m.Plan):
                self.carry_out(self.core.executor_full(message.epoch, self._clock()))
            case _:
                pass
