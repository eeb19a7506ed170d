"""How long a call takes on a GPU."""

import statistics
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]


def seconds_a_call(calls: Sequence[Call], budget_s: float) -> float:
    """Median time of one call on the device, without the launch from the host.

    The calls do the same work on different memory. They are captured into one CUDA graph, as decode steps are. The
    graph is replayed until the budget is used up, each time between two events.

    Args:
        calls: what to time; together they should touch several times the memory that the L2 cache holds.
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
        results = [call() for call in calls]  # kept: otherwise each call would write to the same memory
    warm = min(_replay_s(graph) for _ in range(3))
    replays = min(200, max(5, round(budget_s / warm)))
    median = statistics.median(_replay_s(graph) for _ in range(replays))
    del results
    return median / len(calls)


def _replay_s(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
