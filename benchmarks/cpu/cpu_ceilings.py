"""A CPU's ceilings for a roofline: memory read by all threads, and torch's (oneDNN's) matrix products."""

import time
from collections.abc import Callable

import torch

from executor_svc.model.config import DecoderConfig
from kernels.cpu import load

READ_BYTES = 2**30
PROMPT_TOKENS = 2048
REPEATS = 5


class MemoryReader:
    """Reads one gigabyte. It is in huge pages, as the executor's weights are; small pages are slower.

    Args:
        threads: how many read it together.

    Raises:
        RuntimeError: there are no C++ kernels to read memory with.
    """

    def __init__(self, threads: int) -> None:
        # The ceiling is the machine's, so BATON_CPU_ISA, which chooses the executor's kernels, is ignored.
        kernels = load(threads, lambda line: None, {}).kernels
        if kernels is None:
            raise RuntimeError("there are no C++ kernels to read memory with")
        self._kernels = kernels
        self._memory = torch.empty(READ_BYTES // 4)
        kernels.advise_huge_pages(self._memory)
        self._memory.fill_(1)

    def bytes_per_s(self) -> float:
        """The best of some readings, which take about 0.1 s together."""
        return READ_BYTES / _best_s(lambda: self._kernels.read_memory(self._memory))


def measure_matmul(config: DecoderConfig, threads: int) -> float:
    """Operations a second of the model's largest matrix product over a prompt, the best of some."""
    torch.set_num_threads(threads)
    width = config.intermediate_size
    tokens, weight = (torch.randn(size, config.hidden_size).bfloat16() for size in (PROMPT_TOKENS, width))
    product = torch.empty(PROMPT_TOKENS, width, dtype=torch.bfloat16)
    product_s = _best_s(lambda: torch.mm(tokens, weight.T, out=product))
    return 2 * PROMPT_TOKENS * width * config.hidden_size / product_s


def _best_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
