"""Both services on a CPU with random requests, against the roofline of the same run and vLLM's CPU build.

    python benchmarks/bench_cpu.py --model 0.6B --num-seqs 32 --max-prompt 128 --max-output 128
    python benchmarks/bench_cpu.py --model /tmp/qwen3 --peer vllm --peer-python /opt/vllm/bin/python --in-process

All requests come at once. Lengths of prompts and answers lie between half of the largest length and all of it. The
temperature is 0.6, and a sequence ends only at its length. Token ids go through the scheduler's ZeroMQ socket for
frontends; a run is timed from the first request sent to the last token received. The benchmark prints one JSON line,
whose headline is the median run of the services.

All sides are up all the time and take turns: in each round each side runs once, and each round begins with another
side. Before and after each run the benchmark waits until no side computes, and then reads memory for 0.1 s. Threads
spin for a while after a run: OpenMP's for some milliseconds (vLLM itself sets KMP_BLOCKTIME to 5), and the reader of
vLLM's queue for a second, so memory is read about 1.1 s after a run of vLLM and 0.1 s after a run of ours.
`idle_cpus` is the most CPUs that the other sides used on average during a run: about 0 says that they were idle. The
benchmark fails if a run's times do not fit when it was asked for, or if the machine's clocks do not agree on a run.

`rounds` has all runs in their order, each with the memory before and after. Where these rates differ by more than 20%
the machine changed during the run (`straddles`): such runs are marked and counted, and kept. `ratio` (over vLLM) and
`split_price` (the share of one process's rate that the services lose) are medians of the rounds' own figures.

`step_s` is where the median run's time went: the layers' matrix products, attention, the output projection, the rest of
the steps (norms, RoPE, sampling, staging) and waiting for a plan. `roofline_share` is the least time that its steps
could take over the time that they took. A step takes at least the longer of two times: that of its bytes at `read_gb_s`
and that of its operations at `matmul_tflop_s` (see roofline.py). `read_gb_s` is the higher rate of before and after
that run. `matmul_tflop_s` is oneDNN's rate, the higher one of before and after the whole benchmark: we assume that a
change of the machine changes what memory gives to the cores, and not how fast they compute. So a run that straddles is
compared with the better machine, and its share is rather too low. The share is too high if the machine was better only
in the middle of the run, which the benchmark cannot see, or if something else took memory or cores from the
measurements. For int8 there is no share: its bytes and operations differ.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from benchmarks.cpu.cpu_ceilings import MemoryReader, measure_matmul
from benchmarks.cpu.report import (
    IN_PROCESS,
    SERVICES,
    VLLM,
    against_one_process,
    against_vllm,
    seconds_by_kind,
    steps_of,
    turn_figures,
)
from benchmarks.cpu.side_process import SideProcess
from benchmarks.cpu.take_turns import RunRequests, Turn, started, take_turns
from benchmarks.rig.ceilings import Ceilings
from benchmarks.rig.checkpoints import DTYPE, SHAPES, write_checkpoint
from benchmarks.rig.children import module_arguments
from benchmarks.rig.machine import all_threads
from benchmarks.rig.roofline import WorkModel, least_time
from benchmarks.rig.runs import median_run
from benchmarks.rig.service_load import TEMPERATURE, pool_positions, submits, with_outputs
from benchmarks.rig.services import Services, steps_in
from benchmarks.rig.workloads import WorkloadRequest, upper_halves
from common.logging import setup_logging
from executor_svc.model.families import read_config

WARM_UP_TOKENS = 8


@contextmanager
def services_side(services: Services, requests: Sequence[WorkloadRequest], folder: Path) -> Iterator[RunRequests]:
    """The side of both services, which leave their steps in the folder when they stop."""
    with services.running(folder) as client:
        yield lambda name, limit: client.run(
            submits(requests if limit is None else with_outputs(requests, limit), name)
        )


def in_process_side(arguments: Sequence[str], requests: Sequence[WorkloadRequest]) -> SideProcess:
    """The side of scheduler and runner in one process, which is not this one."""
    command = [sys.executable, *module_arguments("cpu.in_process_side"), *arguments]
    return SideProcess("the runner in one process", command, first_message(requests))


def vllm_side(python: str, checkpoint: Path, requests: Sequence[WorkloadRequest]) -> SideProcess:
    """The side of vLLM, which is installed in another Python."""
    runtime = Path(python).parent.parent / "lib" / "libiomp5.so"  # vLLM asks to preload it
    environment = os.environ | ({"LD_PRELOAD": str(runtime)} if runtime.exists() else {})
    script = Path(__file__).with_name("peer_vllm.py")
    return SideProcess("vLLM", [python, str(script), str(checkpoint)], first_message(requests), environment)


def first_message(requests: Sequence[WorkloadRequest]) -> dict[str, Any]:
    """The first message to a side in a process of its own."""
    prompts = [[request.prompt.tolist(), request.num_output] for request in requests]
    return {"requests": prompts, "temperature": TEMPERATURE}


def run_rounds(
    contexts: Mapping[str, AbstractContextManager[RunRequests]],
    num_rounds: int,
    read_bandwidth: Callable[[], float],
) -> list[dict[str, Turn]]:
    """Start all sides one after the other, give each a short run, and let them take turns."""
    with ExitStack() as stack:
        sides = {name: stack.enter_context(started(context)) for name, context in contexts.items()}
        for side in sides.values():
            side.run("warm-up", WARM_UP_TOKENS)
        return take_turns(sides, num_rounds, read_bandwidth)


def find_checkpoint(model: str, shape: str, temporary: Path) -> Path:
    """The model's folder. If `model` is a shape's name or no checkpoint, one with random weights is written."""
    folder = temporary / "checkpoint" if model in SHAPES else Path(model)
    if not (folder / "config.json").exists():
        write_checkpoint(folder, SHAPES.get(model, SHAPES[shape]))
    return folder


@click.command(context_settings={"show_default": True})
@click.option("--model", default="0.6B", help=f"Folder of a checkpoint, or a shape: {', '.join(SHAPES)}.")
@click.option(
    "--shape",
    type=click.Choice(list(SHAPES)),
    default="0.6B",
    help="Shape of the checkpoint to write, if it is missing.",
)
@click.option("--num-seqs", default=32, type=click.IntRange(1), help="Requests.")
@click.option("--max-prompt", default=128, type=click.IntRange(1), help="Tokens of the longest prompt.")
@click.option("--max-output", default=128, type=click.IntRange(1), help="Tokens of the longest answer.")
@click.option("--repeats", default=3, type=click.IntRange(1), help="Rounds; in each, each side runs once.")
@click.option(
    "--quantization",
    type=click.Choice(["none", "int8"]),
    default="none",
    help="How our weights are stored; the peer's stay in bfloat16, which is not the same work.",
)
@click.option("--in-process", "with_in_process", is_flag=True, help="Also run scheduler and runner in one process.")
@click.option("--peer", type=click.Choice(["vllm"]), help="Also run the peer's CPU build on the same requests.")
@click.option("--peer-python", default=sys.executable, help="The Python that has the peer.")
@click.option(
    "--executor-option", "executor_options", multiple=True, help="An option of the executor, e.g. --no-pin-threads."
)
@click.option(
    "--scheduler-option", "scheduler_options", multiple=True, help="An option of the scheduler, e.g. --no-journal."
)
def main(
    model: str,
    shape: str,
    num_seqs: int,
    max_prompt: int,
    max_output: int,
    repeats: int,
    quantization: str,
    with_in_process: bool,
    peer: str | None,
    peer_python: str,
    executor_options: tuple[str, ...],
    scheduler_options: tuple[str, ...],
) -> None:
    """Measure both services on a CPU, and print the figures."""
    setup_logging("bench", "warning")
    requests = upper_halves(num_seqs, max_prompt, max_output)
    prompt_tokens, output_tokens = (
        sum(x) for x in zip(*((len(r.prompt), r.num_output) for r in requests), strict=True)
    )
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as temporary:
        checkpoint = find_checkpoint(model, shape, Path(temporary))
        config = read_config(checkpoint)
        work_model = WorkModel(config, DTYPE.itemsize)
        kv_gib = pool_positions(requests) * work_model.kv_bytes_a_token / 2**30
        pool = ("--kv-cache-memory", f"{kv_gib:.6f}", "--max-num-seqs", str(max(64, num_seqs)))
        model_options = ("--model", str(checkpoint), "--device", "cpu", "--quantization", quantization)
        arguments = (*model_options, *pool, *executor_options)
        services = Services(arguments, scheduler_options, ranks=1)
        memory, matmul = MemoryReader(all_threads()), measure_matmul(config, all_threads())
        contexts: dict[str, AbstractContextManager[RunRequests]] = {}
        vllm = vllm_side(peer_python, checkpoint, requests) if peer else None
        if vllm is not None:
            contexts[VLLM] = vllm
        contexts[SERVICES] = services_side(services, requests, Path(temporary, "out"))
        if with_in_process:
            contexts[IN_PROCESS] = in_process_side(arguments, requests)
        rounds = run_rounds(contexts, repeats, memory.bytes_per_s)
        matmul = max(matmul, measure_matmul(config, all_threads()))
        all_steps = steps_in(Path(temporary, "out"))
    runs = [turns[SERVICES].run for turns in rounds]
    run = median_run(runs)
    median_round = runs.index(run)
    steps = steps_of(run, all_steps)
    seconds = run.end_s - run.start_s
    ceilings = Ceilings(copy=rounds[median_round][SERVICES].read, matmul=matmul)
    least_s = least_time(map(work_model.work, steps), ceilings, 1)
    all_turns = [turn for turns in rounds for turn in turns.values()]
    figures = {
        "model": model,
        "quantization": quantization,
        "num_seqs": num_seqs,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "threads": all_threads(),
        "out_tok_s": round(run.tokens_per_s, 2),
        "out_tok_s_runs": [round(each.tokens_per_s, 2) for each in runs],
        "total_tok_s": round((prompt_tokens + output_tokens) / seconds, 2),
        "median_round": median_round,
        "steps": len(steps),
        "s": round(seconds, 3),
        "step_s": seconds_by_kind(run, steps),
        "read_gb_s": round(ceilings.copy / 1e9, 2),
        "matmul_tflop_s": round(ceilings.matmul / 1e12, 3),
        "roofline_tok_s": round(run.num_tokens / least_s, 2) if quantization == "none" else None,
        "roofline_share": round(least_s / seconds, 4) if quantization == "none" else None,
        "in_process": against_one_process(rounds) if with_in_process else None,
        "peer": {**vllm.facts, **against_vllm(rounds)} if vllm is not None else None,
        "rounds": [{name: turn_figures(turn) for name, turn in turns.items()} for turns in rounds],
        "straddling_runs": sum(turn.straddles for turn in all_turns),
        "idle_cpus": round(max(turn.others_cpus for turn in all_turns), 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
