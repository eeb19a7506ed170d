"""Looks at the core once a second for the autoscaler, and tells what it decides. Pure: the time is the caller's.

The cost of a look grows with the executors, and not with what runs or waits.
"""

from common.messages import Hello, ScaleStatus
from scheduler_svc.core.actions import Action, log_line
from scheduler_svc.core.autoscaling.autoscaler import RETURN_S, Autoscaler
from scheduler_svc.core.autoscaling.load import LoadMeter
from scheduler_svc.core.autoscaling.settings import ScaleSettings
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.fleet.membership import Standing
from scheduler_svc.core.scheduling.scheduler import Scheduler

PERIOD_S = 1.0
SETTLE_S = 5.0  # executors of an earlier life are back by then
KEPT_HITS = 0.984  # of the prefix cache's hits, from one look to the next: the mean of a minute
MOVE_UNIT = 4096  # tokens: executors that differ by less of what has to move are equal


class ScaleWatch:
    """Feeds an Autoscaler. It looks from the first tick on: the journal is read before.

    Args:
        scheduler: read only.
    """

    def __init__(self, settings: ScaleSettings, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._autoscaler = Autoscaler(settings)
        self._meter = LoadMeter(scheduler.stats)
        self._began: float | None = None  # later by all pauses
        self._next = 0.0
        self._accepted = 0
        self._hits: dict[int, tuple[int, float]] = {}  # by epoch: the count at the last look, and the hits lately
        self._is_sure = False
        self._report: ScaleStatus | None = None

    def joined(self, hello: Hello) -> None:
        """Note that an executor is in the fleet."""
        self._autoscaler.started_in(hello.start_s)

    def answered(self, epoch: int, tokens: int, seconds: float) -> None:
        """Note that a plan of so many tokens has been answered, and took its executor so long."""
        self._meter.answered(self._scheduler.executor(epoch), tokens, seconds)

    def paused(self, seconds: float) -> None:
        """Note that the caller has not run for so long: that time does not count."""
        if self._began is not None:
            self._began += seconds

    def report(self) -> ScaleStatus | None:
        """Return what is wanted; None in the first seconds, when that is not known."""
        return self._report

    def tick(self, now: float) -> list[Action]:
        """Decide, if it is time; to be called more often.

        With work of an earlier life it takes longer until there is a number. That life may have ordered executors for
        it, which start now, and a number that counts only those that are there would end them.
        """
        if self._began is None:
            self._began = now
        if (age := now - self._began) < self._next:
            return []
        self._next = age + PERIOD_S
        scheduler, stats = self._scheduler, self._scheduler.stats
        ready = [each for each in scheduler.executors if each.membership.standing is Standing.READY]
        waiting = scheduler.sequences.waiting.total(with_stranded=not ready)  # others would not help the stranded
        load = self._meter.look(waiting.tokens, age)
        drain_first = self._drain_order(ready)
        is_busy = bool(scheduler.num_waiting or scheduler.num_running) or stats.accepted > self._accepted
        self._accepted = stats.accepted
        if age < SETTLE_S:
            return []
        decision = self._autoscaler.decide(load, len(ready), age, is_busy=is_busy)
        unsure_s = RETURN_S + (self._autoscaler.lead_s if load is None and ready else 0.0)
        self._is_sure = self._is_sure or not (is_busy and stats.restored) or age >= unsure_s
        if not self._is_sure:
            return []
        is_first = self._report is None
        wanted, ttft_s, reason = decision.wanted, decision.forecast_ttft_s, decision.reason
        self._report = ScaleStatus(wanted=wanted, forecast_ttft_s=ttft_s, reason=reason, drain_first=drain_first)
        if wanted == decision.before and not is_first:
            return []
        facts = {name: round(fact, 2) if isinstance(fact, float) else fact for name, fact in decision._asdict().items()}
        waits = {"waiting": waiting.sequences, "waiting_tokens": waiting.tokens}
        return [log_line("info", "executors wanted", ready=len(ready), **waits, **facts)]

    def _drain_order(self, ready: list[ExecutorState]) -> list[str]:
        """Name first an executor whose answer is late, as it may go by itself; then the one with the least to move;
        then the one whose cache was asked for least lately; then the youngest."""
        hits = {}
        for executor in ready:
            count, lately = self._hits.get(executor.epoch, (0, 0.0))
            hits[executor.epoch] = (executor.num_hit_tokens, KEPT_HITS * lately + executor.num_hit_tokens - count)
        self._hits = hits

        def rank(executor: ExecutorState) -> tuple[bool, int, float, int]:
            held = executor.blocks.num_blocks - executor.blocks.num_free
            moving = -(-held * executor.limits.block_size // MOVE_UNIT)  # none at all is less than a few
            return not executor.membership.is_late, moving, hits[executor.epoch][1], -executor.epoch

        return [executor.name for executor in sorted(ready, key=rank)]
