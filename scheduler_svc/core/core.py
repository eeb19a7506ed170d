"""The scheduler service without its sockets: messages and the time go in, messages and log lines come out. Pure.

The core joins the fleet of executors, the scheduler and the request manager. `event_loop.py` talks to the `Core` alone:
it tells what has happened and carries out the actions that the core answers with.
"""

from collections.abc import Callable, Iterator

from common import messages as m
from common.errors import WireError
from scheduler_svc.core.actions import (
    Action,
    AdmitExecutor,
    DismissExecutor,
    Peer,
    SendToExecutor,
    SendToFrontend,
    WriteLog,
    log_line,
)
from scheduler_svc.core.autoscaling.watch import ScaleWatch
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.fleet import fleet as f
from scheduler_svc.core.fleet.fleet_state import fleet_state, no_fleet
from scheduler_svc.core.fleet.membership import Membership, Standing
from scheduler_svc.core.observability.live_views import LiveViews
from scheduler_svc.core.observability.sequence_lives import SequenceLives
from scheduler_svc.core.observability.service_counters import ServiceCounters
from scheduler_svc.core.observability.status_report import IoCounts, StatusReporter
from scheduler_svc.core.requests import log_lines
from scheduler_svc.core.requests.group_commit import JournalBatch, JournalResult
from scheduler_svc.core.requests.journal_records import LifeRecord, RequestRecord, SharesRecord
from scheduler_svc.core.requests.request_manager import NO_LIFE, NO_SHARES, RequestManager
from scheduler_svc.core.scheduling.placement import PlacementRule, place
from scheduler_svc.core.scheduling.scheduler import Scheduler

PAUSE_S = 1.0  # without a call: the caller ticks ten times a second, so it did not run (SIGSTOP, a suspended host)
MAX_LOGGED_REASON = 300  # characters: executors send more
CHORES_EVERY_S = 0.1  # if the last time has left none undone
FORGIVE_S = 3.0  # after a pause: executors drop the connection to a silent scheduler, and are not to blame


