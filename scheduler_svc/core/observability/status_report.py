"""Gathers the state of the whole service, for people (`GET /status`) and Prometheus. Pure: the time is the caller's."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from prometheus_client.registry import Collector

from common import messages as m
from common.messages import ExecutorStatus, StatusReport
from common.release import BUILD
from scheduler_svc.core.autoscaling.watch import ScaleWatch
from scheduler_svc.core.fleet.fleet import Fleet, Member
from scheduler_svc.core.observability.prometheus_text import Gauges
from scheduler_svc.core.observability.service_counters import ServiceCounters
from scheduler_svc.core.requests.request_manager import RequestManager
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.scheduling.wait_reasons import wait_reason
from scheduler_svc.core.sequence import Sequence, State

MAX_HOLDERS = 8  # of a block, that are named
MAX_STATUS_EVENTS = 20

Query = m.StatusQuery | m.MetricsQuery | m.LifeQuery | m.BlockQuery
Answer = m.Status | m.Metrics | m.Life | m.BlockHolders


@dataclass(frozen=True)
class IoCounts:
    """What only the process around the core can count.

    Attributes:
        messages_dropped: by link.
        journal_bytes: length of the journal on disk.
        keys_unreadable: why the keys of `clients` and of `executors` cannot be read; empty if they can.
        process_failures: how often processes beside the core ended by themselves, by their kind.
        collectors: of metrics, which are read at a scrape only.
        store: None where there is none, or it cannot be read.
        store_unreadable: why it cannot; empty if it can.
    """

    messages_dropped: Mapping[str, int] = field(default_factory=dict)
    journal_bytes: int = 0
    keys_unreadable: Mapping[str, str] = field(default_factory=dict)
    process_failures: Mapping[str, int] = field(default_factory=dict)
    collectors: tuple[Collector, ...] = ()
    store: m.StoreStatus | None = None
    store_unreadable: str = ""


class StatusReporter:
    """Reads all parts of the core for its reports.

    Args:
        model: the name shown.
        scale: decides the size of the fleet; None if that is not decided here.
        now: the time at which the service started.
        io_counts: tells what the core itself cannot see.
    """

    def __init__(
        self,
        model: str,
        scheduler: Scheduler,
        fleet: Fleet,
        requests: RequestManager,
        counters: ServiceCounters,
        scale: ScaleWatch | None,
        now: float,
        io_counts: Callable[[], IoCounts],
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self._fleet = fleet
        self._requests = requests
        self._counters = counters
        self._scale = scale
        self._started = now
        self._io_counts = io_counts

    def answer(self, query: Query, now: float) -> Answer:
        """The answer to a question about the service."""
        match query:
            case m.StatusQuery(query_id=query_id):
                return m.Status(query_id=query_id, report=self.status(now))
            case m.MetricsQuery(query_id=query_id):
                return m.Metrics(query_id=query_id, text=self.metrics_text(now))
            case m.LifeQuery(query_id=query_id, request_id=request_id):
                lives = self._counters.lives.of(request_id, self._num_output)
                return m.Life(query_id=query_id, at=now, sequences=lives)
            case m.BlockQuery(query_id=query_id, epoch=epoch, block=block):
                return m.BlockHolders(query_id=query_id, holders=tuple(self._holders(epoch, block)))

    def status(self, now: float) -> StatusReport:
        """Everything that `baton status` shows."""
        events = [_past(event, now) for event in self._counters.timeline.last(MAX_STATUS_EVENTS)]
        return msgspec.structs.replace(self.report(now), events=events)

    def report(self, now: float) -> StatusReport:
        """The same without events."""
        stats, counters, group_commit = self._scheduler.stats, self._counters, self._requests.group_commit
        ended, io_counts = counters.ended_by, self._io_counts()
        return StatusReport(
            version=BUILD,
            model=self._model,
            uptime_s=now - self._started,
            waiting=self._scheduler.num_waiting,
            running=self._scheduler.num_running,
            requests_finished=ended.total() - ended["error"],
            requests_failed=ended["error"],
            preemptions=stats.preemptions,
            executors_lost=counters.executors_lost,
            messages_dropped=sum(io_counts.messages_dropped.values()),
            prompt_tokens=stats.prompt_tokens,
            cached_prompt_tokens=stats.cached_prompt_tokens,
            output_tokens=stats.output_tokens,
            recomputed_tokens=stats.recomputed_tokens,
            sequences_resumed=stats.resumed,
            pools_adopted=stats.pools_adopted,
            journal=group_commit.state.value,
            journal_lag_s=group_commit.lag_s(now),
            output_tokens_per_s=counters.output_rate.per_second(),
            prefill_tokens_per_s=counters.prefill_rate.per_second(),
            executors=[self._executor(member, now) for member in self._fleet],
            scale=None if self._scale is None else self._scale.report(),
            first_token=counters.first_token.read(),
            between_tokens=counters.between_tokens.read(),
            waits_for=self._waits_for(),
            keys_unreadable={whose: reason for whose, reason in io_counts.keys_unreadable.items() if reason},
            pauses_s=dict(counters.pauses.longest_s),
            store=io_counts.store,
            store_unreadable=io_counts.store_unreadable,
        )

    def metrics_text(self, now: float) -> bytes:
        """Everything in Prometheus' text format."""
        stats, group_commit, io_counts = self._scheduler.stats, self._requests.group_commit, self._io_counts()
        gauges = Gauges(
            report=self.report(now),
            open_requests=self._requests.table.num_open_by_name,
            num_frontends=len(self._requests.frontends),
            messages_dropped=io_counts.messages_dropped,
            queried_prompt_tokens=stats.queried_prompt_tokens,
            strikes=stats.strikes,
            struck_out=stats.struck_out,
            numberless=stats.numberless,
            late_rows=stats.late_rows,
            model_changes=stats.model_changes,
            journal_bytes=io_counts.journal_bytes,
            journal_batches=group_commit.num_batches,
            journal_failures=group_commit.num_failures,
            keys_unreadable={whose: int(bool(reason)) for whose, reason in io_counts.keys_unreadable.items()},
            process_failures=io_counts.process_failures,
            collectors=io_counts.collectors,
        )
        return self._counters.metrics.text(gauges)

    def _num_output(self, sequence: Sequence) -> int:
        if sequence.state is not State.RUNNING:
            return sequence.num_output
        lanes = self._scheduler.executor(sequence.epoch).running.lanes
        return int(lanes.known[sequence.lane]) - sequence.num_prompt

    def _waits_for(self) -> m.WaitReason | Literal[""]:
        """What the first in the queue waits for."""
        sequences = self._scheduler.sequences
        first = next(iter(sequences.waiting), None)
        return "" if first is None else wait_reason(first, sequences)

    def _holders(self, epoch: int, block: int) -> Iterator[m.BlockHolder]:
        """The first sequences that have a block of an executor."""
        executor = self._scheduler.sequences.executors.get(epoch)
        holding = [] if executor is None else [s for s in executor.running if block in executor.running.table_of(s).ids]
        for sequence in holding[:MAX_HOLDERS]:
            assert executor is not None
            request = self._requests.table.find(sequence.request_id)
            client = "" if request is None else request.submit.client_name
            blocks = executor.running.table_of(sequence).ids.tolist()
            yield m.BlockHolder(request=sequence.request_id, index=sequence.index, client=client, blocks=blocks)

    def _executor(self, member: Member, now: float) -> ExecutorStatus:
        executor = self._scheduler.executor(member.epoch)
        steps = self._counters.steps[member.epoch]
        hello = member.hello
        return ExecutorStatus(
            executor=hello.executor,
            node=hello.node,
            epoch=member.epoch,
            state=member.standing.value,
            build=hello.build,
            device=hello.device,
            dtype=hello.dtype,
            fingerprint=hello.fingerprint,
            pid=hello.pid,
            uptime_s=now - member.joined_at,
            num_blocks=hello.num_blocks,
            block_size=hello.block_size,
            free_blocks=executor.blocks.num_free,
            cached_blocks=executor.blocks.num_cached,
            running=executor.num_running,
            max_num_seqs=hello.max_num_seqs,
            steps=steps.count,
            step_ms=steps.mean_ms,
            keeps_pool=hello.pool is not None,
            has_standby=member.membership.has_standby,
            tasks=list(hello.tasks),
        )


def _past(event: m.FleetEvent, now: float) -> m.PastEvent:
    facts = {name: getattr(event, name) for name in m.EventFacts.__struct_fields__}
    return m.PastEvent(age_s=now - event.at, **facts)
