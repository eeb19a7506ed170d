"""Gathers the state of the whole service, for people (`GET /status`) and Prometheus. Pure: the time is the caller's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common import __version__
from common.messages import ExecutorStatus, StatusReport
from scheduler_svc.core.autoscaling.watch import ScaleWatch
from scheduler_svc.core.fleet.fleet import Fleet, Member
from scheduler_svc.core.observability.prometheus_text import Gauges
from scheduler_svc.core.observability.service_counters import ServiceCounters
from scheduler_svc.core.requests.request_manager import RequestManager
from scheduler_svc.core.scheduling.scheduler import Scheduler


@dataclass(frozen=True)
class IoCounts:
    """What only the process around the core can count.

    Attributes:
        messages_dropped: by link.
        journal_bytes: length of the journal on disk.
    """

    messages_dropped: Mapping[str, int] = field(default_factory=dict)
    journal_bytes: int = 0


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

    def status(self, now: float) -> StatusReport:
        """Everything that `baton status` shows."""
        stats, counters, group_commit = self._scheduler.stats, self._counters, self._requests.group_commit
        ended = counters.ended_by
        return StatusReport(
            version=__version__,
            model=self._model,
            uptime_s=now - self._started,
            waiting=self._scheduler.num_waiting,
            running=self._scheduler.num_running,
            requests_finished=ended.total() - ended["error"],
            requests_failed=ended["error"],
            preemptions=stats.preemptions,
            executors_lost=counters.executors_lost,
            messages_dropped=sum(self._io_counts().messages_dropped.values()),
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
        )

    def metrics_text(self, now: float) -> bytes:
        """Everything in Prometheus' text format."""
        stats, group_commit, io_counts = self._scheduler.stats, self._requests.group_commit, self._io_counts()
        gauges = Gauges(
            report=self.status(now),
            open_requests=self._requests.table.clients,
            num_frontends=len(self._requests.frontends),
            messages_dropped=io_counts.messages_dropped,
            queried_prompt_tokens=stats.queried_prompt_tokens,
            strikes=stats.strikes,
            struck_out=stats.struck_out,
            model_changes=stats.model_changes,
            journal_bytes=io_counts.journal_bytes,
            journal_batches=group_commit.num_batches,
            journal_failures=group_commit.num_failures,
        )
        return self._counters.metrics.text(gauges)

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
