"""The GPU kernels at Qwen3's shapes, against what the device can do and against torch and flash-attn.

    python benchmarks/bench_kernels.py
    python benchmarks/bench_kernels.py --only paged_attention --model Qwen3-8B --quick

One JSON line for the device and its ceilings (a copy on the device, a large bfloat16 matrix product of random numbers,
both measured first), then one line for each case: microseconds of a call of each contestant, and for our kernel the
bytes and the operations a second and their shares of the ceilings. Calls are timed in CUDA graphs, without the host.
They take turns on sets of inputs of `rotated_bytes` altogether, so what does not fit in the L2 cache comes from memory.
At the end a summary against the targets goes to the standard error.

Exits with 2 where there is no CUDA device, and with 1 if one of our kernels fails.
"""

import gc
import json
import sys
from collections.abc import Iterator
from typing import Any

import click
import torch

from benchmarks.kernels.attention_cases import attention_cases
from benchmarks.kernels.cases import MODELS, KernelCase
from benchmarks.kernels.layer_cases import layer_cases
from benchmarks.kernels.sampling_cases import sampling_cases
from benchmarks.kernels.targets import summarize
from benchmarks.rig.ceilings import Ceilings, measure_gpu_ceilings
from benchmarks.rig.gpu_timing import Call, seconds_a_call

ROTATED_BYTES = 2**31
MAX_ROTATED = 128
MAX_TAKEN_BYTES = 2**34  # by a case's inputs, if the case has more than one set of them
SPARE_BYTES = 2**31  # that the contestants may take besides


def all_cases(model: str | None, quick: bool) -> Iterator[KernelCase]:
    """The cases of one model, or of all models; `quick` leaves out most shapes."""
    tokens = (256, 16_384) if quick else (1, 32, 256, 2048, 16_384)
    for each in MODELS:
        if model in (None, each.name):
            yield from layer_cases(each, tokens)
            yield from attention_cases(each, quick)
    yield from sampling_cases((256,) if quick else (1, 32, 256))


def measure(case: KernelCase, ceilings: Ceilings, budget_s: float, compiled: bool) -> dict[str, Any]:
    """The figures of one case."""
    device = torch.device("cuda")
    figures: dict[str, Any] = {"kernel": case.kernel, "model": case.model, **case.step}
    free, _ = torch.cuda.mem_get_info()
    taken = case.bytes_taken()
    if taken + SPARE_BYTES > free:
        return {**figures, "skipped": f"takes {taken / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"}
    copies = max(1, min(MAX_ROTATED, ROTATED_BYTES // case.bytes_moved, MAX_TAKEN_BYTES // taken))
    inputs = [case.tensors(device) for _ in range(copies)]
    for name, contestant in case.contestants(compiled).items():
        try:
            calls: list[Call] = [contestant(tensors) for tensors in inputs]
            figures[f"us_{name}"] = round(1e6 * seconds_a_call(calls, budget_s), 2)
        except Exception as error:  # the other contestants are still worth measuring
            figures[f"error_{name}"] = f"{type(error).__name__}: {error}"[:500]
    figures["rotated_bytes"] = copies * case.bytes_moved
    if (us := figures.get("us_ours")) is not None:
        figures |= shares(case, 1e-6 * us, ceilings)
    return figures


def shares(case: KernelCase, seconds: float, ceilings: Ceilings) -> dict[str, float]:
    """What a call achieves that takes this long."""
    figures = {
        "tb_s": round(case.bytes_moved / seconds / 1e12, 3),
        "of_copy": round(case.bytes_moved / seconds / ceilings.copy, 3),
    }
    if case.operations:
        figures["tflop_s"] = round(case.operations / seconds / 1e12, 1)
        figures["of_matmul"] = round(case.operations / seconds / ceilings.matmul, 3)
    return figures


@click.command()
@click.option("--only", help="Only the cases of this kernel.")
@click.option("--model", type=click.Choice([model.name for model in MODELS]), help="Only the cases of this model.")
@click.option(
    "--compiled", is_flag=True, help="Time torch.compile of torch's way, too. It takes seconds more for each case."
)
@click.option("--quick", is_flag=True, help="A few shapes, a few replays.")
def main(only: str | None, model: str | None, compiled: bool, quick: bool) -> None:
    """Print the figures."""
    if not torch.cuda.is_available():
        click.echo("bench_kernels.py needs a CUDA device, and torch finds none", err=True)
        sys.exit(2)
    budget_s = 0.02 if quick else 0.1
    ceilings = measure_gpu_ceilings(torch.device("cuda"), 0.5)
    properties = torch.cuda.get_device_properties(0)
    click.echo(
        json.dumps(
            {
                "device": properties.name,
                "copy_tb_s": round(ceilings.copy / 1e12, 3),
                "matmul_tflop_s": round(ceilings.matmul / 1e12, 1),
                "torch": torch.__version__,
            }
        )
    )
    measured = []
    for case in all_cases(model, quick):
        if only not in (None, case.kernel):
            continue
        measured.append(measure(case, ceilings, budget_s, compiled))
        click.echo(json.dumps(measured[-1]))
        torch.compiler.reset()  # otherwise torch.compile gives up after some shapes
        gc.collect()
        torch.cuda.empty_cache()
    if not measured:
        raise click.BadParameter(f"there are no cases of a kernel named {only}", param_hint="--only")
    click.echo(summarize(measured), err=True)
    sys.exit(1 if any("error_ours" in figures for figures in measured) else 0)


if __name__ == "__main__":
    main()
