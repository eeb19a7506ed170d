"""The core's loop: the only place of the core that does I/O. It connects the scheduler, the fleet and the outbox,
which decide, to sockets, timers, metrics and the log.
"""

import time

import zmq

from common import messages as m
from common.errors import RequestRejected, WireError
from common.logging import DropLog, get_logger
from common.plan import ExecutorLimits
from common.wire import VersionError
from scheduler_svc import fleet as f
from scheduler_svc.capability import capacity
from scheduler_svc.outbox import Outbox
from scheduler_svc.outcomes import SequenceEnd
from scheduler_svc.router import Router, Sent
from scheduler_svc.scheduler import Scheduler, SchedulerConfig
from scheduler_svc.telemetry import Telemetry

TICK_MS = 100
PROBE_MS = 10  # between heartbeats while a broken connection's owner is looked for
PROBE_FOR_S = 0.25
FRONTEND_TIMEOUT_S = 10.0

log = get_logger(__name__)


class Engine:
    """The core of the scheduler service.

    Args:
        executor_endpoint, frontend_endpoint: to bind.
        model: the name shown in the status.

    Attributes:
        scheduler: for reading.
    """

    def __init__(self, executor_endpoint: str, frontend_endpoint: str, model: str, config: SchedulerConfig) -> None:
        self.scheduler = Scheduler(config)
        self._fleet = f.Fleet(first_epoch=time.time_ns() // 1_000_000)  # above any epoch of an earlier life
        self._outbox = Outbox()
        self._frontends: dict[bytes, float] = {}  # peer -> when it was last heard
        self._fleet_state = m.FleetState(num_ready=0, fingerprint="", max_model_len=0)
        self._probe_until = 0.0
        self._drops = DropLog(log, "executors"), DropLog(log, "frontends")
        self._telemetry = Telemetry(model, self.scheduler, self._fleet, self._drops)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._executors: Router[m.ExecutorToScheduler] = Router(
            self._context, executor_endpoint, m.ExecutorToScheduler, self._drops[0], self._wrong_version
        )
        self._fronts: Router[m.FrontendToCore] = Router(
            self._context, frontend_endpoint, m.FrontendToCore, self._drops[1]
        )
        self._poller = zmq.Poller()
        for socket in (self._executors.socket, self._executors.monitor, self._fronts.socket, self._fronts.monitor):
            self._poller.register(socket, zmq.POLLIN)

    @property
    def executor_endpoint(self) -> str:
        """Where executors connect to (with the port that was picked, if it was 0)."""
        return self._executors.endpoint

    def turn(self) -> None:
        """Wait for something to happen (at most a tick) and carry it as far as it goes."""
        now = time.monotonic()
        self._poller.poll(PROBE_MS if now < self._probe_until else TICK_MS)
        for peer, message in self._executors.receive():
            self._apply(self._fleet.receive(peer, message, time.monotonic()))
        for peer, request in self._fronts.receive():
            self._serve(peer, request)
        self._find_lost_connections()
        self._tick(time.monotonic())
        self._send_plans()
        self._flush()

    def close(self) -> None:
        """Tell everyone and close the sockets."""
        for member in self._fleet:
            self._apply(self._fleet.end(member.epoch, "shutdown", "the scheduler is stopping"))
        self._executors.close()
        self._fronts.close()
        self._context.term()

    # --- executors ---

    def _apply(self, effects: list[f.Effect]) -> None:
        for effect in effects:
            match effect:
                case f.Send(peer, message):
                    self._send_to_executor(peer, message)
                case f.Joined(epoch, hello):
                    self._joined(epoch, hello)
                case f.Answered(result):
                    self._commit(result)
                case f.Draining(epoch):
                    log.info("executor draining", executor=self._name(epoch), epoch=epoch)
                    self.scheduler.drain(epoch)
                    self._fleet_changed()
                    self._end_if_drained(epoch)
                case f.Ended(epoch, hello, cause, reason):
                    self._ended_epoch(epoch, hello, cause, reason)

    def _send_to_executor(self, peer: bytes, message: m.Message) -> None:
        match self._executors.send(peer, message):
            case Sent.GONE:
                self._apply(self._fleet.disconnected(peer))
            case Sent.FULL if isinstance(message, m.Plan):
                self._apply(self._fleet.end(message.epoch, "silent", "it takes no more messages"))
            case _:
                pass

    def _joined(self, epoch: int, hello: m.Hello) -> None:
        log.info(
            "executor joined",
            executor=hello.executor,
            epoch=epoch,
            device=hello.device,
            dtype=hello.dtype,
            blocks=hello.num_blocks,
            block_size=hello.block_size,
            fingerprint=hello.fingerprint,
            pid=hello.pid,
        )
        self._telemetry.executor_joined(epoch)
        self._end(self.scheduler.add_executor(epoch, ExecutorLimits.of(hello)))
        self._fleet_changed()

    def _ended_epoch(self, epoch: int, hello: m.Hello, cause: str, reason: str) -> None:
        if cause == "step_failed":
            self._end(self.scheduler.blame(epoch))
        resumed = self.scheduler.remove_executor(epoch)
        expected = cause in ("drained", "shutdown")
        self._telemetry.executor_ended(epoch, cause, expected=expected, resumed=len(resumed))
        level = log.info if expected else log.warning
        what = "executor left" if expected else "executor lost"
        level(what, executor=hello.executor, epoch=epoch, cause=cause, reason=reason, sequences_moved=len(resumed))
        self._fleet_changed()

    def _commit(self, result: m.StepResult) -> None:
        try:
            output = self.scheduler.commit(result)
        except WireError as error:
            self._drops[0].dropped(self._name(result.epoch), error)
            self._apply(self._fleet.end(result.epoch, "untrusted", str(error)))
            return
        self._telemetry.step_done(result)
        self._outbox.push(output)
        self._telemetry.stepped(output)
        self._end_if_drained(result.epoch)

    def _end_if_drained(self, epoch: int) -> None:
        member = self._fleet.member(epoch)
        if member is not None and member.draining and self.scheduler.is_idle(epoch):
            self._apply(self._fleet.end(epoch, "drained", "drained"))

    def _send_plans(self) -> None:
        for member in self._fleet:
            while self._fleet.member(member.epoch) is not None:  # a send can end it
                plan = self.scheduler.plan(member.epoch)
                if plan is None:
                    break
                self._send_to_executor(member.peer, plan)

    def _find_lost_connections(self) -> None:
        """A broken connection does not say whose it was; a heartbeat to each peer does."""
        now = time.monotonic()
        if self._executors.lost_connections() + self._fronts.lost_connections():
            self._probe_until = now + PROBE_FOR_S
        if now < self._probe_until:
            self._apply(self._fleet.heartbeats())
            self._broadcast_fleet_state()

    def _wrong_version(self, peer: bytes, error: VersionError) -> None:
        self._executors.send(peer, m.Reject(reason=str(error)))

    def _name(self, epoch: int) -> str:
        member = self._fleet.member(epoch)
        return member.hello.executor if member is not None else "?"

    # --- frontends ---

    def _serve(self, peer: bytes, message: m.FrontendToCore) -> None:
        if peer not in self._frontends:
            log.info("frontend connected", peer=peer.hex())
        self._frontends[peer] = time.monotonic()
        match message:
            case m.FrontendHello():
                self._fronts.send(peer, self._fleet_state)
            case m.Submit():
                self._submit(peer, message)
            case m.Cancel(request_id=request_id, index=index):
                self._end(self.scheduler.cancel(request_id, index))
            case m.StatusQuery(query_id=query_id):
                self._fronts.send(peer, m.Status(query_id=query_id, report=self._telemetry.report()))
            case m.MetricsQuery(query_id=query_id):
                self._fronts.send(peer, m.Metrics(query_id=query_id, text=self._telemetry.metrics_text()))

    def _submit(self, peer: bytes, submit: m.Submit) -> None:
        if self._outbox.is_open(submit.request_id):  # an answer could not be told from those of the first
            log.warning("request dropped: its id is in use", request=submit.request_id, peer=peer.hex())
            return
        try:
            sequences = self.scheduler.add(submit, time.monotonic())
        except RequestRejected as refusal:
            log.debug("request refused", request=submit.request_id, code=refusal.code, reason=str(refusal))
            self._telemetry.request_refused()
            self._outbox.refused(peer, submit.request_id, refusal)
            return
        self._outbox.opened(peer, submit)
        self._telemetry.submitted(sequences)

    def _end(self, ends: list[SequenceEnd]) -> None:
        """Sequences have ended other than by a step."""
        for end in ends:
            self._outbox.end(end)
            self._telemetry.ended(end)
            if end.reason == "error":
                log.warning("request failed", request=end.sequence.request_id, reason=end.error)

    def _flush(self) -> None:
        for peer in self._outbox.peers():
            match self._fronts.send(peer, self._outbox.peek(peer)):
                case Sent.OK:
                    self._outbox.sent(peer)
                case Sent.GONE:
                    self._frontend_gone(peer, "connection broke")
                case Sent.FULL:
                    pass  # it finds more tokens in each delta next time

    def _fleet_changed(self) -> None:
        members = list(self._fleet)
        self._fleet_state = m.FleetState(
            num_ready=sum(not member.draining for member in members),
            fingerprint=members[-1].hello.fingerprint if members else self._fleet_state.fingerprint,
            max_model_len=max(
                (capacity(ExecutorLimits.of(member.hello)) for member in members),
                default=self._fleet_state.max_model_len,
            ),
        )
        self._broadcast_fleet_state()

    def _broadcast_fleet_state(self) -> None:
        for peer in list(self._frontends):
            if self._fronts.send(peer, self._fleet_state) is Sent.GONE:
                self._frontend_gone(peer, "connection broke")

    def _frontend_gone(self, peer: bytes, reason: str) -> None:
        """The connection is gone: what its requests would still say is for nobody."""
        self._frontends.pop(peer, None)
        self._cancel_all(peer, self._outbox.forget(peer), reason)

    def _frontend_silent(self, peer: bytes, reason: str) -> None:
        """It may only be frozen: when it wakes up it finds that its requests have ended."""
        del self._frontends[peer]
        self._cancel_all(peer, self._outbox.open_requests(peer), reason)

    def _cancel_all(self, peer: bytes, requests: list[str], reason: str) -> None:
        level = log.warning if requests else log.info
        level("frontend gone", peer=peer.hex(), reason=reason, requests_cancelled=len(requests))
        for request_id in requests:
            self._end(self.scheduler.cancel(request_id))

    def _tick(self, now: float) -> None:
        self._apply(self._fleet.tick(now))
        self._end(self.scheduler.expire(now))
        for peer, heard in list(self._frontends.items()):
            if now - heard > FRONTEND_TIMEOUT_S:
                self._frontend_silent(peer, f"not heard for {now - heard:.0f} s")
        self._telemetry.tick(now)
