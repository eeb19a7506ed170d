"""The core's loop: the only place of the core that does I/O. It connects the core, which decides, to sockets, the
clock, the journal and the log.
"""

import time
from dataclasses import replace
from math import ceil

import zmq

from common import messages as m
from common.curve import ServerCurve
from common.errors import BatonError
from common.logging import DropLog, get_logger
from common.wire import VersionError
from scheduler_svc.core import Core, CoreConfig
from scheduler_svc.effects import Effect, Log, Peer, ToExecutor, ToFrontend
from scheduler_svc.front_desk import RESUME_WITHIN_S
from scheduler_svc.journal import Journal, JournalError, Saved
from scheduler_svc.ledger import JournalState
from scheduler_svc.records import count_crashes, replay
from scheduler_svc.reporting import Outside
from scheduler_svc.router import Router, Sent

TICK_MS = 100
SETTLE_MS = 10  # between looks at the journal while the engine closes
MAX_EXECUTOR_MESSAGE_BYTES = 2**20  # four times the longest StepResult; libzmq may hold it for every stranger
FULL_PAUSE_S = 0.05  # before a frontend that takes nothing is offered its outputs again

log = get_logger(__name__)


class Engine:
    """The core of the scheduler service.

    Args:
        executor_endpoint, frontend_endpoint: to bind.
        config: of the core; what depends on the clock and the journal is filled in here.
        journal: opened and not started; None runs without.
        curve: keys of this service, and of the executors that may connect; None asks nobody.

    Attributes:
        core: for reading.
    """

    def __init__(
        self,
        executor_endpoint: str,
        frontend_endpoint: str,
        config: CoreConfig,
        journal: Journal | None = None,
        curve: ServerCurve | None = None,
    ) -> None:
        wall_s, now = time.time(), time.monotonic()
        batches = journal.load() if journal is not None else []
        config = replace(
            config,
            first_epoch=int(wall_s * 1000),  # above any epoch of an earlier life
            journal=JournalState.OFF if journal is None else JournalState.OK,
            first_batch=batches[-1][0] + 1 if batches else 1,
            wall_offset_s=wall_s - now,
        )
        self.core = Core(config, now, self._outside)
        self._drops = {link: DropLog(log, link) for link in ("executors", "frontends")}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._executors: Router[m.ExecutorToScheduler] = Router(
            self._context,
            executor_endpoint,
            m.ExecutorToScheduler,
            self._drops["executors"],
            self._wrong_version,
            curve=curve,
            max_message_bytes=MAX_EXECUTOR_MESSAGE_BYTES,
        )
        self._fronts: Router[m.FrontendToCore] = Router(
            self._context, frontend_endpoint, m.FrontendToCore, self._drops["frontends"]
        )
        self._poller = zmq.Poller()
        for socket in (self._executors.socket, self._executors.monitor, self._fronts.socket, self._fronts.monitor):
            self._poller.register(socket, zmq.POLLIN)
        self._full_until: dict[Peer, float] = {}
        self._journal = journal
        if journal is not None:
            self._open_journal(journal, [payload for _, payload in batches], now)

    @property
    def executor_endpoint(self) -> str:
        """Where executors connect to (with the port that was picked, if it was 0)."""
        return self._executors.endpoint

    def turn(self) -> None:
        """Wait for something to happen (at most a tick) and carry it as far as it goes."""
        self._poller.poll(self._patience_ms(time.monotonic()))
        for peer, message in self._executors.receive():
            self._do(self.core.from_executor(peer, message, time.monotonic()))
        if self._journal is not None:
            self._hear_journal(self._journal)
        for peer, request in self._fronts.receive():
            self._do(self.core.from_frontend(peer, request, time.monotonic()))
        now = time.monotonic()
        for peer in self._executors.lost_connections():
            self._do(self.core.executor_gone(peer, now))
        for peer in self._fronts.lost_connections():
            self._do(self.core.frontend_gone(peer, now))
        self._do(self.core.tick(now))
        self._do(self.core.plans(time.monotonic()))
        if self._journal is not None:
            self._write_journal(self._journal)
        self._flush()

    def crashed(self) -> None:
        """A turn has raised what it never should: leave a word for the next life, and nothing else."""
        log.exception("core failed")
        if self._journal is not None:
            self._journal.write(self.core.desk.crashed())
            self._journal.close()  # when that is written; the sockets end with the process

    def close(self) -> None:
        """Tell everyone, write what the journal lacks, and close the sockets."""
        self._do(self.core.shut_down(time.monotonic()))
        if self._journal is not None:
            self._settle_journal(self._journal)
            self._journal.close()
        self._executors.close()
        self._fronts.close()
        self._context.term()

    def _patience_ms(self, now: float) -> int:
        """How long nothing may happen until there is something to do all the same."""
        due_in_s = self.core.desk.ledger.due_in_s(now)
        return TICK_MS if due_in_s is None else min(TICK_MS, ceil(due_in_s * 1000))

    # --- effects ---

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToExecutor(peer, message):
                    self._send_to_executor(peer, message)
                case ToFrontend(peer, message):
                    if self._fronts.send(peer, message) is Sent.GONE:
                        self._do(self.core.frontend_gone(peer, time.monotonic()))
                case Log(level, event, facts):
                    getattr(log, level)(event, **facts)

    def _send_to_executor(self, peer: Peer, message: m.SchedulerToExecutor) -> None:
        match self._executors.send(peer, message):
            case Sent.GONE:
                self._do(self.core.executor_gone(peer, time.monotonic()))
            case Sent.FULL if isinstance(message, m.Plan):
                self._do(self.core.executor_full(message.epoch, time.monotonic()))
            case _:
                pass

    def _flush(self) -> None:
        """Send frontends what waits for them, several tokens in one message to those that are slow."""
        outbox, now = self.core.desk.outbox, time.monotonic()
        for peer in outbox.peers():
            if now < self._full_until.get(peer, 0.0):
                continue
            self._full_until.pop(peer, None)
            sent = Sent.OK
            while sent is Sent.OK and (message := outbox.peek(peer)) is not None:
                sent = self._fronts.send(peer, message)
                if sent is Sent.OK:
                    outbox.sent(peer)
            if sent is Sent.GONE:
                outbox.forget(peer)
                self._do(self.core.frontend_gone(peer, now))
            elif sent is Sent.FULL:
                self._full_until[peer] = now + FULL_PAUSE_S

    def _wrong_version(self, peer: Peer, error: VersionError) -> None:
        self._executors.send(peer, m.Reject(reason=str(error)))

    # --- the journal ---

    def _open_journal(self, journal: Journal, payloads: list[bytes], now: float) -> None:
        """Take up what an earlier life has left, unless it is too long ago, and begin the journal anew with that."""
        desk, age_s = self.core.desk, journal.age_s
        try:
            saved, crashes = replay(payloads), count_crashes(payloads)
        except BatonError as error:
            raise JournalError(f"{journal.path}: {error}; move it away to start without its requests") from error
        if saved and age_s > RESUME_WITHIN_S:
            log.warning(
                "requests of the journal are too old", requests=len(saved), age_s=age_s, limit_s=RESUME_WITHIN_S
            )
            saved = []
        self._do(desk.restore(saved, now, crashes))
        journal.start(self._context)
        self._poller.register(journal.socket, zmq.POLLIN)
        journal.write(desk.new_journal(now))

    def _hear_journal(self, journal: Journal) -> None:
        """Hear what became of the last batch."""
        desk = self.core.desk
        for result in journal.results():
            match result:
                case Saved(number):
                    self._do(desk.saved(number))
                case failed:
                    self._do(desk.failed(failed.number, failed.reason, time.monotonic()))

    def _write_journal(self, journal: Journal) -> None:
        """Hand over the next batch, if it is time."""
        if (batch := self.core.desk.next_batch(time.monotonic())) is not None:
            journal.write(batch)

    def _settle_journal(self, journal: Journal) -> None:
        """Wait until all is on disk, or the disk has shown that it does not work."""
        while not self.core.desk.ledger.is_settled:
            journal.socket.poll(SETTLE_MS)
            self._hear_journal(journal)
            self._write_journal(journal)
            self._do(self.core.desk.tick(time.monotonic()))

    def _outside(self) -> Outside:
        return Outside(
            messages_dropped={link: drops.count for link, drops in self._drops.items()},
            journal_bytes=0 if self._journal is None else self._journal.num_bytes,
        )
