"""Options of executors, with the names and meanings that baton-executor gives them, for a command that starts some."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any

import click

from common.cgroups import paid_cpus
from scheduler_svc.client.processes.words import words

PASSED_ON = (  # to baton-executor, by the same name
    *("dtype", "quantization", "device", "attention", "max_model_len"),
    *("block_size", "num_blocks", "kv_cache_memory", "gpu_memory_utilization", "max_num_seqs", "max_batch_tokens"),
)


@dataclass(frozen=True)
class ExecutorChoices:
    """The executors that a command starts.

    Attributes:
        count: how many.
        ranks: processes of each, which share its model.
        gpus: that they divide among them, one for each rank; none if all see all.
        threads: of each rank; None is a share of the CPUs.
        arguments: of baton-executor, without the threads.
    """

    count: int
    ranks: int
    gpus: tuple[str, ...]
    threads: int | None
    arguments: tuple[str, ...]

    def all_arguments(self) -> tuple[str, ...]:
        """`arguments`, and the threads."""
        share = max(1, num_cpus() // max(1, self.count * self.ranks))
        return (*words(threads=self.threads or share), *self.arguments)


def executor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as `executors`."""
    count = click.IntRange(min=1)

    @click.option("--executors", "num_executors", default=1, show_default=True, type=click.IntRange(min=0),
                  help="How many to start.")  # fmt: skip
    @click.option("--tensor-parallel-size", "ranks", default=1, show_default=True, type=count,
                  help="Processes (GPUs) of each executor, which share its model.")  # fmt: skip
    @click.option("--gpus", metavar="N,N,...", help="Numbers of the GPUs, one for each process of each executor.  "
                  "[default: all executors see all]")  # fmt: skip
    @engine_options
    @click.option("--threads", type=count, help="CPU threads of each executor's process. Default: its share.")
    @wraps(command)
    def with_executors(
        num_executors: int, ranks: int, gpus: str | None, threads: int | None, engine: tuple[str, ...], **options: Any
    ) -> Any:
        numbers = tuple(gpus.split(",")) if gpus else ()
        if numbers and len(numbers) != num_executors * ranks:
            needed = f"--executors {num_executors} with --tensor-parallel-size {ranks} needs {num_executors * ranks}"
            raise click.UsageError(f"--gpus {gpus} names {len(numbers)}, {needed}")
        device = dict(pairwise(engine)).get("--device", "auto")
        if numbers and device == "cpu":
            raise click.UsageError(f"--gpus {gpus} and --device cpu contradict each other")
        if numbers and device == "auto":  # which would be the CPU where there is no such GPU
            engine = (*engine, "--device", "cuda")
        return command(executors=ExecutorChoices(num_executors, ranks, numbers, threads, engine), **options)

    return with_executors


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options of how each executor computes; the command gets them as words for baton-executor, as `engine`."""
    count = click.IntRange(min=1)

    @click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
                  help="Of weights, activations and KV cache.")  # fmt: skip
    @click.option("--quantization", type=click.Choice(["none", "int8"]),
                  help="Of linear layers; int8 is for a CPU and bfloat16.")  # fmt: skip
    @click.option("--max-model-len", type=count, help="Tokens of a sequence, prompt and answer.")
    @click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="What executors compute on.")
    @click.option("--attention", type=click.Choice(["auto", "flash_attn", "triton"]), help="Kernels on a GPU.")
    @click.option("--gpu-memory-utilization", type=click.FloatRange(0, 1, min_open=True),
                  help="Share of a GPU's memory for an executor.")  # fmt: skip
    @click.option("--task", "tasks", multiple=True, type=click.Choice(["generate", "embed", "score"]),
                  help="What executors take; may be given more than once. Default: by the model.")  # fmt: skip
    @click.option("--enforce-eager", is_flag=True, help="On a GPU: no CUDA graphs.")
    @click.option("--kv-cache-memory", type=click.FloatRange(0, min_open=True), metavar="GIB",
                  help="Memory for KV blocks of an executor.")  # fmt: skip
    @click.option("--num-blocks", type=count, help="KV blocks of each executor.")
    @click.option("--block-size", type=count, help="Tokens in a KV block.")
    @click.option("--max-num-seqs", type=click.IntRange(1, 65536), help="Sequences an executor runs at once.")
    @click.option("--max-batch-tokens", type=click.IntRange(1, 2**20), help="Tokens an executor computes in a step.")
    @wraps(command)
    def with_engine(*, enforce_eager: bool, tasks: tuple[str, ...], **options: Any) -> Any:
        given = [*words(**{name: options.pop(name) for name in PASSED_ON})]
        for task in tasks:
            given += ["--task", task]
        return command(engine=(*given, *(("--enforce-eager",) if enforce_eager else ())), **options)

    return with_engine


def num_cpus() -> int:
    """CPUs this process may use, or as many as the quota of its control groups pays for."""
    return paid_cpus(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
