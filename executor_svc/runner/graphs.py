"""CUDA graphs: a decode step of hundreds of kernels becomes one launch, another step two or three for a layer."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_BREAK_EVEN_PRODUCTS = 15 << 32
"""Multiplications that a GPU does, at 440 TFLOP/s, while the host launches a layer kernel by kernel, in 293 us.

The rate is an estimate. The host's time was measured on the pretended GPU (2 x EPYC): 8.2 ms for the 28 layers of
Qwen3-0.6B beside other work, which a server has, too, and 5.0 ms alone. The CPU of a GPU machine is faster, and CUDA's
own libraries take longer than the stand-ins. So steps of Qwen3-0.6B have graphs up to 4,096 tokens.
"""

_LARGEST_STEP = 256
"""Tokens from one size to the next at most. A product computes 128 or 256 tokens at a time."""


def decode_sizes(max_rows: int) -> list[int]:
    """Numbers of rows to capture graphs for, ascending; the last is `max_rows`.

    A plan is padded to the next of them. From 32 rows on that adds an eighth at most; below it costs next to nothing,
    as every step reads all weights anyway.
    """
    sizes = [1, 2, 4]
    while sizes[-1] < max_rows:
        sizes.append(sizes[-1] + max(4, 1 << sizes[-1].bit_length() >> 4))
    return sorted({min(size, max_rows) for size in sizes})


def token_sizes(layer_products: int, max_tokens: int) -> list[int]:
    """Numbers of tokens to capture the parts of other steps for, ascending and at most `max_tokens`.

    A step is padded to the next of them. Below 128 tokens that costs next to nothing; from 128 on it adds a quarter at
    most, from 2,048 on an eighth. It pays where launching a layer takes longer than computing it; larger steps keep the
    GPU busy as they are. Powers of two are among them, so that warm-up, which runs these, meets every configuration
    that kernels choose.

    Args:
        layer_products: multiplications that a token takes in the matrices of a layer.
        max_tokens: of a step.
    """
    longest = min(max_tokens, _BREAK_EVEN_PRODUCTS // layer_products)
    if longest < 1:
        return []
    sizes = [16]
    while sizes[-1] < longest:
        quarter = 1 << sizes[-1].bit_length() >> 3
        sizes.append(sizes[-1] + (sizes[-1] if sizes[-1] < 128 else min(quarter, _LARGEST_STEP)))
    return sorted({min(size, longest) for size in sizes})


def next_size(sizes: npt.NDArray[np.int64], number: int) -> int | None:
    """The first of ascending sizes that is `number` or more; None if there is none."""
    index = int(np.searchsorted(sizes, number))
    return None if index == len(sizes) else int(sizes[index])


class StepGraphs:
    """Graphs of decode steps by their number of rows, and of the parts of other steps by their number of tokens.

    They share one pool of memory, as only one runs at a time. Capture the largest first: the smaller ones then fit into
    what it took.
    """

    def __init__(self) -> None:
        self._decode: dict[int, list[torch.cuda.CUDAGraph]] = {}
        self._parts: dict[int, list[Callable[[], None]]] = {}
        self._pool: Any = None  # torch has no public name for the type
        self._stream: torch.cuda.Stream | None = None  # one for all: cuBLAS has a workspace (32 MiB) for each

    def capture_decode(self, num_rows: int, forward: Callable[[], object], sample: Callable[[], object]) -> None:
        """Record the two halves of a decode step, whose tensors must stand at the same addresses at every replay.

        They are run once before: what a kernel sets up at its first launch must not be recorded. There are two graphs
        because a step whose samples ask for more than a token replays the first one alone.
        """
        self._decode[num_rows] = self._capture([forward, sample])

    def capture_parts(self, num_tokens: int, parts: Sequence[Callable[[], object]]) -> None:
        """Record each part of a step of so many tokens, likewise (Kwon et al.'s vLLM calls these piecewise graphs)."""
        self._parts[num_tokens] = [graph.replay for graph in self._capture(parts)]

    def replay_forward(self, num_rows: int) -> bool:
        """Run the first half of a step of so many rows in the current stream; False if there is no graph of it."""
        return self._replay(num_rows, 0)

    def replay_sampling(self, num_rows: int) -> bool:
        """Run the second half, likewise."""
        return self._replay(num_rows, 1)

    def _replay(self, num_rows: int, half: int) -> bool:
        graphs = self._decode.get(num_rows)
        if graphs is None:
            return False
        graphs[half].replay()
        return True

    def parts(self, num_tokens: int) -> Sequence[Callable[[], None]] | None:
        """Replays of the parts of a step of so many tokens, in the current stream; None if there are none."""
        return self._parts.get(num_tokens)

    def clear(self) -> None:
        """Destroy the graphs: those with collective operations have to go before the ranks' communicator does."""
        self._decode.clear()
        self._parts.clear()

    def _capture(self, parts: Sequence[Callable[[], object]]) -> list[torch.cuda.CUDAGraph]:
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for part in parts:
                part()
        torch.cuda.current_stream().wait_stream(stream)
        return [self._record(part, stream) for part in parts]

    def _record(self, part: Callable[[], object], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # thread_local: NCCL's watchdog, another thread, may look at its events meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            part()
        self._pool = graph.pool()
        return graph
