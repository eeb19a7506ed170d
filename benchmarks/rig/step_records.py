"""What an executor did, step by step: recorded around a real runner, for a benchmark to read later.

Recording costs some microseconds a step. It is the same for a runner that serves a scheduler through a socket
(`recorded_executor.py`) and for one in the scheduler's process (`in_process.py`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

import executor_svc.runner.runner
import executor_svc.service.process
from benchmarks.rig.step_profiler import StepProfiler
from benchmarks.rig.timed_kernels import Stopwatch, TimedBackend, TimedKernels
from common.plan import PlanColumns
from common.step_result import ResultColumns
from common.wire import IntArray
from executor_svc.devices.cpu import CpuPlatform
from executor_svc.model.attention import AttentionBackend
from executor_svc.model.config import DecoderConfig
from executor_svc.model.kernel_set import KernelSet
from executor_svc.runner.asked_steps import PendingStep
from executor_svc.runner.runner import Runner


class RecordedStep(msgspec.Struct):
    """One step of an executor. Times are seconds of the monotonic clock, which all processes of a machine share.

    Attributes:
        queries, contexts: int32 [rows] as bytes, the plan's `query_lens` and `context_lens`.
        num_samples: rows that drew a token.
        launched_s, done_s: when the launch began, and when the tokens had come; NaN if they have not.
        parse_s: how long it took to check the plan.
        stage_s: how long it took to pack the arrays and to send them to the device; a part of `launch_s`.
        launch_s: from the launch until the next launch could begin.
        wait_s: how long the executor waited for the tokens.
        linear_s, attention_s, head_s: parts of the launch on a CPU: matrix products, attention, the output projection.
    """

    queries: bytes
    contexts: bytes
    num_samples: int
    launched_s: float
    parse_s: float = 0.0
    stage_s: float = 0.0
    launch_s: float = 0.0
    wait_s: float = 0.0
    done_s: float = float("nan")
    linear_s: float = 0.0
    attention_s: float = 0.0
    head_s: float = 0.0

    @property
    def query_lens(self) -> IntArray:
        """Tokens of each row, int32 [rows]."""
        return np.frombuffer(self.queries, np.int32)

    @property
    def context_lens(self) -> IntArray:
        """Positions that each row's last token attends to, int32 [rows]."""
        return np.frombuffer(self.contexts, np.int32)

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.queries) // 4

    @property
    def is_decode(self) -> bool:
        """Whether each row is one token that is sampled: no row is a part of a prompt."""
        return self.num_samples == self.num_rows == int(self.query_lens.sum())


class Recorder:
    """Steps in the order of their launches."""

    def __init__(self) -> None:
        self.steps: list[RecordedStep] = []
        self._parse_s: dict[int, float] = {}
        self._stage_s = 0.0
        self._stopwatch = Stopwatch()

    def timed_parse(self, parse: Callable[..., PlanColumns]) -> Callable[..., PlanColumns]:
        """A `parse_plan` that is timed."""

        def timed(*arguments: Any) -> PlanColumns:
            start = time.monotonic()
            columns = parse(*arguments)
            self._parse_s[id(columns)] = time.monotonic() - start
            return columns

        return timed

    def timed_stage(self, stage: Callable[..., Any]) -> Callable[..., Any]:
        """A `stage` that is timed."""

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.monotonic()
            batch = stage(*arguments, **options)
            self._stage_s += time.monotonic() - start
            return batch

        return timed

    def timed_kernels(self, choose: Callable[..., KernelSet]) -> Callable[..., TimedKernels]:
        """A `CpuPlatform.kernels` whose kernels are timed."""

        def chosen(platform: Any, config: DecoderConfig, *arguments: Any) -> TimedKernels:
            return TimedKernels(choose(platform, config, *arguments), config.vocab_size, self._stopwatch)

        return chosen

    def timed_attention(self, choose: Callable[..., AttentionBackend[Any]]) -> Callable[..., TimedBackend]:
        """A `CpuPlatform.attention` whose attention is timed."""
        return lambda *arguments: TimedBackend(choose(*arguments), self._stopwatch)

    def launching(self, columns: PlanColumns) -> RecordedStep:
        """The record of a step that is about to be launched."""
        self._stage_s = 0.0
        self._stopwatch.take()
        return RecordedStep(
            queries=columns.query_lens.tobytes(),
            contexts=columns.context_lens.tobytes(),
            num_samples=len(columns.sample_rows),
            parse_s=self._parse_s.pop(id(columns), 0.0),
            launched_s=time.monotonic(),
        )

    def launched(self, step: RecordedStep) -> None:
        """The step has been launched: its times so far are known."""
        step.launch_s = time.monotonic() - step.launched_s
        step.stage_s = self._stage_s
        for kind, seconds in self._stopwatch.take().items():
            setattr(step, f"{kind}_s", seconds)
        self.steps.append(step)

    def save(self, path: Path) -> None:
        """Write all steps to a file."""
        path.write_bytes(msgspec.msgpack.encode(self.steps))


@contextmanager
def recording() -> Iterator[Recorder]:
    """A recorder; until the end of the `with` block the executor calls timed functions in place of its own."""
    recorder = Recorder()
    with (
        replaced(executor_svc.service.process, "parse_plan", recorder.timed_parse),
        replaced(executor_svc.runner.runner, "stage", recorder.timed_stage),
        replaced(CpuPlatform, "kernels", recorder.timed_kernels),
        replaced(CpuPlatform, "attention", recorder.timed_attention),
    ):
        yield recorder


@contextmanager
def replaced(owner: ModuleType | type, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Until the end of the `with` block an attribute is what `wrap` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def load_steps(path: Path) -> list[RecordedStep]:
    """Read what `Recorder.save` wrote."""
    return msgspec.msgpack.decode(path.read_bytes(), type=list[RecordedStep])


class RecordedRunner:
    """A runner whose steps are recorded. All other calls go to the runner itself."""

    def __init__(self, runner: Runner[Any], recorder: Recorder, profiler: StepProfiler | None = None) -> None:
        self._runner = runner
        self._recorder = recorder
        self._profiler = profiler

    def launch(self, columns: PlanColumns) -> "RecordedTokens":
        """See `Runner.launch`."""
        if self._profiler is not None:
            self._profiler.before_launch(columns)
        step = self._recorder.launching(columns)
        pending = self._runner.launch(columns)
        self._recorder.launched(step)
        return RecordedTokens(pending, step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


@dataclass(frozen=True)
class RecordedTokens:
    """Tokens on their way to the host."""

    _pending: PendingStep
    _step: RecordedStep

    def wait(self) -> ResultColumns:
        """See `PendingStep.wait`."""
        start = time.monotonic()
        tokens = self._pending.wait()
        self._step.done_s = time.monotonic()
        self._step.wait_s = self._step.done_s - start
        return tokens


def between(steps: Sequence[RecordedStep], start_s: float, end_s: float) -> list[RecordedStep]:
    """The steps that were launched and done within a time."""
    return [step for step in steps if start_s <= step.launched_s and step.done_s <= end_s]
