"""The scheduler service without its sockets: messages and the time go in, messages and log lines come out. Pure.

It joins the executors' lives (`fleet.py`), the scheduler and the front desk. `server/core_process.py` connects it to
sockets, timers and the journal; `tests/sim` runs it in virtual time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from common import messages as m
from common.errors import WireError
from scheduler_svc.core.actions import Effect, Level, Peer, ToExecutor, ToFrontend, log
from scheduler_svc.core.executor.capacity import capacity
from scheduler_svc.core.fleet import fleet as f
from scheduler_svc.core.fleet.membership import Membership, Standing
from scheduler_svc.core.fleet.step_clock import DEFAULT_FLOOR_S
from scheduler_svc.core.observability.reporting import Outside, Reporter
from scheduler_svc.core.observability.telemetry import Telemetry
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.requests.request_manager import RECONNECT_GRACE_S, FrontDesk
from scheduler_svc.core.scheduling.scheduler import Scheduler, SchedulerConfig

PAUSE_S = 1.0  # without a call: the caller ticks ten times a second, so it did not run (SIGSTOP, a suspended host)
FORGIVE_S = 3.0  # after a pause: executors that lose patience with this side are not to blame


@dataclass(frozen=True)
class CoreConfig:
    """How the core works.

    Attributes:
        model: the name shown in the status.
        scheduler: window and limits.
        first_epoch: above any epoch of an earlier life.
        step_floor_s: what any step may take before its executor counts as hung.
        reconnect_grace_s: how long a request goes on that nobody reads.
        journal: OK with a journal, else OFF.
        first_batch: number of the first batch for the journal; above all that are in it.
        wall_offset_s: what to add to the caller's time to get seconds since 1970.
    """

    model: str = ""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    first_epoch: int = 1
    step_floor_s: float = DEFAULT_FLOOR_S
    reconnect_grace_s: float = RECONNECT_GRACE_S
    journal: JournalState = JournalState.OFF
    first_batch: int = 1
    wall_offset_s: float = 0.0


class Core:
    """Everything that decides.

    Every method that returns effects wants them carried out in their order. `now` is any monotonic clock's.

    Args:
        outside: tells what the core itself cannot see, for its reports.

    Attributes:
        scheduler, fleet, desk: for reading, and for what only concerns one of them.
    """

    def __init__(self, config: CoreConfig, now: float, outside: Callable[[], Outside] = Outside) -> None:
        self.scheduler = Scheduler(config.scheduler)
        self.fleet = f.Fleet(config.first_epoch, config.step_floor_s)
        self._telemetry = Telemetry(self.scheduler.stats)
        self.desk = FrontDesk(
            self.scheduler,
            self._telemetry,
            config.journal,
            config.first_batch,
            wall_offset_s=config.wall_offset_s,
            reconnect_grace_s=config.reconnect_grace_s,
        )
        self._reporter = Reporter(config.model, self.scheduler, self.fleet, self.desk, self._telemetry, now, outside)
        self._last_call = now
        self._forgiving_until = float("-inf")
        self._fleet_state = m.FleetState(num_ready=0, fingerprint="", max_model_len=0)

    # --- executors ---

    def from_executor(self, peer: Peer, message: m.ExecutorToScheduler, now: float) -> list[Effect]:
        """An executor, or what claims to be one, said something."""
        self._notice_pause(now)
        return self._follow(self.fleet.receive(peer, message, now), now)

    def executor_gone(self, peer: Peer, now: float) -> list[Effect]:
        """The connection to an executor is gone."""
        self._notice_pause(now)
        return self._follow(self.fleet.disconnected(peer, now), now)

    def executor_full(self, epoch: int, now: float) -> list[Effect]:
        """A plan could not be sent, because the executor has stopped reading."""
        return self._follow(self.fleet.end(epoch, "silent", "it takes no more messages", now), now)

    def plans(self, now: float) -> list[Effect]:
        """All plans that executors can be sent now. They must be sent, or their epochs end."""
        effects: list[Effect] = []
        for member in self.fleet:
            while (plan := self.scheduler.plan(member.epoch)) is not None:
                self.fleet.plan_sent(member.epoch, plan.step, len(plan.token_ids) // 4, now)
                effects.append(ToExecutor(member.peer, plan))
        return effects

    # --- frontends ---

    def from_frontend(self, peer: Peer, message: m.FrontendToCore, now: float) -> list[Effect]:
        """A frontend said something."""
        self._notice_pause(now)
        effects = self.desk.heard(peer, now)
        match message:
            case m.FrontendHello():
                effects.append(ToFrontend(peer, self._fleet_state))
            case m.Submit():
                effects += self.desk.submit(peer, message, now)
            case m.Attach(request_id=request_id):
                effects += self.desk.attach(peer, request_id, now)
            case m.Detach(request_id=request_id):
                effects += self.desk.detach(peer, request_id, now)
            case m.Cancel(request_id=request_id, index=index):
                effects += self.desk.cancel(peer, request_id, index, now)
            case m.StatusQuery(query_id=query_id):
                self.desk.outbox.answer(peer, m.Status(query_id=query_id, report=self._reporter.status(now)))
            case m.MetricsQuery(query_id=query_id):
                self.desk.outbox.answer(peer, m.Metrics(query_id=query_id, text=self._reporter.metrics_text(now)))
            case m.DrainExecutor():
                effects += self._drain_for(peer, message, now)
        return effects

    def frontend_gone(self, peer: Peer, now: float) -> list[Effect]:
        """The connection to a frontend is gone."""
        return self.desk.gone(peer, "connection broke", now)

    # --- time ---

    def tick(self, now: float) -> list[Effect]:
        """Do what is due. To be called at least ten times a second."""
        self._notice_pause(now)
        effects = self._follow(self.fleet.tick(now), now)
        effects += self.desk.ended(self.scheduler.expire(now), now)
        effects += self.desk.tick(now)
        for member in self.fleet:
            if member.standing is Standing.FINISHING and self.scheduler.is_spent(member.epoch):
                effects += self._follow(self.fleet.release(member.epoch), now)
        self._telemetry.tick(now)
        return effects

    def shut_down(self, now: float) -> list[Effect]:
        """Tell every executor that this scheduler ends; each says Hello to the next one."""
        effects: list[Effect] = []
        for member in self.fleet:
            effects += self._follow(self.fleet.end(member.epoch, "shutdown", "the scheduler is stopping", now), now)
        return effects

    # --- inside ---

    def _notice_pause(self, now: float) -> None:
        """Time in which this side did not run is nobody's silence, and no step's."""
        pause_s = now - self._last_call
        self._last_call = now
        if pause_s > PAUSE_S:
            self.fleet.paused(pause_s, now)
            self.desk.paused(pause_s, now)
            self._forgiving_until = now + FORGIVE_S

    def _follow(self, happened: list[f.Effect], now: float) -> list[Effect]:
        """What follows from what happened in the fleet."""
        effects: list[Effect] = []
        for event in happened:
            match event:
                case f.Send(peer, message):
                    effects.append(ToExecutor(peer, message))
                case f.Answered(result):
                    effects += self._answered(result, now)
                case f.Joined(membership, hello):
                    effects += self._joined(membership, hello, now)
                case f.Rejected(hello, reason):
                    self._telemetry.executor_rejected()
                    effects.append(log("warning", "executor rejected", executor=hello.executor, reason=reason))
                case f.Finishing(epoch):
                    effects.append(log("info", "executor finishing", executor=self._name(epoch), epoch=epoch))
                    effects += self._fleet_changed()
                case f.Draining(epoch):
                    effects.append(log("info", "executor draining", executor=self._name(epoch), epoch=epoch))
                    effects += [*self._fleet_changed(), *self._end_if_drained(epoch, now)]
                case f.Ended():
                    effects += self._ended(event, now)
        return effects

    def _answered(self, result: m.StepResult, now: float) -> list[Effect]:
        try:
            output = self.scheduler.commit(result)
        except WireError as error:
            return self._follow(self.fleet.end(result.epoch, "untrusted", str(error), now), now)
        self.fleet.step_answered(result.epoch, result.step, now)
        self._telemetry.step_done(result)
        self.desk.stepped(output, now)
        return self._end_if_drained(result.epoch, now)

    def _joined(self, membership: Membership, hello: m.Hello, now: float) -> list[Effect]:
        epoch = membership.epoch
        self._telemetry.executor_joined(epoch)
        ends = self.scheduler.add_executor(membership)
        facts = {
            "executor": hello.executor,
            "epoch": epoch,
            "device": hello.device,
            "dtype": hello.dtype,
            "blocks": hello.num_blocks,
            "block_size": hello.block_size,
            "build": hello.build,
            "fingerprint": hello.fingerprint,
            "pid": hello.pid,
        }
        return [log("info", "executor joined", **facts), *self.desk.ended(ends, now), *self._fleet_changed()]

    def _ended(self, ended: f.Ended, now: float) -> list[Effect]:
        epoch, hello, cause = ended.epoch, ended.hello, ended.cause
        is_failure = cause in f.FAILURES
        effects: list[Effect] = []
        if cause in f.BLAMABLE and now >= self._forgiving_until:
            effects += self.desk.ended(self.scheduler.blame(epoch, ended.step), now)
        resumed = self.scheduler.remove_executor(epoch)
        self._telemetry.executor_ended(epoch, cause, resumed, now, is_failure=is_failure)
        level: Level = "warning" if is_failure else "info"
        what = "executor lost" if is_failure else "executor left"
        facts = {"executor": hello.executor, "epoch": epoch, "cause": cause, "reason": ended.reason}
        effects.append(log(level, what, **facts, sequences_moved=len(resumed)))
        return [*effects, *self._fleet_changed()]

    def _end_if_drained(self, epoch: int, now: float) -> list[Effect]:
        member = self.fleet.member(epoch)
        if member is None or member.standing is not Standing.DRAINING or not self.scheduler.is_idle(epoch):
            return []
        return self._follow(self.fleet.end(epoch, "drained", "drained", now), now)

    def _drain_for(self, peer: Peer, query: m.DrainExecutor, now: float) -> list[Effect]:
        found = self.fleet.find(query.executor)
        if isinstance(found, str):
            self.desk.outbox.answer(peer, m.DrainReply(query_id=query.query_id, epoch=0, refusal=found))
            return []
        self.desk.outbox.answer(peer, m.DrainReply(query_id=query.query_id, epoch=found.epoch))
        return self._follow(self.fleet.ask_to_leave(found.epoch, finish=query.finish), now)

    def _fleet_changed(self) -> list[Effect]:
        members = list(self.fleet)
        self._fleet_state = m.FleetState(
            num_ready=sum(member.standing is Standing.READY for member in members),
            fingerprint=members[-1].hello.fingerprint if members else self._fleet_state.fingerprint,
            max_model_len=max(
                (capacity(member.membership.limits) for member in members),
                default=self._fleet_state.max_model_len,
            ),
        )
        return self._tell_fleet_state()

    def _tell_fleet_state(self) -> list[Effect]:
        return [ToFrontend(peer, self._fleet_state) for peer in self.desk.frontends]

    def _name(self, epoch: int) -> str:
        member = self.fleet.member(epoch)
        return member.hello.executor if member is not None else "?"
