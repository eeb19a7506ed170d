"""Looks at the core once a second for the autoscaler, and tells what it decides. Pure: the time is the caller's.

What a look costs grows with the executors and with what runs, and not with what waits: how much waits is a running sum
(`WaitingQueue.total`), rates come from counts that only grow, and what steps take from nine sums (`step_times.py`).
"""

import math
from statistics import fmean

from common.messages import Hello, ScaleStatus
from scheduler_svc.core.actions import Action, log_line
from scheduler_svc.core.autoscaling.autoscaler import Autoscaler, Decision
from scheduler_svc.core.autoscaling.demand import Arrivals, Totals
from scheduler_svc.core.autoscaling.forecast import Load
from scheduler_svc.core.autoscaling.settings import ScaleSettings
from scheduler_svc.core.autoscaling.step_times import StepTimes
from scheduler_svc.core.autoscaling.usefulness import Usefulness, least_useful_first
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.fleet.membership import Standing
from scheduler_svc.core.scheduling.scheduler import Scheduler

PERIOD_S = 1.0
HITS_S = 60.0  # the prefix cache's hits are forgotten like this


class ScaleWatch:
    """Feeds an Autoscaler.

    Args:
        scheduler: read only.
        now: when the service started. It looks at its executors from the first tick on: the journal is read before.
    """

    def __init__(self, settings: ScaleSettings, scheduler: Scheduler, now: float) -> None:
        self._scheduler = scheduler
        self._autoscaler = Autoscaler(settings, now)
        self._steps = StepTimes()
        self._arrivals = Arrivals(self._totals(), now)
        self._hits: dict[int, tuple[int, float]] = {}  # by epoch: the count at the last look, and the hits lately
        self._accepted = 0
        self._next = now
        self._last = now
        self._has_looked = False
        self._decision: Decision | None = None
        self._drain_first: list[str] = []
        self._sizes = (0.0, 1.0, 1.0, 1.0)  # of executors: blocks, block size, lanes, tokens a plan

    def joined(self, hello: Hello) -> None:
        """An executor is in the fleet."""
        self._autoscaler.started_in(hello.start_s)

    def answered(self, epoch: int, tokens: int, seconds: float) -> None:
        """A plan of so many tokens has been answered, and took its executor so long."""
        blocks = self._scheduler.executor(epoch).blocks
        self._steps.answered(tokens, blocks.num_blocks - blocks.num_free, seconds)

    def paused(self, seconds: float) -> None:
        """The caller has not run for so long."""
        if self._has_looked:
            self._autoscaler.paused(seconds)

    def tick(self, now: float) -> list[Action]:
        """Decide, if it is time; to be called more often."""
        if now < self._next:
            return []
        if not self._has_looked:
            self._has_looked = True
            self._autoscaler.paused(now - self._last)
        self._next = now + PERIOD_S
        self._arrivals.sample(self._totals(), now)
        executors = self._scheduler.executors
        ready = [e for e in executors if e.membership.standing is Standing.READY]
        accepted = self._scheduler.stats.accepted
        self._autoscaler.follows_another = self._scheduler.stats.restored > 0
        is_busy = bool(self._scheduler.num_waiting or self._scheduler.num_running) or accepted > self._accepted
        self._accepted = accepted
        decision = self._autoscaler.decide(self._load(executors, ready), len(ready), is_busy=is_busy, now=now)
        self._rank(ready, now)
        self._last = now
        is_first = self._decision is None
        self._decision = decision
        if decision is None or (decision.before == decision.wanted and not is_first):
            return []
        return [self._line(decision, len(ready))]

    def report(self) -> ScaleStatus | None:
        """What is wanted; None in the first seconds, when that is not known."""
        if (decision := self._decision) is None:
            return None
        return ScaleStatus(
            wanted=decision.wanted,
            forecast_ttft_s=decision.forecast_ttft_s,
            reason=decision.reason,
            drain_first=self._drain_first,
        )

    # --- inside ---

    def _totals(self) -> Totals:
        stats = self._scheduler.stats
        return Totals(
            sequences=stats.accepted,
            prompt_tokens=stats.prompt_tokens,
            queried_tokens=stats.queried_prompt_tokens,
            cached_tokens=stats.cached_prompt_tokens,
            ended=stats.answers,
            ended_tokens=stats.answer_tokens,
        )

    def _load(self, executors: list[ExecutorState], ready: list[ExecutorState]) -> Load:
        if ready:
            limits = [e.limits for e in ready]
            self._sizes = (
                fmean(each.num_blocks for each in limits),
                fmean(each.block_size for each in limits),
                fmean(len(e.running.lanes.known) for e in ready),
                fmean(each.max_batch_tokens for each in limits),
            )
        pool_blocks, block_size, max_num_seqs, max_batch_tokens = self._sizes
        waiting = self._scheduler.sequences.waiting.total(with_stranded=not ready)
        return Load(
            demand=self._arrivals.demand(),
            cost=self._steps.cost(),
            pool_blocks=pool_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_batch_tokens=max_batch_tokens,
            num_waiting=waiting.sequences,
            waiting_tokens=waiting.tokens,
            prefilling_tokens=sum(
                len(s.tokens) - e.running.num_computed(s) for e in executors for s in e.running.prompts()
            ),
            num_running=sum(len(e.running) for e in executors),
            used_blocks=sum(e.blocks.num_blocks - e.blocks.num_free for e in executors),
            held_blocks=sum(e.limits.num_blocks - self._room(e) for e in ready),
        )

    def _room(self, executor: ExecutorState) -> float:
        """Blocks that admission would give to others, as `Admission` looks ahead."""
        if not len(executor.running):
            return float(executor.limits.num_blocks)
        peak = executor.running.forecast(self._scheduler.history).peak_blocks()
        return max(0.0, min(executor.limits.num_blocks - peak, executor.blocks.num_free))

    def _rank(self, ready: list[ExecutorState], now: float) -> None:
        keep, hits, ranked = math.exp((self._last - now) / HITS_S), {}, []
        for executor in ready:
            count, lately = self._hits.get(executor.epoch, (0, 0.0))
            lately = lately * keep + executor.num_hit_tokens - count
            hits[executor.epoch] = (executor.num_hit_tokens, lately)
            moving = int(executor.running.lanes.computed[executor.running.order].sum())
            is_late = executor.membership.is_late
            ranked.append(Usefulness(executor.name, executor.epoch, is_late, moving, lately))
        self._hits = hits
        self._drain_first = least_useful_first(ranked)

    def _line(self, decision: Decision, num_ready: int) -> Action:
        waiting = self._scheduler.sequences.waiting.total(with_stranded=not num_ready)
        return log_line(
            "info",
            "executors wanted",
            wanted=decision.wanted,
            before=decision.before,
            reason=decision.reason,
            ready=num_ready,
            on_the_way=decision.on_the_way,
            stuck=decision.stuck,
            waiting=waiting.sequences,
            waiting_tokens=waiting.tokens,
            busy_executors=round(decision.work, 2),
            forecast_ttft_s=round(decision.forecast_ttft_s, 2),
            later_ttft_s=round(decision.later_ttft_s, 2),
            start_s=round(decision.lead_s, 1),
        )
