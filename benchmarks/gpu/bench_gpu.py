"""nano-vllm's bench workload through both services, against the same in one process, the roofline and transformers.

    python benchmarks/bench_gpu.py --model 0.6B --peer transformers
    python benchmarks/bench_gpu.py --model tiny --device cpu --num-seqs 4 --max-tokens 16 --profile-steps 4

The workload: 256 requests at once, `random.seed(0)`, prompts and outputs of 100 to 1,024 tokens, temperature 0.6;
sequences end only at their length, so there are 133,966 output tokens. The model has random weights. Token ids go
through the scheduler's ZeroMQ socket for frontends. The journal is on, as it is by default
(`--scheduler-option=--no-journal` turns it off). A run is timed from the first request sent to the last token received.
The sides of a comparison take turns where the GPU has room for both. Each side has a short run first; the median of the
repeats counts.

The benchmark prints one JSON line, and a summary to the standard error. The roofline is computed from the plans of the
service's median run and from ceilings measured before that run (see roofline.py). The profile comes from further runs
with services of their own, because a profiler slows launches down. Figures that need a GPU are null without one. Exits
with 4 if a profile on a GPU has no record of a kernel.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.gpu.report import price_of_split, roofline, summarize
from benchmarks.gpu.step_phases import phases
from benchmarks.rig.ceilings import measure_gpu_ceilings
from benchmarks.rig.checkpoints import DTYPE, SHAPES, write_checkpoint
from benchmarks.rig.children import module_arguments
from benchmarks.rig.front_client import FrontClient
from benchmarks.rig.in_process import InProcess, in_process
from benchmarks.rig.roofline import WorkModel
from benchmarks.rig.runs import TimedRun, median_run, rates
from benchmarks.rig.service_load import make_requests, pool_positions, submits, with_outputs
from benchmarks.rig.services import Profiled, Services, steps_in
from benchmarks.rig.step_profiler import ARMED, KINDS, gpu_figures, trace_file
from benchmarks.rig.step_records import between
from benchmarks.rig.workloads import WorkloadRequest
from common.logging import setup_logging
from executor_svc.model.families import read_config
from scheduler_svc.core.scheduling.config import SchedulerConfig

WARM_UP_TOKENS = 16
CEILINGS_BUDGET_S = 0.5
SPARE_BYTES = 12 * 2**30  # that two executors and this process may take together, besides weights and KV
PEER_TIMEOUT_S = 180
EMPTY_PROFILE = 4  # exit code: all was measured, but a profile has no record of the GPU
MANY_ROWS = 256  # rows of the decode steps that are profiled, or the number of requests if that is smaller


@dataclass(frozen=True)
class SidesOnGpu:
    """Both sides on one GPU: the services, and scheduler and runner in one process.

    Attributes:
        model: says what a step has to move and to compute.
        services: the services to start; the runner in one process gets the executor's arguments.
        requests: the requests of one run.
        repeats: runs of each side.
        in_one: whether to run the second side, in one process, at all. The executor must have one rank then.
        together: whether there is memory for both sides at once, so that they can take turns.
        on_gpu: whether there is a GPU, and so ceilings to compare with.
        folder: for logs, records and traces.
    """

    model: WorkModel
    services: Services
    requests: list[WorkloadRequest]
    repeats: int
    in_one: bool
    together: bool
    on_gpu: bool
    folder: Path

    def measure(self) -> dict[str, Any]:
        """Run both sides; their figures, and those of the steps of the services' median run."""
        ceilings = None
        if self.on_gpu:
            ceilings = measure_gpu_ceilings(torch.device("cuda"), CEILINGS_BUDGET_S)
            torch.cuda.empty_cache()
        service, in_one = self._run_sides()
        chosen = median_run(service)
        steps = between(steps_in(self.folder), chosen.start_s, chosen.end_s)
        return {
            "service": rates(service),
            "in_process": None if in_one is None else rates(in_one),
            "split_share": price_of_split(service, in_one),
            "roofline": roofline(chosen, steps, self.model, ceilings, self.services.ranks),
            "phases": phases(steps, launches_ahead=self.on_gpu),
        }

    def profile(self, num_steps: int) -> dict[str, Any]:
        """What the GPU does in the services' decode steps and mixed steps; None for a kind it did not see."""
        # torch finalizes CUPTI after each profile, and the next one, if it comes soon, then has no record of a kernel
        # (kineto issue 1554).
        os.environ["TEARDOWN_CUPTI"] = "0"
        folder = self.folder / "profile"
        rows = min(MANY_ROWS, len(self.requests))
        with self.services.running(folder, Profiled(rows, num_steps)) as client:
            client.run(submits(with_outputs(self.requests, WARM_UP_TOKENS), "warm-up"))
            (folder / ARMED).touch()
            client.run(submits(with_outputs(self.requests, outputs_to_profile(num_steps)), "profiled"))
        return {kind: gpu_figures(folder / trace_file(kind)) if self.on_gpu else None for kind in KINDS}

    def _run_sides(self) -> tuple[list[TimedRun], list[TimedRun] | None]:
        """The runs of the services, and the runs in one process (None if they are left out)."""
        alone = in_process(self.services.executor_arguments, SchedulerConfig(max_waiting=len(self.requests)))
        with self.services.running(self.folder) as client:
            if self.in_one and self.together:
                with alone as process:
                    through_services, in_one = self._take_turns([client, process])
                    return through_services, in_one
            (through_services,) = self._take_turns([client])
        if not self.in_one:
            return through_services, None
        with alone as process:
            (in_one,) = self._take_turns([process])
            return through_services, in_one

    def _take_turns(self, sides: Sequence[FrontClient | InProcess]) -> list[list[TimedRun]]:
        for side in sides:
            side.run(submits(with_outputs(self.requests, WARM_UP_TOKENS), "warm-up"))
        runs: list[list[TimedRun]] = [[] for _ in sides]
        for repeat in range(self.repeats):
            order = list(zip(sides, runs, strict=True))
            for side, its_runs in order if repeat % 2 == 0 else order[::-1]:
                its_runs.append(side.run(submits(self.requests, f"run-{repeat}")))
        return runs


