"""The C++ kernels of the sampler at Qwen3's vocabulary, against their twins in torch.

    python benchmarks/bench_cpu_kernels.py
    BATON_CPU_ISA=avx2 python benchmarks/bench_cpu_kernels.py --rows 32 --threads 2 --only log_probs

One JSON line for each case: microseconds a row, the best of some calls. The model's logits are bfloat16, adjusted ones
float32. Exits with 2 where there are no C++ kernels.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import click
import torch

from benchmarks.kernels.cases import KernelCase, grouped
from benchmarks.kernels.sampling_cases import KINDS, adjust_logits_case, log_probs_case, sample_case
from kernels import reference
from kernels.cpu import CpuKernels, load

CPU = torch.device("cpu")


def sampler_cases(rows: int, kernels: CpuKernels) -> Iterator[KernelCase]:
    """Every kind of sampling, penalties of 2,000 tokens a row, and log-probabilities."""
    yield from (sample_case(rows, kind) for kind in KINDS)
    yield adjust_logits_case(rows, kernels.adjust_logits)
    yield from (log_probs_case(rows, num_top) for num_top in (0, 5, 20))


def measure(
    case: KernelCase, dtype: torch.dtype, kernels: CpuKernels, budget_s: float, with_twin: bool
) -> dict[str, object]:
    """The figures of one case with logits of this dtype."""
    tensors = case.tensors(CPU)
    tensors["logits"] = tensors["logits"].to(dtype)
    figures: dict[str, object] = {"kernel": case.kernel, "logits": str(dtype).removeprefix("torch."), **case.step}
    for name, implementation in {"ours": kernels, **({"torch": reference} if with_twin else {})}.items():
        call = partial(getattr(implementation, case.kernel), **grouped({**tensors, **case.scalars}))
        figures[f"us_a_row_{name}"] = round(1e6 * _best_s(call, budget_s) / len(tensors["logits"]), 1)
    return figures


def _best_s(call: Callable[[], object], budget_s: float) -> float:
    """The best of at least three calls, and of as many as the budget allows."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget_s:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


@click.command()
@click.option("--only", help="Only the cases of this kernel.")
@click.option("--rows", type=click.IntRange(1), default=32, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="That share the rows.")
@click.option("--budget-s", default=1.0, show_default=True, help="For the calls of a contestant.")
@click.option("--twins", is_flag=True, help="Time the twins, too.")
def main(only: str | None, rows: int, threads: int, budget_s: float, twins: bool) -> None:
    """Print the figures."""
    torch.set_num_threads(threads)
    loaded = load(threads, partial(click.echo, err=True))
    if loaded.kernels is None:
        click.echo(f"there are no C++ kernels: {loaded.problem or loaded.reason}", err=True)
        sys.exit(2)
    torch.manual_seed(0)
    for case in sampler_cases(rows, loaded.kernels):
        if only in (None, case.kernel):
            for dtype in (torch.bfloat16, torch.float32):
                figures = measure(case, dtype, loaded.kernels, budget_s, twins)
                click.echo(json.dumps({"isa": loaded.isa, "threads": threads, **figures}))


if __name__ == "__main__":
    main()
