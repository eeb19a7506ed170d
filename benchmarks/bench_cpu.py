"""Both services on a CPU with random requests, against the roofline of the same run and vLLM's CPU build.

    python benchmarks/bench_cpu.py --model 0.6B --num-seqs 32 --max-prompt 128 --max-output 128
    python benchmarks/bench_cpu.py --model /tmp/qwen3 --peer vllm --peer-python /opt/vllm/bin/python --in-process

All requests come at once; prompts and answers have half the largest length to all of it; temperature 0.6, no end but
the length. Token ids go through the scheduler's ZeroMQ socket for frontends; timed is from the first request sent to
the last token received. Prints one JSON line, whose headline is the median run of the services.

All sides are up all the time and take turns: in each round each runs once, and each round begins with another one.
Before and after each run the benchmark waits until no side computes, and then reads memory for 0.1 s. Threads spin for
a while after a run: OpenMP's for some milliseconds (vLLM itself sets KMP_BLOCKTIME to 5), and the reader of vLLM's
queue for a second, so memory is read about 1.1 s after a run of vLLM's and 0.1 s after one of ours.
`idle_cpus` says that the others were idle during each run: the most CPUs that they used on average. A run whose times
do not fit when it was asked for, or on which the machine's clocks do not agree, ends the benchmark.

`rounds` has all runs in their order, each with the memory before and after. Where these differ by more than 20% the
machine changed during the run (`straddles`): such runs are marked and counted, and kept. `ratio` (over vLLM) and
`split_price` (the share of one process's rate that the services lose) are medians of what each round says by itself.

`step_s` is where the median run's time went: the layers' matrix products, attention, the output projection, the rest of
the steps (norms, RoPE, sampling, staging) and waiting for a plan. `roofline_share` is the least time its steps could
take over what it took: each the longer one of its bytes at `read_gb_s` and its operations at `matmul_tflop_s` (see
roofline.py). `read_gb_s` is the higher one of before and after that very run, and `matmul_tflop_s`, oneDNN's, that of
before and after the whole benchmark: it is taken for granted that other cores compute as fast, and that only what
memory gives them differs. So a run that straddles is held to the better machine, and its share is rather too low. It is
too high if the machine was better only in the middle of the run, which nothing here can see, or if something else took
memory or cores from the measurements. For int8 there is none: its bytes and operations are others.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click
from checkpoints import DTYPE, SHAPES, write_checkpoint
from cpu_ceilings import MemoryReader, all_threads, measure_matmul
from gpu_report import median_run
from gpu_services import Services, steps_in
from gpu_workload import TEMPERATURE, Run, pool_positions, submits, with_outputs
from kernel_timing import Ceilings
from roofline import WorkModel, least_time
from side_process import SideProcess
from step_records import Step, between
from take_turns import RunRequests, Turn, ratios, started, take_turns
from timed_kernels import KINDS
from workloads import Request, upper_halves

from common.logging import setup_logging
from executor_svc.model.config import read_config

WARM_UP_TOKENS = 8
SERVICES, IN_PROCESS, VLLM = "services", "in_process", "vllm"


@contextmanager
def services_side(services: Services, requests: Sequence[Request], folder: Path) -> Iterator[RunRequests]:
    """Both services; their steps are in the folder afterwards."""
    with services.running(folder) as client:
        yield lambda name, limit: client.run(
            submits(requests if limit is None else with_outputs(requests, limit), name)
        )


def in_process_side(arguments: Sequence[str], requests: Sequence[Request]) -> SideProcess:
    """The same in one process, another one."""
    script = Path(__file__).with_name("in_process_side.py")
    return SideProcess("the runner in one process", [sys.executable, str(script), *arguments], wanted(requests))


def vllm_side(python: str, checkpoint: Path, requests: Sequence[Request]) -> SideProcess:
    """vLLM, which another Python has."""
    runtime = Path(python).parent.parent / "lib" / "libiomp5.so"  # vLLM asks for it to be preloaded
    environment = os.environ | ({"LD_PRELOAD": str(runtime)} if runtime.exists() else {})
    script = Path(__file__).with_name("peer_vllm.py")
    return SideProcess("vLLM", [python, str(script), str(checkpoint)], wanted(requests), environment)


def wanted(requests: Sequence[Request]) -> dict[str, Any]:
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


def split(run: Run, steps: Sequence[Step]) -> dict[str, float]:
    """Seconds of a run by what they went into."""
    seconds = {kind: sum(getattr(step, f"{kind}_s") for step in steps) for kind in KINDS}
    computing = sum(step.launch_s for step in steps)
    seconds["rest"] = computing - sum(seconds.values())
    seconds["waiting"] = run.end_s - run.start_s - computing
    return {kind: round(value, 4) for kind, value in seconds.items()}


def steps_of(run: Run, steps: Sequence[Step]) -> list[Step]:
    """Those of one run.

    Raises:
        RuntimeError: they drew more or fewer tokens than the run received.
    """
    its_steps = between(steps, run.start_s, run.end_s)
    drawn = sum(step.num_samples for step in its_steps)
    if drawn != run.num_tokens:
        raise RuntimeError(f"a run received {run.num_tokens} tokens, and {drawn} are recorded")
    return its_steps


def rates(rounds: Sequence[Mapping[str, Turn]], name: str) -> dict[str, Any]:
    """Output tokens a second of a side."""
    each = [turns[name].run.tokens_per_s for turns in rounds]
    return {"tok_s": round(median(each), 2), "tok_s_runs": [round(rate, 2) for rate in each]}


def against_vllm(rounds: Sequence[Mapping[str, Turn]]) -> dict[str, Any]:
    """vLLM's rates, and ours over them in each round."""
    each = ratios(rounds, SERVICES, VLLM)
    return {
        **rates(rounds, VLLM),
        "ratio": round(median(each), 3),
        "ratio_rounds": [round(ratio, 3) for ratio in each],
    }


