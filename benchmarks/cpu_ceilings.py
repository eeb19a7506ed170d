"""What a CPU does at best, for a roofline: memory read by all threads, and torch's (oneDNN's) matrix products."""

import os
import time
from collections.abc import Callable

import torch
from kernel_timing import Ceilings

from executor_svc.config import Qwen3Config
from kernels.cpu import load

READ_BYTES = 2**30
PROMPT_TOKENS = 2048
REPEATS = 5


def measure_cpu_ceilings(config: Qwen3Config, threads: int) -> Ceilings:
    """Bytes read a second, and operations a second of the model's largest product over a prompt, the best of a few.

    Raises:
        RuntimeError: there are no C++ kernels here to read memory with.
    """
    # The ceilings are for the machine: what BATON_CPU_ISA chooses for the executor does not matter.
    kernels = load(threads, lambda line: None, {}).kernels
    if kernels is None:
        raise RuntimeError("there are no C++ kernels to read memory with")
    memory = torch.ones(READ_BYTES // 4)
    torch.set_num_threads(threads)
    width = config.intermediate_size
    tokens, weight = (torch.randn(size, config.hidden_size).bfloat16() for size in (PROMPT_TOKENS, width))
    product = torch.empty(PROMPT_TOKENS, width, dtype=torch.bfloat16)
    read_s = _best_s(lambda: kernels.read_memory(memory))
    product_s = _best_s(lambda: torch.mm(tokens, weight.T, out=product))
    return Ceilings(copy=READ_BYTES / read_s, matmul=2 * PROMPT_TOKENS * width * config.hidden_size / product_s)


def all_threads() -> int:
    """As many as an executor takes by default that has this process's CPUs."""
    return len(os.sched_getaffinity(0))


def better(first: Ceilings, second: Ceilings) -> Ceilings:
    """The higher of each, of two measurements: whatever else runs can only lower them."""
    return Ceilings(copy=max(first.copy, second.copy), matmul=max(first.matmul, second.matmul))


def _best_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
