"""The state of the whole service, for people (`GET /status`) and for Prometheus. Pure: the time is the caller's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common import __version__
from common.messages import ExecutorStatus, StatusReport
from scheduler_svc.core.fleet.fleet import Fleet, Member
from scheduler_svc.core.observability.metrics import Gauges
from scheduler_svc.core.observability.telemetry import Telemetry
from scheduler_svc.core.requests.request_manager import FrontDesk
from scheduler_svc.core.scheduling.scheduler import Scheduler


@dataclass(frozen=True)
class Outside:
    """What only those know who do I/O.

    Attributes:
        messages_dropped: by link.
        journal_bytes: length of the journal on disk.
    """

    messages_dropped: Mapping[str, int] = field(default_factory=dict)
    journal_bytes: int = 0


class Reporter:
    """Looks at all parts of the core.

    Args:
        model: the name shown.
        now: when the service started.
        outside: tells what the core itself cannot see.
    """

    def __init__(
        self,
        model: str,
        scheduler: Scheduler,
        fleet: Fleet,
        desk: FrontDesk,
        telemetry: Telemetry,
        now: float,
        outside: Callable[[], Outside],
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self._fleet = fleet
        self._desk = desk
        self._telemetry = telemetry
        self._started = now
        self._outside = outside

    def status(self, now: float) -> StatusReport:
        """Everything that `baton status` shows."""
        stats, telemetry, ledger = self._scheduler.stats, self._telemetry, self._desk.ledger
        ended = telemetry.ended_by
        return StatusReport(
            version=__version__,
            model=self._model,
            uptime_s=now - self._started,
            waiting=self._scheduler.num_waiting,
            running=self._scheduler.num_running,
            requests_finished=ended.total() - ended["error"],
            requests_failed=ended["error"],
            preemptions=stats.preemptions,
            executors_lost=telemetry.executors_lost,
            messages_dropped=sum(self._outside().messages_dropped.values()),
            prompt_tokens=stats.prompt_tokens,
            cached_prompt_tokens=stats.cached_prompt_tokens,
            output_tokens=stats.output_tokens,
            recomputed_tokens=stats.recomputed_tokens,
            sequences_resumed=stats.resumed,
            journal=ledger.state.value,
            journal_lag_s=ledger.lag_s(now),
            output_tokens_per_s=telemetry.output_rate.per_second(),
            prefill_tokens_per_s=telemetry.prefill_rate.per_second(),
            executors=[self._executor(member, now) for member in self._fleet],
        )

    def metrics_text(self, now: float) -> bytes:
        """Everything in Prometheus' text format."""
        stats, ledger, outside = self._scheduler.stats, self._desk.ledger, self._outside()
        gauges = Gauges(
            report=self.status(now),
            open_requests=self._desk.requests.clients,
            num_frontends=len(self._desk.frontends),
            messages_dropped=outside.messages_dropped,
            strikes=stats.strikes,
            struck_out=stats.struck_out,
            model_changes=stats.model_changes,
            journal_bytes=outside.journal_bytes,
            journal_batches=ledger.num_batches,
            journal_failures=ledger.num_failures,
        )
        return self._telemetry.metrics.text(gauges)

    def _executor(self, member: Member, now: float) -> ExecutorStatus:
        worker = self._scheduler.worker(member.epoch)
        steps = self._telemetry.steps[member.epoch]
        hello = member.hello
        return ExecutorStatus(
            executor=hello.executor,
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
            free_blocks=worker.blocks.num_free,
            cached_blocks=worker.blocks.num_cached,
            running=worker.num_running,
            max_num_seqs=hello.max_num_seqs,
            steps=steps.count,
            step_ms=steps.mean_ms,
        )