def against_one_process(rounds: Sequence[Mapping[str, Turn]]) -> dict[str, Any]:
    """Rates without the split, and the share of them that the split costs in each round."""
    each = [1 - ratio for ratio in ratios(rounds, SERVICES, IN_PROCESS)]
    return {
        **rates(rounds, IN_PROCESS),
        "split_price": round(median(each), 4),
        "split_price_rounds": [round(price, 4) for price in each],
    }


def listed(turn: Turn) -> dict[str, Any]:
    """A run and the memory before and after it."""
    return {
        "tok_s": round(turn.run.tokens_per_s, 2),
        "read_gb_s": [round(rate / 1e9, 2) for rate in (turn.read_before, turn.read_after)],
        "straddles": turn.straddles,
    }


def find_checkpoint(model: str, shape: str, temporary: Path) -> Path:
    """The model's folder; written with random weights if there is none, or if it is a shape's name."""
    folder = temporary / "checkpoint" if model in SHAPES else Path(model)
    if not (folder / "config.json").exists():
        write_checkpoint(folder, SHAPES.get(model, SHAPES[shape]))
    return folder


@click.command(context_settings={"show_default": True})
@click.option("--model", default="0.6B", help=f"Folder of a checkpoint, or a shape: {', '.join(SHAPES)}.")
@click.option("--shape", type=click.Choice(list(SHAPES)), default="0.6B", help="Of the checkpoint, if it is missing.")
@click.option("--num-seqs", default=32, type=click.IntRange(1), help="Requests.")
@click.option("--max-prompt", default=128, type=click.IntRange(1), help="Tokens of the longest prompt.")
@click.option("--max-output", default=128, type=click.IntRange(1), help="Tokens of the longest answer.")
@click.option("--repeats", default=3, type=click.IntRange(1), help="Rounds; in each, each side runs once.")
@click.option(
    "--quantization",
    type=click.Choice(["none", "int8"]),
    default="none",
    help="Of our weights; the peer's stay in bfloat16, which is not the same work.",
)
@click.option("--in-process", "with_in_process", is_flag=True, help="Also without the split in two services.")
@click.option("--peer", type=click.Choice(["vllm"]), help="Run its CPU build on the same requests, too.")
@click.option("--peer-python", default=sys.executable, help="The Python that has it.")
@click.option("--executor-option", "executor_options", multiple=True, help="Passed on, e.g. --no-pin-threads.")
@click.option("--scheduler-option", "scheduler_options", multiple=True, help="Likewise, e.g. --no-journal.")
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
    """Print the figures."""
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
        "step_s": split(run, steps),
        "read_gb_s": round(ceilings.copy / 1e9, 2),
        "matmul_tflop_s": round(ceilings.matmul / 1e12, 3),
        "roofline_tok_s": round(run.num_tokens / least_s, 2) if quantization == "none" else None,
        "roofline_share": round(least_s / seconds, 4) if quantization == "none" else None,
        "in_process": against_one_process(rounds) if with_in_process else None,
        "peer": {**vllm.facts, **against_vllm(rounds)} if vllm is not None else None,
        "rounds": [{name: listed(turn) for name, turn in turns.items()} for turns in rounds],
        "straddling_runs": sum(turn.straddles for turn in all_turns),
        "idle_cpus": round(max(turn.others_cpus for turn in all_turns), 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
