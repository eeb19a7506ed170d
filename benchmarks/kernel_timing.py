"""How long a kernel takes on a GPU, and the ceilings that it is held against."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Ceilings:
    """What the device does at best, measured in the same run.

    Attributes:
        copy: bytes a second of a copy on the device, read and written ones together.
        matmul: floating-point operations a second of a large bfloat16 matrix product of random numbers.
    """

    copy: float
    matmul: float


def seconds_a_call(calls: Sequence[Call], budget_s: float) -> float:
    """Median time of one call on the device, without the launch from the host.

    The calls, which do the same to different memory, are captured into one CUDA graph, as steps of a decode are. The
    graph is replayed until the budget is used up, each time between two events.

    Args:
        calls: what to time; together they should touch several times what the L2 cache holds.
        budget_s: how long to replay, after the first replays.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()  # compiles and allocates
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for call in calls]  # kept, or each call would write to the same memory
    warm = min(_replay_s(graph) for _ in range(3))
    replays = min(200, max(5, round(budget_s / warm)))
    median = statistics.median(_replay_s(graph) for _ in range(replays))
    del results
    return median / len(calls)


def measure_ceilings(device: torch.device, budget_s: float) -> Ceilings:
    """Time a copy of 2 GiB and a matrix product of 8192 x 8192 x 8192."""
    source = torch.empty(2**31, dtype=torch.uint8, device=device).random_(256)
    target = torch.empty_like(source)
    copy_s = seconds_a_call([partial(target.copy_, source)], budget_s)
    size = 8192
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    matmul_s = seconds_a_call([partial(torch.mm, left, right)], budget_s)
    return Ceilings(copy=2 * 2**31 / copy_s, matmul=2 * size**3 / matmul_s)


def _replay_s(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
