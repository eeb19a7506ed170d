"""The scheduler and the executor's runner in one process and one thread: a service without the split.

There is no socket, no other thread, no journal and no frontend. The scheduler plans, the runner launches, and while the
GPU computes, further plans are made and launched, as many as the window says.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from benchmarks.rig.runs import TimedRun
from benchmarks.rig.step_records import RecordedRunner, RecordedTokens, Recorder, recording
from common import messages as m
from common.grammars import grammar_library
from common.plan import ExecutorLimits, parse_plan
from executor_svc.__main__ import main as executor
from executor_svc.options import ExecutorOptions
from executor_svc.runner.runner import Runner
from executor_svc.startup import start_executor
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.step_output import SequenceEnd

EPOCH = 1


class InProcess:
    """Runs requests.

    Args:
        runner: a recorded runner.
        recorder: records the runner's steps.
        limits: the runner's limits.
        config: the scheduler's settings.

    Attributes:
        num_steps: of all runs so far.
    """

    def __init__(
        self, runner: RecordedRunner, recorder: Recorder, limits: ExecutorLimits, config: SchedulerConfig
    ) -> None:
        self.num_steps = 0
        self._runner = runner
        self._limits = limits
        self._parse = recorder.timed_parse(parse_plan)
        library = grammar_library()
        self._scheduler = Scheduler(replace(config, grammars=library))
        self._scheduler.add_executor(Membership(EPOCH, "", "", limits, grammars=library))

    def run(self, requests: Sequence[m.Submit], ended: Callable[[SequenceEnd], object] = lambda _: None) -> TimedRun:
        """Run all requests to their ends, and tell `ended` of each that a step's answer brought."""
        scheduler = self._scheduler
        in_flight: deque[tuple[int, RecordedTokens]] = deque()
        num_tokens = 0
        start_s = time.monotonic()
        for request in requests:
            scheduler.add(request)
        while True:
            while (plan := scheduler.plan(EPOCH)) is not None:
                in_flight.append((plan.step, self._runner.launch(self._parse(plan, self._limits))))
            if not in_flight:
                break
            self.num_steps += 1
            step, pending = in_flight.popleft()
            output = scheduler.commit(pending.wait().message(EPOCH, step, compute_us=0))
            num_tokens += len(output.tokens)
            for end in output.ends:
                ended(end)
        return TimedRun(start_s, time.monotonic(), num_tokens)


def start_runner(arguments: Sequence[str]) -> tuple[Runner[Any], m.Hello]:
    """A runner as the executor starts it with these arguments, and what the executor would say of it."""
    with executor.make_context("baton-executor", list(arguments)) as context:
        options = ExecutorOptions(**{name: context.params[name] for name in ExecutorOptions.__dataclass_fields__})
    started = start_executor(options)
    return started.runner, started.hello


@contextmanager
def in_process(arguments: Sequence[str], config: SchedulerConfig) -> Iterator[InProcess]:
    """Start a runner as the executor does with these arguments, and a scheduler."""
    with recording() as recorder:
        runner, hello = start_runner(arguments)
        yield InProcess(RecordedRunner(runner, recorder), recorder, ExecutorLimits.of(hello), config)
