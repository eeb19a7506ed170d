"""The executor's two computing threads: one launches steps, the other collects their tokens.

A launch on a GPU returns long before its step is done, so the next plan is staged and launched meanwhile. On a CPU a
launch takes as long as the step, and the collector only passes the tokens on.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from common import messages as m
from common.exit_codes import EXIT_CRASHED
from common.logging import get_logger
from common.plan import ExecutorLimits, PlanColumns
from common.step_result import ResultColumns

log = get_logger("executor")

StepAnswer = m.StepResult | m.StepFailed | None
"""None for a step that was not run, because its epoch had ended."""


class RankGone(RuntimeError):
    """Another process of this executor has ended, or cannot be reached. The step that was being computed has no answer;
    what it has written is as good, and as bad, as what a killed executor has written."""


class StepTokens(Protocol):
    """The tokens of a step that was launched; on a GPU they are still on their way to the host."""

    def wait(self) -> ResultColumns:
        """The tokens and what comes with them, as soon as their step is done. Other threads may run meanwhile.

        Raises:
            RuntimeError: a kernel of the step failed.
        """
        ...


class StepRunner(Protocol):
    """Runs steps: a `Runner`, or the leader of a group of ranks. A protocol, because this room imports no torch."""

    limits: ExecutorLimits

    def launch(self, columns: PlanColumns) -> StepTokens:
        """Begin to run a plan; see `executor_svc.runner.runner.Runner.launch`."""
        ...

    def usable(self) -> bool:
        """Whether the process can go on after a step that failed."""
        ...


class DistrustedPool(Protocol):
    """The pool that the runner computes in, if a keeper keeps it: see `executor_svc.keeper.kept_pool.KeptPool`."""

    def distrust(self) -> None:
        """See `KeptPool.distrust`."""
        ...

    def spoil(self) -> None:
        """See `KeptPool.spoil`."""
        ...


@dataclass(frozen=True)
class QueuedPlan:
    """A plan that waits to be launched."""

    epoch: int
    step: int
    columns: PlanColumns


class StepSource(Protocol):
    """Where steps come from: a queue, or rank 0."""

    def get(self) -> QueuedPlan | None:
        """Wait for the next one; None is the end."""
        ...


@dataclass(frozen=True)
class _Launched:
    step: QueuedPlan
    at: float
    outcome: StepTokens | m.StepFailed | None


class StepLoop:
    """Runs steps in the order they come, and answers each once, in that order.

    Args:
        runner: runs them.
        steps: in the order to run them; None is the end.
        live_epoch: the epoch that lives right now; steps of any other need not be run.
        answer: takes each answer, in the collector's thread.
        pool: is told when what is in it is not known any more.
    """

    def __init__(
        self,
        runner: StepRunner,
        steps: StepSource,
        live_epoch: Callable[[], int | None],
        answer: Callable[[StepAnswer], None],
        pool: DistrustedPool | None = None,
    ) -> None:
        self._runner = runner
        self._steps = steps
        self._live_epoch = live_epoch
        self._answer = answer
        self._pool = pool
        self._launched: queue.SimpleQueue[_Launched | None] = queue.SimpleQueue()
        self._failed_epoch: int | None = None

    def run(self) -> None:
        """Launch steps in this thread until None comes, and return once all of them are answered."""
        collector = threading.Thread(target=self._collect, name="collector", daemon=True)
        collector.start()
        while (step := self._steps.get()) is not None:
            self._launched.put(_Launched(step, time.perf_counter(), self._launch(step)))
        self._launched.put(None)
        collector.join()

    def _launch(self, step: QueuedPlan) -> StepTokens | m.StepFailed | None:
        # Read without a lock: a plan whose epoch ends right now may still run, and its answer is dropped. Plans behind
        # one that failed need what that one did not compute.
        if step.epoch != self._live_epoch() or step.epoch == self._failed_epoch:
            return None
        try:
            return self._runner.launch(step.columns)
        except Exception as error:
            return self._failure(step, error)

    def _collect(self) -> None:
        done_at = 0.0
        while (launched := self._launched.get()) is not None:
            answer = self._wait(launched, done_at)
            done_at = time.perf_counter()
            self._answer(answer)

    def _wait(self, launched: _Launched, idle_since: float) -> StepAnswer:
        if launched.outcome is None or isinstance(launched.outcome, m.StepFailed):
            return launched.outcome
        step = launched.step
        try:
            result = launched.outcome.wait()
        except Exception as error:
            return self._failure(step, error)
        # The device began this step when it was launched, or when the step before was done.
        compute_us = int((time.perf_counter() - max(launched.at, idle_since)) * 1e6)
        return result.message(step.epoch, step.step, compute_us)

    def _failure(self, step: QueuedPlan, error: Exception) -> m.StepFailed:
        """Any error of a step, such as out of memory, ends its epoch; the process only if the device is unusable."""
        # Before anything is said of it: this process may not live until its answer is taken.
        is_own = not isinstance(error, RankGone)
        pool = self._pool if is_own else None
        if pool is not None:
            pool.distrust()
        self._failed_epoch = step.epoch
        cause = {"exc_info": error} if is_own else {"error": f"another rank has gone: {error}"}
        log.error("step failed", epoch=step.epoch, step=step.step, **cause)
        if not self._runner.usable():
            if pool is not None:
                pool.spoil()
            log.critical("cannot go on after it", exit_code=EXIT_CRASHED)
            os._exit(EXIT_CRASHED)
        text = f"{type(error).__name__}: {error}"[:4096]
        return m.StepFailed(epoch=step.epoch, step=step.step, error=text)
