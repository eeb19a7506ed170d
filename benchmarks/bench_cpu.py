"""Both services on a CPU with random requests, against the roofline of the same run and vLLM's CPU build.

    python benchmarks/bench_cpu.py --model 0.6B --num-seqs 32 --max-prompt 128 --max-output 128
    python benchmarks/bench_cpu.py --model /tmp/qwen3 --peer vllm --peer-python /opt/vllm/bin/python

All requests come at once; prompts and answers have half the largest length to all of it; temperature 0.6, no end but
the length. Token ids go through the scheduler's ZeroMQ socket for frontends; timed is from the first request sent to
the last token received, in the median of the repeats. Prints one JSON line.

`step_s` is where that run's time went: the layers' matrix products, attention, the output projection, the rest of the
steps (norms, RoPE, sampling, staging) and waiting for a plan. `roofline_share` is the least time its steps could take
over what it took: each the longer one of its bytes at `read_gb_s` and its operations at `matmul_tflop_s`, the best that
memory reads and oneDNN's products did before and after (see roofline.py).
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import click
from checkpoints import DTYPE, SHAPES, write_checkpoint
from cpu_ceilings import all_threads, better, measure_cpu_ceilings
from gpu_report import median_run, rates
from gpu_services import Services, steps_in
from gpu_workload import TEMPERATURE, Run, pool_positions, submits, with_outputs
from in_process import in_process
from roofline import WorkModel, least_time
from step_records import Step, between
from timed_kernels import KINDS
from workloads import Request, upper_halves

from common.logging import setup_logging
from executor_svc.config import read_config
from scheduler_svc.scheduler import SchedulerConfig

WARM_UP_TOKENS = 8
PEER_TIMEOUT_S = 1200


def run_services(services: Services, requests: Sequence[Request], repeats: int, folder: Path) -> list[Run]:
    """Runs through both services; their steps are in the folder afterwards."""
    with services.running(folder) as client:
        client.run(submits(with_outputs(requests, WARM_UP_TOKENS), "warm-up"))
        return [client.run(submits(requests, f"run-{repeat}")) for repeat in range(repeats)]


def run_in_one(arguments: Sequence[str], requests: Sequence[Request], repeats: int) -> list[Run]:
    """The same in one process: this one, whose main thread is pinned by it."""
    setup_logging("bench", "warning")
    with in_process(arguments, SchedulerConfig(max_waiting=len(requests))) as process:
        process.run(submits(with_outputs(requests, WARM_UP_TOKENS), "warm-up"))
        return [process.run(submits(requests, f"run-{repeat}")) for repeat in range(repeats)]


def in_child(arguments: Sequence[str], requests: Sequence[Request], repeats: int) -> list[Run]:
    """`run_in_one` in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run_in_one, arguments, requests, repeats).result()


def run_peer(python: str, checkpoint: Path, requests: Sequence[Request], repeats: int) -> dict[str, Any]:
    """vLLM's figures.

    Raises:
        RuntimeError: it failed.
    """
    wanted = {
        "requests": [[request.prompt.tolist(), request.num_output] for request in requests],
        "temperature": TEMPERATURE,
        "warm_up_tokens": WARM_UP_TOKENS,
        "repeats": repeats,
    }
    runtime = Path(python).parent.parent / "lib" / "libiomp5.so"  # vLLM asks for it to be preloaded
    environment = os.environ | ({"LD_PRELOAD": str(runtime)} if runtime.exists() else {})
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "requests.json"), Path(folder, "figures.json")
        asked.write_text(json.dumps(wanted))
        command = [python, str(Path(__file__).with_name("peer_vllm.py")), *map(str, (checkpoint, asked, answered))]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=PEER_TIMEOUT_S, env=environment
        )
        if done.returncode:
            raise RuntimeError(f"vLLM ended with {done.returncode}: {done.stderr[-2000:]}")
        figures: dict[str, Any] = json.loads(answered.read_text())
    return figures


def split(run: Run, steps: Sequence[Step]) -> dict[str, float]:
    """Seconds of a run by what they went into."""
    seconds = {kind: sum(getattr(step, f"{kind}_s") for step in steps) for kind in KINDS}
    computing = sum(step.launch_s for step in steps)
    seconds["rest"] = computing - sum(seconds.values())
    seconds["waiting"] = run.end_s - run.start_s - computing
    return {kind: round(value, 4) for kind, value in seconds.items()}


def ratios(ours: Sequence[Run], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Ours over the peer's, whose runs were before and after ours: of the medians, and how far it could be off (our
    slowest run over its fastest, our fastest over its slowest)."""
    mine = [run.tokens_per_s for run in ours]
    theirs = before["tok_s_runs"] + after["tok_s_runs"]
    return {
        "vllm": before["vllm"],
        "tok_s_before": before["tok_s_runs"],
        "tok_s_after": after["tok_s_runs"],
        "ratio": round(median(mine) / median(theirs), 3),
        "ratio_range": [round(min(mine) / max(theirs), 3), round(max(mine) / min(theirs), 3)],
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
@click.option("--repeats", default=3, type=click.IntRange(1), help="Runs of each side.")
@click.option("--in-process", "with_in_process", is_flag=True, help="Also without the split in two services.")
@click.option("--peer", type=click.Choice(["vllm"]), help="Run its CPU build on the same requests, before and after.")
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
        arguments = ("--model", str(checkpoint), "--device", "cpu", *pool, *executor_options)
        services = Services(arguments, scheduler_options, ranks=1)
        before = run_peer(peer_python, checkpoint, requests, repeats) if peer else None
        ceilings = measure_cpu_ceilings(config, all_threads())
        runs = run_services(services, requests, repeats, Path(temporary, "out"))
        ceilings = better(ceilings, measure_cpu_ceilings(config, all_threads()))
        in_one = in_child(arguments, requests, repeats) if with_in_process else None
        after = run_peer(peer_python, checkpoint, requests, repeats) if peer else None
        run = median_run(runs)
        steps = between(steps_in(Path(temporary, "out")), run.start_s, run.end_s)
        seconds = run.end_s - run.start_s
        least_s = least_time(map(work_model.work, steps), ceilings, 1)
    figures = {
        "model": model,
        "num_seqs": num_seqs,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "threads": all_threads(),
        "out_tok_s": round(run.tokens_per_s, 2),
        "out_tok_s_runs": [round(each.tokens_per_s, 2) for each in runs],
        "total_tok_s": round((prompt_tokens + output_tokens) / seconds, 2),
        "steps": len(steps),
        "s": round(seconds, 3),
        "step_s": split(run, steps),
        "read_gb_s": round(ceilings.copy / 1e9, 2),
        "matmul_tflop_s": round(ceilings.matmul / 1e12, 3),
        "roofline_tok_s": round(run.num_tokens / least_s, 2),
        "roofline_share": round(least_s / seconds, 4),
        "in_process": rates(in_one),
        "peer": ratios(runs, before, after) if before and after else None,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
