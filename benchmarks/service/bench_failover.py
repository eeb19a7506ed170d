"""What streams see when the executor that computes them goes away: without a keeper, with one, and with a standby.

The services are real processes on this machine. `--model` is a folder of a checkpoint with a tokenizer, or a shape such
as 0.6B with random weights and the demo model's vocabulary; `--executor-option` chooses a device, such as
`--executor-option=--device=cuda`. Streams run without end; the fault strikes again and again while all of them get
tokens. In each setting the next fault comes when everything is as it was before the first one.

| setting | executors | fault |
|---|---|---|
| sibling | two, no keeper | SIGKILL of the busier one, started again when all streams go on |
| alone | one, no keeper | SIGKILL; its successor is started at once |
| keeper | one and a keeper | SIGKILL; its successor is started at once, and finds weights and KV memory |
| keeper+sibling | two and a keeper | SIGKILL of the busier one; its successor is started at once |
| standby | one, a keeper and a standby | SIGKILL; the process that was killed is started again as the standby |
| rollout | one, a keeper and a standby | it is told to leave, and started again as the standby |

A stream's gap is the longest time between two of its tokens that the fault lies in or before; its pause is the gap less
two of its median times between tokens, since one step is lost and one repeated. `gap_ms_worst` has one gap of each
fault, the longest. `recomputed_tokens` are positions that were computed again although they had been computed before.
`start_ms_p50` is from a process's start until it is ready. `lost_ms`, `gone_ms`, `leased_ms`, `mapped_ms` and
`joined_ms` are when the steps of a takeover were seen, from the signal on (`swap_times.py`).
One JSON line is printed for each setting.

Example: python benchmarks/bench_failover.py --kills 20 --streams 16 --prompt-tokens 1000
"""

import asyncio
import json
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import httpx

from benchmarks.rig.named_model import model_folder
from benchmarks.service.disturbed_fleet import DisturbedFleet, Setting, served_model, started
from benchmarks.service.endless_streams import EndlessStreams
from benchmarks.service.swap_times import swap_times, teardowns

POOL_TOKENS = 65_536
NUM_BEFORE = 24  # tokens of each stream before a fault, from which its median time between tokens comes
NUM_AFTER = 8


@click.command(context_settings={"show_default": True})
@click.option("--kills", default=20, type=click.IntRange(1), help="How often the fault strikes in each setting.")
@click.option("--streams", "num_streams", default=16, type=click.IntRange(1), help="Streams that run at once.")
@click.option("--prompt-tokens", default=1000, type=click.IntRange(1), help="Of each stream; all differ.")
@click.option("--max-tokens", default=900, type=click.IntRange(1), help="Of each answer; then the next one begins.")
@click.option(
    "--setting",
    "settings",
    multiple=True,
    type=click.Choice([setting.value for setting in Setting]),
    help="What to measure.  [default: all]",
)
@click.option(
    "--model", help="Folder of a checkpoint with a tokenizer, or a shape.  [default: the embedded demo model]"
)
@click.option("--dtype", default="auto", help="Of the executors.")
@click.option(
    "--threads", type=click.IntRange(1), help="Of each executor.  [default: CPUs, shared by two that compute]"
)
@click.option(
    "--executor-option",
    "executor_options",
    multiple=True,
    help="A further option of the executors, e.g. --device=cuda; with one, none for CPUs is given.",
)
def main(
    kills: int,
    num_streams: int,
    prompt_tokens: int,
    max_tokens: int,
    settings: tuple[str, ...],
    model: str | None,
    dtype: str,
    threads: int | None,
    executor_options: tuple[str, ...],
) -> None:
    """Let executors go away under streams, and measure what the streams see."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = model_folder(model, Path(scratch))
        for name in settings or [setting.value for setting in Setting]:
            setting = Setting(name)
            shared = max(1, (os.cpu_count() or 1) // setting.num_executors)
            on_a_cpu = ("--threads", str(threads or shared), "--num-blocks", str(POOL_TOKENS // 16))
            options = ("--dtype", dtype, *(executor_options or on_a_cpu))
            figures = _measure(setting, kills, (num_streams, prompt_tokens, max_tokens), folder, options)
            about = {"model": model or "baton-demo", "dtype": dtype, "streams": num_streams}
            sizes = {"prompt_tokens": prompt_tokens, "faults": kills}
            print(json.dumps({"setting": name} | about | sizes | figures), flush=True)


def _measure(
    setting: Setting, kills: int, load: tuple[int, int, int], model: str | None, options: tuple[str, ...]
) -> dict[str, Any]:
    """One setting's figures."""
    with started(setting, model, options) as (fleet, folder):
        streams = EndlessStreams(fleet.spec.url, served_model(fleet), *load)
        disturbed = DisturbedFleet(fleet, setting)
        gaps, pauses, figures = asyncio.run(_disturb(disturbed, kills, streams))
        times = swap_times(folder, disturbed.signals)
        if setting is Setting.ROLLOUT:
            times["teardown_ms"] = teardowns(folder)
    figures |= {"gaps": len(gaps), **_percentiles("gap_ms", gaps), **_percentiles("pause_ms", pauses)}
    for name, values in times.items():
        figures |= _percentiles(name, values) if values else {}
    return figures


async def _disturb(
    fleet: DisturbedFleet, kills: int, streams: EndlessStreams
) -> tuple[list[float], list[float], dict[str, Any]]:
    """Let the fault strike `kills` times. Returns gaps and pauses in milliseconds, and other figures."""
    gaps: list[float] = []
    pauses: list[float] = []
    starts: list[float] = []
    worst: list[float] = []
    async with httpx.AsyncClient(base_url=fleet.url, trust_env=False) as http:
        streaming = asyncio.create_task(streams.run())
        recomputed = adopted = 0
        for _ in range(kills):
            await fleet.wait_until_whole(http)
            await streams.progress(NUM_BEFORE, streaming)
            before = await fleet.status(http)
            steady = [median(later - earlier for earlier, later in pairwise(times)) for times in streams.arrivals]
            at, num_affected = time.monotonic(), await fleet.strike(http)
            await streams.progress(NUM_AFTER, streaming)
            seen = streams.longest_since(at)
            affected = sorted(range(len(seen)), key=seen.__getitem__)[-num_affected:]
            gaps += [1000 * seen[i] for i in affected]
            pauses += [1000 * max(0.0, seen[i] - 2 * steady[i]) for i in affected]
            worst.append(round(gaps[-1], 1))
            starts.append(1000 * await fleet.mend(http))
            after = await fleet.status(http)
            recomputed += after["recomputed_tokens"] - before["recomputed_tokens"]
            adopted += after["pools_adopted"] - before["pools_adopted"]
        streaming.cancel()
        await asyncio.wait([streaming])
    figures: dict[str, Any] = {"recomputed_tokens": recomputed, "pools_adopted": adopted, "gap_ms_worst": worst}
    return gaps, pauses, figures | {"start_ms_p50": round(median(starts), 1)}


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    percentiles = quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    return {f"{name}_p50": round(percentiles[49], 1), f"{name}_p99": round(percentiles[98], 1)}


if __name__ == "__main__":
    main()
