"""One turn of the core's loop, on sockets, a journal and a clock that somebody else provides.

`server/core_process.py` provides real ones, and `tests/sim` simulated ones, so that the simulator runs this very loop.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from common import messages as m
from scheduler_svc.core.actions import Effect, Log, Peer, Sent, ToExecutor, ToFrontend
from scheduler_svc.core.core import Core
from scheduler_svc.core.requests.group_commit import Batch, Failed, Saved

TICK_S = 0.1
FULL_PAUSE_S = 0.05  # before a frontend that takes nothing is offered its outputs again

Incoming_co = TypeVar("Incoming_co", covariant=True)


class Port(Protocol[Incoming_co]):
    """A socket that many peers are connected to. Nothing it does waits."""

    def receive(self) -> Iterable[tuple[Peer, Incoming_co]]:
        """Messages that have arrived, with their senders."""

    def send(self, peer: Peer, message: m.Message) -> Sent:
        """Send a message."""

    def lost_connections(self) -> list[Peer]:
        """The peers whose connections broke since the last call."""


class JournalWriter(Protocol):
    """What writes batches, and says later what became of them."""

    def write(self, batch: Batch) -> None:
        """Take a batch."""

    def results(self) -> list[Saved | Failed]:
        """What became of batches since the last call."""


class Driver:
    """Carries out what the core decides.

    Args:
        journal: None runs without.
        clock: seconds of a monotonic clock.
        write_log: writes a line.
    """

    def __init__(
        self,
        core: Core,
        executors: Port[m.ExecutorToScheduler],
        frontends: Port[m.FrontendToCore],
        journal: JournalWriter | None,
        clock: Callable[[], float],
        write_log: Callable[[Log], None],
    ) -> None:
        self.core = core
        self._executors = executors
        self._frontends = frontends
        self._journal = journal
        self._clock = clock
        self._write_log = write_log
        self._full_until: dict[Peer, float] = {}

    @property
    def patience_s(self) -> float:
        """How long nothing may happen until a turn is due all the same."""
        due_in_s = self.core.desk.ledger.due_in_s(self._clock())
        return TICK_S if due_in_s is None else min(TICK_S, due_in_s)

    def turn(self) -> None:
        """Carry what has happened as far as it goes."""
        for peer, message in self._executors.receive():
            self.from_executor(peer, message)
        self.hear_journal()
        for peer, request in self._frontends.receive():
            self.from_frontend(peer, request)
        self.hear_of_losses()
        self.do(self.core.tick(self._clock()))
        self.send_plans()
        self.write_journal()
        self._flush()

    def settle(self) -> bool:
        """Bring what was recorded to the journal. Returns whether that is done, or the disk has shown that it does not
        work; to be called until it is, once the core has been shut down."""
        self.hear_journal()
        self.write_journal()
        self.do(self.core.desk.tick(self._clock()))
        return self.core.desk.ledger.is_settled

    def do(self, effects: list[Effect]) -> None:
        """Carry effects out, and what follows from that."""
        for effect in effects:
            match effect:
                case ToExecutor(peer, message):
                    self._send_to_executor(peer, message)
                case ToFrontend(peer, message):
                    if self._frontends.send(peer, message) is Sent.GONE:
                        self.do(self.core.frontend_gone(peer, self._clock()))
                case Log():
                    self._write_log(effect)

    # --- the parts of a turn ---

    def from_executor(self, peer: Peer, message: m.ExecutorToScheduler) -> None:
        """A message has come from an executor."""
        self.do(self.core.from_executor(peer, message, self._clock()))

    def from_frontend(self, peer: Peer, message: m.FrontendToCore) -> None:
        """A message has come from a frontend."""
        self.do(self.core.from_frontend(peer, message, self._clock()))

    def hear_of_losses(self) -> None:
        """Connections have broken."""
        for peer in self._executors.lost_connections():
            self.do(self.core.executor_gone(peer, self._clock()))
        for peer in self._frontends.lost_connections():
            self._full_until.pop(peer, None)
            self.do(self.core.frontend_gone(peer, self._clock()))

    def send_plans(self) -> None:
        """Send executors all that they can take."""
        self.do(self.core.plans(self._clock()))

    def hear_journal(self) -> None:
        """Hear what became of the last batch."""
        if self._journal is None:
            return
        desk = self.core.desk
        for result in self._journal.results():
            match result:
                case Saved(number):
                    self.do(desk.saved(number))
                case Failed(number, reason):
                    self.do(desk.failed(number, reason, self._clock()))

    def write_journal(self) -> None:
        """Hand over the next batch, if it is time."""
        if self._journal is not None and (batch := self.core.desk.next_batch(self._clock())) is not None:
            self._journal.write(batch)

    # --- inside ---

    def _send_to_executor(self, peer: Peer, message: m.SchedulerToExecutor) -> None:
        match self._executors.send(peer, message):
            case Sent.GONE:
                self.do(self.core.executor_gone(peer, self._clock()))
            case Sent.FULL if isinstance(message, m.Plan):
                self.do(self.core.executor_full(message.epoch, self._clock()))
            case _:
                pass

    def _flush(self) -> None:
        """Send frontends what waits for them, several tokens in one message to those that are slow."""
        outbox, now = self.core.desk.outbox, self._clock()
        for peer in outbox.peers():
            if now < self._full_until.get(peer, 0.0):
                continue
            self._full_until.pop(peer, None)
            sent = Sent.OK
            while sent is Sent.OK and (message := outbox.peek(peer)) is not None:
                sent = self._frontends.send(peer, message)
                if sent is Sent.OK:
                    outbox.sent(peer)
            if sent is Sent.GONE:
                outbox.forget(peer)
                self.do(self.core.frontend_gone(peer, now))
            elif sent is Sent.FULL:
                self._full_until[peer] = now + FULL_PAUSE_S
