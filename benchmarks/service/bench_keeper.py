"""What a keeper costs while nothing goes away: the same requests to a service whose executor has its memory kept, and
to one whose executor does not.

Two services take turns, all requests at once in each turn; no prompt is asked twice. The pool has room for two turns,
and `WARM_UP` turns come before those that count: memory is taken from the system when it is first used, which costs a
service with a keeper and one without different amounts, once (`--first-use` counts these turns, in a pool that is never
used up). Two processes of one
program differ in speed for as long as they live, by several percent, so both services are started anew for each
sitting. `--model` is a folder of a checkpoint with a tokenizer, or a shape such as 0.6B with random weights. One JSON
line: ratios are with a keeper over without, the medians of the rounds' own ratios with their quartiles.

Example: python benchmarks/bench_keeper.py --model 0.6B --dtype bfloat16
"""

import asyncio
import contextlib
import json
import random
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import click
import httpx

from benchmarks.rig.machine import processor
from benchmarks.rig.named_model import model_folder
from benchmarks.service.disturbed_fleet import Setting, served_model, started
from benchmarks.service.endless_streams import VOCABULARY
from scheduler_svc.client.processes.local_fleet import LocalFleet

TIMEOUT_S = 600.0
BLOCK_SIZE = 16
WARM_UP = 3  # turns


async def tokens_per_s(fleet: LocalFleet, num_requests: int, prompt_tokens: int, max_tokens: int, seed: int) -> float:
    """Output tokens a second of so many requests at once, from the first request to the last answer."""
    rng = random.Random(seed)
    limits = httpx.Limits(max_connections=num_requests)
    async with httpx.AsyncClient(base_url=fleet.spec.url, timeout=TIMEOUT_S, limits=limits, trust_env=False) as http:
        asked = {"model": served_model(fleet), "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0.8}
        prompts = [rng.choices(VOCABULARY, k=prompt_tokens) for _ in range(num_requests)]
        start = time.perf_counter()
        bodies = [asked | {"prompt": prompt, "seed": i} for i, prompt in enumerate(prompts)]
        answers = await asyncio.gather(*(http.post("/v1/completions", json=body) for body in bodies))
        seconds = time.perf_counter() - start
    counts: list[int] = [answer.raise_for_status().json()["usage"]["completion_tokens"] for answer in answers]
    if counts != [max_tokens] * num_requests:
        raise RuntimeError(f"answers have {counts} tokens instead of {max_tokens}")
    return sum(counts) / seconds


@click.command(context_settings={"show_default": True})
@click.option("--requests", "num_requests", default=16, type=click.IntRange(1), help="At once.")
@click.option("--prompt-tokens", default=200, type=click.IntRange(1), help="Of each request.")
@click.option("--max-tokens", default=100, type=click.IntRange(1), help="Of each answer.")
@click.option("--sittings", default=4, type=click.IntRange(1), help="How often both services are started anew.")
@click.option("--rounds", default=5, type=click.IntRange(2), help="Of a sitting; in each, each service has a turn.")
@click.option("--model", help="Folder of a checkpoint, or a shape.  [default: the embedded demo model]")
@click.option("--dtype", default="auto", help="Of the executors.")
@click.option("--first-use", is_flag=True, help="Count turns in memory that was not used before.")
@click.option("--same", is_flag=True, help="Neither side has a keeper: what the machine makes of no difference.")
def main(
    num_requests: int,
    prompt_tokens: int,
    max_tokens: int,
    sittings: int,
    rounds: int,
    model: str | None,
    dtype: str,
    *,
    same: bool,
    first_use: bool,
) -> None:
    """Measure what a keeper costs, and print the figures."""
    warm_up = 1 if first_use else WARM_UP
    num_turns = warm_up + rounds if first_use else 2
    num_blocks = num_turns * num_requests * -(-(prompt_tokens + max_tokens) // BLOCK_SIZE)
    options = ("--dtype", dtype, "--num-blocks", str(num_blocks))
    settings = (Setting.ALONE if same else Setting.KEEPER, Setting.ALONE)
    found: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as scratch:
        folder = model_folder(model, Path(scratch))
        for sitting in range(sittings):
            with contextlib.ExitStack() as stack:
                order = (0, 1) if sitting % 2 else (1, 0)
                fleets = {side: stack.enter_context(started(settings[side], folder, options))[0] for side in order}
                for number in range(warm_up + rounds):
                    for side in order if number % 2 else reversed(order):
                        load = (num_requests, prompt_tokens, max_tokens, sitting * 100 + number)
                        speed = asyncio.run(tokens_per_s(fleets[side], *load))
                        if number >= warm_up:
                            found[side].append(speed)
    ratios = [kept / plain for kept, plain in zip(*found, strict=True)]
    figures = {
        "model": model or "baton-demo",
        "dtype": dtype,
        "requests": num_requests,
        "prompt_tokens": prompt_tokens,
        "max_tokens": max_tokens,
        "rounds": len(ratios),
        "first_use": first_use,
        "tok_s_ratio": [round(cut, 4) for cut in quantiles(ratios, n=4, method="inclusive")],
        "tok_s": round(median(found[0]), 1),
        "tok_s_without": round(median(found[1]), 1),
        "processor": processor(),
    }
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
