"""What could be gained if tokens that a grammar forces were appended without a step of their own.

    python benchmarks/bench_forced_tokens.py
    python benchmarks/bench_forced_tokens.py --style compact --repeats 9

Baton does not append them. This says what it would gain at most: the executor's steps alone are timed, and what forced
tokens cost elsewhere is left out (a row that may get several tokens has one plan in flight, and a GPU has no graph of a
decode step for it).

Tickets in JSON are cut into the tokens that each step would give: a sampled one, and those that the schema's grammar
forces after it. A step then computes a row of as many tokens as the step before gave. In each round steps of such rows
alternate with steps of one token a row, after contexts of equal length.

One JSON line for each style of whitespace and number of rows. `share` is the part of all tokens that is forced,
`ratio` the rate of tokens with forced ones appended over the rate without, the median of the rounds' ratios, and `ms`
and `ms_without` are medians of steps.
"""

import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
from llguidance import LLTokenizer

from benchmarks.constraints.forced_tokens import STYLES, documents, grouped
from benchmarks.constraints.tokenizer_files import write_tokenizer
from benchmarks.rig.checkpoints import DTYPE, SHAPES, write_checkpoint
from benchmarks.rig.in_process import start_runner
from benchmarks.rig.machine import all_threads, processor
from benchmarks.rig.roofline import WorkModel
from common.logging import setup_logging
from executor_svc.model.families import read_config
from executor_svc.runner.runner import Runner
from executor_svc.runner.trial_plans import trial_plan

CONTEXT = 128
NUM_DOCUMENTS = 40
POOL_POSITIONS = 4096


def measure(runner: Runner[Any], rows: int, lengths: Sequence[int], repeats: int) -> Iterator[tuple[float, float]]:
    """Milliseconds of a step of rows whose lengths are drawn from these, and of one of single tokens, in turn."""
    rng = random.Random(rows)
    block_size = runner.limits.block_size
    single = trial_plan([1] * rows, block_size, computed=CONTEXT)
    runner.run(single)
    for _ in range(repeats):
        several = trial_plan(rng.choices(lengths, k=rows), block_size, computed=CONTEXT)
        times = []
        for plan in (several, single):
            start_s = time.monotonic()
            runner.run(plan)
            times.append(1e3 * (time.monotonic() - start_s))
        yield times[0], times[1]


@click.command(context_settings={"show_default": True})
@click.option("--style", "styles", multiple=True, type=click.Choice(list(STYLES)), help="Only these styles.")
@click.option(
    "--model", default="0.6B", type=click.Choice(list(SHAPES)), help="Shape of the model; weights are random."
)
@click.option("--rows", multiple=True, default=(1, 8, 32), type=click.IntRange(1), help="Rows of a step.")
@click.option("--repeats", default=25, type=click.IntRange(1), help="Rounds of each.")
def main(styles: tuple[str, ...], model: str, rows: tuple[int, ...], repeats: int) -> None:
    """Measure what appending forced tokens could gain on a CPU, and print the figures."""
    setup_logging("bench", "warning")
    threads = all_threads()  # the executor binds this thread to one CPU
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        checkpoint = Path(folder)
        write_checkpoint(checkpoint, SHAPES[model])
        config = read_config(checkpoint)
        name = write_tokenizer(checkpoint, config.vocab_size, synthetic=False)
        tokenizer = LLTokenizer(str(checkpoint / "tokenizer.json"), n_vocab=config.vocab_size)
        kv_gib = POOL_POSITIONS * WorkModel(config, DTYPE.itemsize).kv_bytes_a_token / 2**30
        pool = ("--kv-cache-memory", f"{kv_gib:.6f}", "--max-num-seqs", str(max(rows)))
        runner = start_runner(("--model", folder, "--device", "cpu", *pool))[0]
        for style in styles or STYLES:
            overrides, separators = STYLES[style]
            groups = [grouped(document, overrides, tokenizer) for document in documents(NUM_DOCUMENTS, separators)]
            lengths = [length for group in groups for length in group]
            for num_rows in rows:
                several, single = zip(*measure(runner, num_rows, lengths, repeats), strict=True)
                tokens_a_row = sum(lengths) / len(lengths)
                ratios = [
                    tokens_a_row * without / with_them for with_them, without in zip(several, single, strict=True)
                ]
                figures = {
                    "style": style,
                    "rows": num_rows,
                    "share": round(1 - 1 / tokens_a_row, 4),
                    "ratio": round(median(ratios), 4),
                    "ms": round(median(several), 2),
                    "ms_without": round(median(single), 2),
                    "repeats": repeats,
                    "model": model,
                    "processor": processor(),
                    "threads": threads,
                    "tokenizer": name,
                }
                print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