def outputs_to_profile(num_steps: int) -> int:
    """Tokens of each request, enough for more than `num_steps` decode steps of all requests after all prompts."""
    return 2 * num_steps + 64


def both_fit(weight_bytes: int, kv_bytes: int) -> bool:
    """Whether the GPU has memory for two executors."""
    return 2 * (weight_bytes + kv_bytes) + SPARE_BYTES < torch.cuda.mem_get_info()[0]


def run_peer(checkpoint: Path, device: str, sizes: dict[str, int | None]) -> dict[str, Any]:
    """transformers' figures, or its error: our own figures are still worth printing."""
    options = [part for name, value in sizes.items() if value is not None for part in (name, str(value))]
    module = module_arguments("gpu.peer_transformers")
    command = [sys.executable, *module, str(checkpoint), "--device", device, *options]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PEER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"tok_s": None, "error": f"it took more than {PEER_TIMEOUT_S} s"}
    if done.returncode:
        return {"tok_s": None, "error": done.stderr[-2000:]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@click.command(context_settings={"show_default": True})
@click.option("--model", "shape", type=click.Choice(list(SHAPES)), default="0.6B", help="Shape of the model.")
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the weights, written if it has no config.json.  [default: a temporary folder]",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--num-seqs", default=256, type=click.IntRange(1), help="Requests.")
@click.option("--max-tokens", type=click.IntRange(1), help="Cut prompts and outputs to this many tokens.")
@click.option("--repeats", default=3, type=click.IntRange(1), help="Runs of each side.")
@click.option("--enforce-eager", is_flag=True, help="No CUDA graphs.")
@click.option("--attention", type=click.Choice(["auto", "flash_attn", "triton"]), default="auto")
@click.option("--block-size", type=click.IntRange(1), help="Positions in a KV block.  [default: the executor's]")
@click.option("--tensor-parallel", "ranks", default=1, type=click.IntRange(1), help="Ranks of the executor.")
@click.option(
    "--executor-option", "executor_options", multiple=True, help="An option of the executor, e.g. --threads=1."
)
@click.option(
    "--scheduler-option", "scheduler_options", multiple=True, help="An option of the scheduler, e.g. --no-journal."
)
@click.option("--profile-steps", default=100, type=click.IntRange(0), help="Decode steps to profile, 0 for none.")
@click.option(
    "--peer", type=click.Choice(["transformers"]), help="Also run the peer's continuous batching on the same workload."
)
@click.option(
    "--in-process/--no-in-process",
    "with_in_process",
    default=True,
    help="Also run scheduler and runner in one process.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that keeps the services' logs, the steps and the traces.  [default: they are not kept]",
)
def main(
    shape: str,
    checkpoint: Path | None,
    device: str,
    num_seqs: int,
    max_tokens: int | None,
    repeats: int,
    enforce_eager: bool,
    attention: str,
    block_size: int | None,
    ranks: int,
    executor_options: tuple[str, ...],
    scheduler_options: tuple[str, ...],
    profile_steps: int,
    peer: str | None,
    with_in_process: bool,
    out: Path | None,
) -> None:
    """Measure both services on a GPU, and print the figures."""
    setup_logging("bench", "info")
    on_gpu = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise click.UsageError("torch finds no CUDA device")
    device = "cuda" if on_gpu else "cpu"
    requests = make_requests(num_seqs, max_tokens)
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as temporary:
        folder = checkpoint or Path(temporary, "checkpoint")
        if not (folder / "config.json").exists():
            write_checkpoint(folder, SHAPES[shape], torch.device(device))
        model = WorkModel(read_config(folder), DTYPE.itemsize)
        profiled = with_outputs(requests, outputs_to_profile(profile_steps))
        kv_bytes = max(pool_positions(requests), pool_positions(profiled)) * model.kv_bytes_a_token
        arguments = ["--device", device, "--attention", attention]
        arguments += ["--kv-cache-memory", f"{kv_bytes / ranks / 2**30:.6f}"]  # of each rank
        arguments += [] if block_size is None else ["--block-size", str(block_size)]
        arguments += ["--enforce-eager"] if enforce_eager else []
        arguments += executor_options
        services = Services(("--model", str(folder), *arguments), scheduler_options, ranks)
        in_one = with_in_process and ranks == 1
        together = in_one and (not on_gpu or both_fit(SHAPES[shape].num_bytes(), kv_bytes))
        folder_out = out or Path(temporary, "out")
        bench = SidesOnGpu(model, services, requests, repeats, in_one, together, on_gpu, folder_out)
        sizes = {"--num-seqs": num_seqs, "--max-tokens": max_tokens, "--repeats": repeats}
        figures = {
            "model": shape,
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "torch": torch.__version__,
            "num_seqs": num_seqs,
            "prompt_tokens": sum(len(request.prompt) for request in requests),
            "output_tokens": sum(request.num_output for request in requests),
            "repeats": repeats,
            "executor_options": arguments,
            "scheduler_options": list(scheduler_options),
            "journal": services.has_journal,
            "ranks": ranks,
            "took_turns": together,
            **bench.measure(),
            "gpu": bench.profile(profile_steps) if profile_steps else None,
            "peer": run_peer(folder, device, sizes) if peer else None,
        }
    print(json.dumps(figures))
    click.echo(summarize(figures), err=True)
    sys.exit(EMPTY_PROFILE if any("error" in (window or {}) for window in (figures["gpu"] or {}).values()) else 0)


if __name__ == "__main__":
    main()
