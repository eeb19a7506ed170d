"""CUDA graphs of decode steps: a step of hundreds of kernels becomes one launch."""

from collections.abc import Callable
from typing import Any

import torch


def decode_sizes(max_rows: int) -> list[int]:
    """Numbers of rows to capture graphs for, ascending; the last is `max_rows`.

    A plan is padded to the next of them. From 32 rows on that adds an eighth at most; below it costs next to nothing,
    as every step reads all weights anyway.
    """
    sizes = [1, 2, 4]
    while sizes[-1] < max_rows:
        sizes.append(sizes[-1] + max(4, 1 << sizes[-1].bit_length() >> 4))
    return sorted({min(size, max_rows) for size in sizes})


class DecodeGraphs:
    """Graphs by their number of rows. They share one pool of memory, as only one runs at a time.

    Capture the largest first: the smaller ones then fit into what it took.
    """

    def __init__(self) -> None:
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None  # torch has no public name for the type
        self._stream: torch.cuda.Stream | None = None  # one for all: cuBLAS has a workspace (32 MiB) for each

    def capture(self, num_rows: int, forward: Callable[[], object]) -> None:
        """Record `forward`, whose tensors must stand at the same addresses at every replay.

        It is run once before: what a kernel sets up at its first launch must not be recorded.
        """
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: NCCL's watchdog, another thread, may look at its events meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            forward()
        self._pool = graph.pool()
        self._graphs[num_rows] = graph

    def replay(self, num_rows: int) -> bool:
        """Run the graph of so many rows in the current stream; False if there is none."""
        graph = self._graphs.get(num_rows)
        if graph is None:
            return False
        graph.replay()
        return True

    def clear(self) -> None:
        """Destroy the graphs: those with collective operations have to go before the ranks' communicator does."""
        self._graphs.clear()
