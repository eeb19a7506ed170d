"""Where a CPU's step time goes: the executor's kernels and attention with a stopwatch around them.

A CPU's kernel is done when its call returns, so the host's clock shows how long it took. Timing costs about 20 us a
step.
"""

import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from executor_svc.model.attention import AttentionBackend
from executor_svc.model.kernel_set import GatedProjection, KernelSet, Projection
from executor_svc.model.packing import Matrix

P = ParamSpec("P")
R = TypeVar("R")

KINDS = ("linear", "attention", "head")


class Stopwatch:
    """Seconds of each of `KINDS` since the last `take`."""

    def __init__(self) -> None:
        self._spent_s = dict.fromkeys(KINDS, 0.0)

    def timed(self, kind: str, call: Callable[P, R]) -> Callable[P, R]:
        """A `call` that is timed."""

        def timed(*arguments: P.args, **options: P.kwargs) -> R:
            start = time.perf_counter()
            result = call(*arguments, **options)
            self._spent_s[kind] += time.perf_counter() - start
            return result

        return timed

    def take(self) -> dict[str, float]:
        """Seconds by kind; from now on they count from 0 again."""
        spent_s, self._spent_s = self._spent_s, dict.fromkeys(KINDS, 0.0)
        return spent_s


class TimedKernels:
    """A kernel set whose matrix products are timed: the output projection as `head`, all other products as `linear`.

    Args:
        kernels: the kernel set that computes.
        vocab_size: rows of the output projection; no other matrix has as many.
        stopwatch: takes the times.
    """

    def __init__(self, kernels: KernelSet, vocab_size: int, stopwatch: Stopwatch) -> None:
        self._kernels = kernels
        self._vocab_size = vocab_size
        self._stopwatch = stopwatch

    def projection(self, weight: Matrix, bias: Tensor | None) -> Projection:
        """See `KernelSet.projection`."""
        kind = "head" if weight.shape.out_size == self._vocab_size else "linear"
        return self._stopwatch.timed(kind, self._kernels.projection(weight, bias))

    def gated_projection(self, gate_up: Matrix) -> GatedProjection:
        """See `KernelSet.gated_projection`."""
        return self._stopwatch.timed("linear", self._kernels.gated_projection(gate_up))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)


class TimedBackend:
    """An attention backend that is timed."""

    def __init__(self, backend: AttentionBackend[Any], stopwatch: Stopwatch) -> None:
        self._backend = backend
        self.attend = stopwatch.timed("attention", backend.attend)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)
