"""One turn of the core's loop, on sockets, a journal and a clock that the caller provides.

`server/core_process.py` provides real ones, and `tests/sim` simulated ones, so that the simulator runs this very loop.
"""

from collections.abc import Callable, Iterable
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
FULL_PAUSE_S = 0.05  # before a frontend whose queue is full is offered its outputs again

Incoming_co = TypeVar("Incoming_co", covariant=True)


class Port(Protocol[Incoming_co]):
    """A socket that many peers are connected to. None of its methods waits."""

    def receive(self) -> Iterable[tuple[Peer, Incoming_co]]:
        """Messages that have arrived, with their senders."""

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
        write_log: writes a line.
        kill_frontend: kills a frontend's process; None where they are not ours.
    """

    def __init__(
        self,
        core: Core,
        executors: Port[m.ExecutorToScheduler],
        frontends: Port[m.FrontendToCore],
        journal: JournalWriter | None,
        clock: Callable[[], float],
        write_log: Callable[[WriteLog], None],
        kill_frontend: Callable[[int], object] | None = None,
    ) -> None:
        self.core = core
        self._executors = executors
        self._frontends = frontends
        self._journal = journal
        self._clock = clock
        self._write_log = write_log
        self._kill_frontend = kill_frontend
        self._full_until: dict[Peer, float] = {}

    @property
    def max_wait_s(self) -> float:
        """How long the caller may wait for something to happen before the next turn is due."""
        due_in_s = self.core.journal_due_in_s(self._clock())
        return TICK_S if due_in_s is None else min(TICK_S, due_in_s)

    def turn(self) -> None:
        """Take in what has happened, and do all that follows from it."""
        for peer, message in self._executors.receive():
            self.carry_out(self.core.from_executor(peer, message, self._clock()))
        self._take_journal_results()
        for peer, request in self._frontends.receive():
            self.carry_out(self.core.from_frontend(peer, request, self._clock()))
        self._take_lost_connections()
        self.carry_out(self.core.tick(self._clock()))
        self.carry_out(self.core.plans(self._clock()))
        self._write_journal()
        self._send_outputs()

    def settle(self) -> bool:
        """Bring what was recorded to the journal; to be called until it is done, once the core has been shut down.

        Returns:
            Whether all is written, or the disk has shown that it does not work.
        """
        self._take_journal_results()
        self._write_journal()
        self.carry_out(self.core.settle(self._clock()))
        return self.core.is_settled

    def carry_out(self, actions: list[Action]) -> None:
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

    def _take_lost_connections(self) -> None:
        for peer in self._executors.lost_connections():
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

    def _send_outputs(self) -> None:
        """Send frontends what waits for them, several tokens in one message to those that are slow."""
        now = self._clock()
        for peer in self.core.frontends_with_outputs():
            if now < self._full_until.get(peer, 0.0):
                continue
            self._full_until.pop(peer, None)
            sent = Sent.OK
            while sent is Sent.OK and (message := self.core.next_output(peer)) is not None:
                sent = self._frontends.send(peer, message)
                if sent is Sent.OK:
                    self.core.output_sent(peer)
            if sent is Sent.GONE:
                self.carry_out(self.core.frontend_gone(peer, now))
            elif sent is Sent.FULL:
                self._full_until[peer] = now + FULL_PAUSE_S

    def _send_to_executor(self, peer: Peer, message: m.SchedulerToExecutor) -> None:
        match self._executors.send(peer, message):
            case Sent.GONE:
                self.carry_out(self.core.executor_gone(peer, self._clock()))
            case Sent.FULL if isinstance(message, m.Plan):
                self.carry_out(self.core.executor_full(message.epoch, self._clock()))
            case _:
                pass
