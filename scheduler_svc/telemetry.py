"""What the core tells of itself: the status report, and the metrics that events move."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from common import __version__
from common.logging import DropLog
from common.messages import ExecutorStatus, StatusReport, StepResult
from scheduler_svc.fleet import Fleet, Member
from scheduler_svc.metrics import Metrics, Rate
from scheduler_svc.outcomes import SequenceEnd, StepOutput
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.sequence import Sequence

SAMPLE_INTERVAL_S = 1.0
STEP_MS_WEIGHT = 0.1  # of the newest step in the exponential mean


@dataclass(slots=True)
class _Steps:
    """An executor's steps in its present epoch."""

    count: int = 0
    mean_ms: float = 0.0


class Telemetry:
    """Watches scheduler and fleet; decides nothing.

    Args:
        model: the name shown.
        drops: the counters of dropped messages.
    """

    def __init__(self, model: str, scheduler: Scheduler, fleet: Fleet, drops: Iterable[DropLog]) -> None:
        self._model = model
        self._scheduler = scheduler
        self._fleet = fleet
        self._drops = list(drops)
        self._started = time.monotonic()
        self._metrics = Metrics(self.report)
        self._steps: dict[int, _Steps] = {}
        self._submitted: dict[Sequence, float] = {}
        self._ended: Counter[str] = Counter()
        self._executors_lost = 0
        self._output_rate, self._prefill_rate = Rate(), Rate()
        self._next_sample = 0.0

    def executor_joined(self, epoch: int) -> None:
        """An epoch began."""
        self._steps[epoch] = _Steps()

    def executor_ended(self, epoch: int, cause: str, *, expected: bool, resumed: int) -> None:
        """An epoch ended and `resumed` sequences go on elsewhere."""
        del self._steps[epoch]
        self._executors_lost += not expected
        self._metrics.epochs_ended.labels(cause).inc()
        self._metrics.resumed.inc(resumed)

    def step_done(self, result: StepResult) -> None:
        """A plan was answered."""
        steps = self._steps[result.epoch]
        steps.count += 1
        weight = STEP_MS_WEIGHT if steps.count > 1 else 1.0
        steps.mean_ms += (result.compute_us / 1000 - steps.mean_ms) * weight
        self._metrics.step_seconds.observe(result.compute_us / 1e6)

    def request_refused(self) -> None:
        """A request was not taken."""
        self._metrics.sequences_ended.labels("refused").inc()

    def submitted(self, sequences: list[Sequence]) -> None:
        """A request was taken."""
        now = time.monotonic()
        self._submitted.update((sequence, now) for sequence in sequences)

    def stepped(self, output: StepOutput) -> None:
        """Sequences have new tokens; some have ended."""
        now = time.monotonic()
        for sequence in output.firsts:
            self._metrics.first_token_seconds.observe(now - self._submitted[sequence])
        for end in output.ends:
            self.ended(end)

    def ended(self, end: SequenceEnd) -> None:
        """A sequence has ended."""
        submitted = self._submitted.pop(end.sequence)
        self._ended[end.reason] += 1
        self._metrics.sequences_ended.labels(end.reason).inc()
        self._metrics.sequence_seconds.observe(time.monotonic() - submitted)

    def tick(self, now: float) -> None:
        """Called often; samples the rates once a second."""
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_INTERVAL_S
            self._output_rate.sample(now, self._scheduler.stats.output_tokens)
            self._prefill_rate.sample(now, self._scheduler.stats.prefill_tokens)

    def metrics_text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return self._metrics.text()

    def report(self) -> StatusReport:
        """The state of the whole service."""
        stats = self._scheduler.stats
        now = time.monotonic()
        return StatusReport(
            version=__version__,
            model=self._model,
            uptime_s=now - self._started,
            waiting=self._scheduler.num_waiting,
            running=self._scheduler.num_running,
            requests_finished=self._ended.total() - self._ended["error"],
            requests_failed=self._ended["error"],
            preemptions=stats.preemptions,
            executors_lost=self._executors_lost,
            messages_dropped=sum(drops.count for drops in self._drops),
            prompt_tokens=stats.prompt_tokens,
            cached_prompt_tokens=stats.cached_prompt_tokens,
            output_tokens=stats.output_tokens,
            recomputed_tokens=0,
            sequences_resumed=stats.resumed,
            journal="off",
            journal_lag_s=0.0,
            output_tokens_per_s=self._output_rate.per_second(),
            prefill_tokens_per_s=self._prefill_rate.per_second(),
            executors=[self._executor_status(member, now) for member in self._fleet],
        )

    def _executor_status(self, member: Member, now: float) -> ExecutorStatus:
        worker = self._scheduler.worker(member.epoch)
        steps = self._steps[member.epoch]
        hello = member.hello
        return ExecutorStatus(
            executor=hello.executor,
            epoch=member.epoch,
            build=hello.build,
            state="draining" if member.draining else "ready",
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