class Core:
    """All that the event loop needs of what decides.

    The actions that a method returns are to be carried out in their order. `now` is the time of a monotonic clock.

    Args:
        io_counts: tells what the core itself cannot see, for its reports.
        placement: which executor a waiting sequence is for.

    Attributes:
        scheduler, fleet, requests: its parts, for reading.
    """

    def __init__(
        self,
        config: CoreConfig,
        now: float,
        io_counts: Callable[[], IoCounts] = IoCounts,
        placement: PlacementRule = place,
    ) -> None:
        self.scheduler = Scheduler(config.scheduler, placement=placement, first_arrival=config.first_arrival)
        self.fleet = f.Fleet(config.first_epoch, config.step_floor_s, config.vocabularies)
        self._counters = ServiceCounters(self.scheduler.stats, SequenceLives(config.max_lives))
        self.requests = RequestManager(
            self.scheduler,
            self._counters,
            config.journal,
            config.first_batch,
            wall_offset_s=config.wall_offset_s,
            end_frontend_after_s=config.end_frontend_after_s,
            max_retained=config.max_retained,
            client_ids=config.client_ids,
            vocabularies=config.vocabularies,
            reconnect_grace_s=config.reconnect_grace_s,
            return_within_s=config.return_within_s,
        )
        self._scale = None if config.scale is None else ScaleWatch(config.scale, self.scheduler)
        self._reporter = StatusReporter(
            config.model, self.scheduler, self.fleet, self.requests, self._counters, self._scale, now, io_counts
        )
        self._views = LiveViews(self.scheduler, self.requests.table, self._counters, self._reporter.report)
        self._last_call = now
        self._forgiving_until = float("-inf")
        self._planned_last = 0  # epoch of the executor that was last asked for
        self._fleet_state = no_fleet(config.scheduler.max_waiting)
        self._is_fleet_told = False
        self._chores_due = now

    # --- executors ---

    def from_executor(self, peer: Peer, message: m.ExecutorToScheduler, now: float) -> list[Action]:
        """A message has come from an executor, or from a peer that claims to be one."""
        self._notice_pause(now)
        return self._follow(self.fleet.receive(peer, message, now), now)

    def executor_of_other_version(self, peer: Peer, address: str, reason: str) -> list[Action]:
        """A message has come that only another version of the protocol can read; its sender's name stands in there."""
        self._counters.executor_rejected()
        return [SendToExecutor(peer, m.Reject(reason=reason)), log_lines.rejected(address, reason)]

    def executor_gone(self, peer: Peer, now: float) -> list[Action]:
        """The connection to an executor is gone."""
        self._notice_pause(now)
        return self._follow(self.fleet.disconnected(peer, now), now)

    def executor_full(self, epoch: int, now: float) -> list[Action]:
        """A plan could not be sent, because the executor has stopped reading."""
        return self._follow(self.fleet.end(epoch, "silent", "it takes no more messages", now), now)

    def plans(self, now: float) -> Iterator[list[SendToExecutor]]:
        """All plans that executors can be sent now, one at each step, or none where the step has looked for one in
        vain. Each must be sent, or its epoch ends. Where the caller leaves off, the next call goes on."""
        last = self._planned_last
        for member in sorted(self.fleet, key=lambda member: member.epoch <= last):
            self._planned_last = member.epoch
            while self.fleet.member(member.epoch) and self.scheduler.may_plan(member.epoch):
                plan = self.scheduler.plan(member.epoch)
                self._counters.moved(self.scheduler.take_moves(), now)
                if plan is None:
                    yield []
                    break
                self.fleet.plan_sent(member.epoch, plan.step, len(plan.token_ids) // 4, now)
                yield [SendToExecutor(member.peer, plan)]

    # --- frontends ---

    def from_frontend(self, peer: Peer, message: m.FrontendToCore, now: float) -> list[Action]:
        """A message has come from a frontend."""
        self._notice_pause(now)
        actions = self.requests.heard(peer, now)
        match message:
            case m.FrontendHello(pid=pid):
                self.requests.frontends.named(peer, pid)
                actions.append(SendToFrontend(peer, self._fleet_state))
            case m.FrontendCounts():
                self._counters.metrics.frontend_counted(message)
            case m.Submit():
                actions += self.requests.submit(peer, message, now)
            case m.Revoke(client=client):
                actions += self.requests.revoke(client)
            case m.Attach(request_id=request_id):
                actions += self.requests.attach(peer, request_id, now)
            case m.Detach(request_id=request_id):
                actions += self.requests.detach(peer, request_id, now)
            case m.Cancel(request_id=request_id, index=index):
                actions += self.requests.cancel(peer, request_id, index, now)
            case m.StatusQuery() | m.MetricsQuery() | m.LifeQuery() | m.BlockQuery():
                self.requests.outbox.answer(peer, self._reporter.answer(message, now))
            case m.SendViews():
                self._views.watch(peer, message, now)
            case m.DrainExecutor():
                actions += self._drain_for(peer, message, now)
        return actions

    def frontend_gone(self, peer: Peer, now: float) -> list[Action]:
        """The connection to a frontend is gone."""
        self._views.gone(peer)
        return self.requests.gone(peer, "connection broke", now)

    def frontends_with_outputs(self) -> list[Peer]:
        """Frontends that answers or tokens wait for."""
        return self.requests.outbox.peers()

    def next_output(self, peer: Peer) -> m.CoreToFrontend | None:
        """The next message to a frontend, or None; it stays the next one until `output_sent`."""
        return self.requests.outbox.peek(peer)

    def output_sent(self, peer: Peer) -> None:
        """What `next_output` gave has been sent."""
        self.requests.outbox.sent(peer)

    def logged(self, line: WriteLog, now: float) -> None:
        """A line that this core wanted logged was."""
        self._counters.timeline.logged(line, now)

    def scale_report(self) -> m.ScaleStatus | None:
        """How many executors are wanted, as the status tells it."""
        return None if self._scale is None else self._scale.report()

    # --- the journal ---

    def restore(
        self,
        records: list[RequestRecord],
        now: float,
        life: LifeRecord = NO_LIFE,
        shares: SharesRecord = NO_SHARES,
    ) -> list[Action]:
        """Take up the requests of an earlier life, and what it knew beside them."""
        return self.requests.restore(records, now, life, shares)

    def new_journal(self, now: float) -> JournalBatch:
        """The first of the batches that a life begins its journal with, in place of all that was written before."""
        return self.requests.new_journal(now)

    def next_batch(self, now: float) -> JournalBatch | None:
        """What is to be written to the journal now, if anything."""
        return self.requests.next_batch(now)

    def journal_due_in_s(self, now: float) -> float | None:
        """Seconds until `next_batch` has something; None if something has to happen first."""
        return self.requests.group_commit.due_in_s(now)

    def batch_written(self, result: JournalResult, now: float) -> list[Action]:
        """The journal tells what became of a batch, or of itself."""
        return self.requests.batch_written(result, now)

    @property
    def is_settled(self) -> bool:
        """Whether all is in the journal that has to be, or the journal does not work."""
        return self.requests.group_commit.is_settled

    def settle(self, now: float) -> list[Action]:
        """Do what is due after `shut_down`: only the journal is waited for."""
        done = [action for actions in self.requests.chores(now) for action in actions]
        return [*done, *self.requests.tick(now)]

    def crashed(self) -> JournalBatch:
        """The last batch of a core that has failed: the next life has to know of it."""
        return self.requests.crashed()

    # --- time ---

    def chores(self, now: float) -> Iterator[list[Action]]:
        """Do what is due and may be much, a little at each step: what is to be told at once, and the rest ten times a
        second. What the caller leaves undone the next call finds."""
        self._notice_pause(now)
        if now < self._chores_due and not self.requests.has_untold:
            return
        for consequences in self.fleet.chores(now):
            yield self._follow(consequences, now)
        for ends in self.scheduler.expire(now):
            yield self.requests.ended(ends, now)
        yield from self.requests.chores(now)
        for member in self.fleet:
            if member.standing is Standing.FINISHING and self.scheduler.is_spent(member.epoch):
                yield self._follow(self.fleet.release(member.epoch), now)
        self._counters.tick(now, self.scheduler.num_running, self.scheduler.num_waiting)
        self._is_fleet_told = False  # a large executor may not have come back in time
        self._chores_due = now + CHORES_EVERY_S

    def tick(self, now: float) -> list[Action]:
        """Do what is due and never much. To be called after `chores`, at least ten times a second."""
        self.scheduler.tick(now)
        actions = self._follow(self.fleet.tick(now), now)
        actions += log_lines.relaxed(self.scheduler.take_relaxed(), self.scheduler.config.grammars)
        actions += self.requests.tick(now)
        actions += self._tell_fleet(now)
        actions += self._views.tick(now)
        return actions if self._scale is None else [*actions, *self._scale.tick(now)]

    def shut_down(self, now: float) -> list[Action]:
        """Tell every executor that this scheduler ends; each says Hello to the next one."""
        actions: list[Action] = []
        for member in self.fleet:
            actions += self._follow(self.fleet.end(member.epoch, "shutdown", "the scheduler is stopping", now), now)
        return actions

    # --- inside ---

    def _notice_pause(self, now: float) -> None:
        """Time in which this side did not run counts neither as silence of a peer nor as time of a step."""
        pause_s = now - self._last_call
        self._last_call = now
        if pause_s > PAUSE_S:
            self.fleet.paused(pause_s, now)
            self.requests.paused(pause_s, now)
            if self._scale is not None:
                self._scale.paused(pause_s)
            self._forgiving_until = now + FORGIVE_S

    def _follow(self, consequences: list[f.Consequence], now: float) -> list[Action]:
        """What follows from what happened in the fleet."""
        actions: list[Action] = []
        for event in consequences:
            if not isinstance(event, (SendToExecutor, f.StepAnswered)):
                self._is_fleet_told = False
            match event:
                case SendToExecutor() | AdmitExecutor() | DismissExecutor():
                    actions.append(event)
                case f.StepAnswered(result):
                    actions += self._answered(result, now)
                case f.ExecutorJoined(membership, hello):
                    actions += self._joined(membership, hello, now)
                case f.ExecutorRejected(hello, reason):
                    self._counters.executor_rejected()
                    actions.append(log_lines.rejected(hello.executor, reason))
                case f.ExecutorFinishing(epoch):
                    self.scheduler.executor_leaves(epoch, now)
                    actions.append(log_line("info", "executor finishing", executor=self._name(epoch), epoch=epoch))
                case f.ExecutorDraining(epoch):
                    self.scheduler.executor_leaves(epoch, now)
                    actions.append(log_line("info", "executor draining", executor=self._name(epoch), epoch=epoch))
                    actions += self._end_if_drained(epoch, now)
                case f.EpochEnded():
                    actions += self._ended(event, now)
        return actions

    def _answered(self, result: m.StepResult, now: float) -> list[Action]:
        try:
            output = self.scheduler.commit(result)
        except WireError as error:
            return self._follow(self.fleet.end(result.epoch, "untrusted", str(error), now), now)
        answered = self.fleet.step_answered(result.epoch, result.step, now)
        if self._scale is not None:
            self._scale.answered(result.epoch, answered.num_tokens, min(result.compute_us / 1e6, answered.seconds))
        self._counters.step_done(result, output, now)
        if output.numberless or output.unmasked:  # they wait again, for now
            self._counters.moved(self.scheduler.take_moves(), now)
        self.requests.stepped(output, now)
        actions = log_lines.failures(output.ends)
        actions += log_lines.numberless(self._name(result.epoch), result, output.numberless)
        actions += log_lines.unmasked(self._name(result.epoch), result, output.unmasked)
        for epoch, client in output.convictions:
            actions += self._follow(self.fleet.gave_no_numbers(epoch, client, now), now)
        return [*actions, *self._end_if_drained(result.epoch, now)]

    def _joined(self, membership: Membership, hello: m.Hello, now: float) -> list[Action]:
        epoch = membership.epoch
        self._counters.executor_joined(epoch, hello.executor)
        if self._scale is not None:
            self._scale.joined(hello)
        self.scheduler.add_executor(membership, now)
        return [log_lines.joined(hello, self.scheduler.executor(epoch))]

    def _ended(self, ended: f.EpochEnded, now: float) -> list[Action]:
        epoch, hello, cause = ended.epoch, ended.hello, ended.cause
        is_failure = cause in f.FAILURES
        actions: list[Action] = []
        if cause in f.BLAMABLE and now >= self._forgiving_until:
            actions += self.requests.ended(self.scheduler.blame(epoch, ended.step), now)
        has_pool = hello.pool is not None and cause not in f.UNSAFE
        pool_wait_s = self._pool_wait_s(epoch, hello) if has_pool else None
        resumed = self.scheduler.remove_executor(epoch, now, pool_wait_s)
        self._counters.executor_ended(epoch, cause, resumed, now, is_failure=is_failure)
        facts = {"executor": hello.executor, "epoch": epoch, "cause": cause, "reason": ended.reason[:MAX_LOGGED_REASON]}
        actions.append(log_lines.ended(facts, len(resumed), is_failure=is_failure))
        return actions

    def _pool_wait_s(self, epoch: int, hello: m.Hello) -> float:
        """How long the sequences of an executor that is gone wait for the next one of its pool."""
        model = self.scheduler.executor(epoch).model
        others = [member for member in self.fleet if member.membership.model == model]
        tokens_per_s = sum(member.steps.tokens_per_s for member in others if member.standing is Standing.READY)
        return self.scheduler.pool_wait_s(epoch, hello.start_s, tokens_per_s)

    def _end_if_drained(self, epoch: int, now: float) -> list[Action]:
        member = self.fleet.member(epoch)
        if member is None or member.standing is not Standing.DRAINING or not self.scheduler.is_idle(epoch):
            return []
        return self._follow(self.fleet.end(epoch, "drained", "drained", now), now)

    def _drain_for(self, peer: Peer, query: m.DrainExecutor, now: float) -> list[Action]:
        found = self.fleet.find(query.executor)
        if isinstance(found, str):
            self.requests.outbox.answer(peer, m.DrainReply(query_id=query.query_id, epoch=0, refusal=found))
            return []
        self.requests.outbox.answer(peer, m.DrainReply(query_id=query.query_id, epoch=found.epoch))
        return self._follow(self.fleet.ask_to_leave(found.epoch, finish=query.finish), now)

    def _tell_fleet(self, now: float) -> list[Action]:
        """Tell frontends of the fleet once a turn, if it has changed."""
        if self._is_fleet_told:
            return []
        self._is_fleet_told = True
        capacities = self.scheduler.sequences.capacities
        state = fleet_state(
            self.fleet,
            self._fleet_state,
            lambda task: capacities.of(task).largest(now),
            lambda task: capacities.may_come(task, now),
        )
        if state == self._fleet_state:
            return []
        self._fleet_state = state
        return [SendToFrontend(peer, state) for peer in self.requests.frontends]

    def _name(self, epoch: int) -> str:
        member = self.fleet.member(epoch)
        return member.hello.executor if member is not None else "?"
