"""Whether an answer's tokens depend on where, when, and beside what they were computed.

The same requests are answered undisturbed, in other batches, and while executors are killed; each answer is compared
with the undisturbed one, token by token, and so are the tokens' log-probabilities, which show a change of bits that
turns no token. What an executor is told to compute again (a decoded token as part of a prompt) may fall the other way
at a near tie, if a kernel's sums depend on how many queries a row has. What is kept cannot.

| run | what is different from the undisturbed run |
|---|---|
| batches | the order of the requests, and how many are open at once: a third, and then twice as many |
| chunks | at most `--chunk` tokens in a plan, so that prompts are cut at places that depend on what runs beside them |
| sibling, alone, keeper, keeper+sibling, standby, rollout | executors go away: the settings of bench_failover.py |

The services are real processes on this machine; each run starts its own. `--model` is a folder of a checkpoint with a
tokenizer, or a shape with random weights. Every second request is greedy. With random weights all tokens are about
equally likely (of the demo model's 2,048, the likeliest has 1 or 2 in a hundred): near ties are as frequent as they can
be, and at `--temperature 1` a change in the last bits of a score turns one in some tens of tokens, for good.

In a run with faults the requests are asked again and again, each time as if for the first time, until `--kills` faults
have struck. One JSON line is printed for each run:

- `answers` that came, `faulty`: those in which a fault struck at least once;
- `differ`: those of which a token is not the same, of greedy and of sampled ones apart, too;
- `logprobs_differ`: those of which a log-probability is not the same, up to the first token that differs;
- `first_difference_p50`: the place of that token.

Example: python benchmarks/bench_bits.py --kills 200 --run batches --run standby --run alone
"""

import asyncio
import itertools
import json
import random
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import httpx

from benchmarks.rig.named_model import model_folder
from benchmarks.service.disturbed_fleet import DisturbedFleet, Setting, served_model, started
from benchmarks.service.endless_streams import PAUSE_LIMIT_S
from benchmarks.service.fixed_streams import Answer, FixedStreams, RequestSizes
from scheduler_svc.client.processes.local_fleet import LocalFleet

POOL_TOKENS = 65_536
MOST_BETWEEN = 8  # tokens of each open stream between two faults
SETTINGS = [setting.value for setting in Setting]

Ask = Callable[[FixedStreams, LocalFleet], Coroutine[Any, Any, list[Answer]]]


@dataclass(frozen=True)
class Served:
    """What is served, and asked for.

    Attributes:
        model: folder of a checkpoint; None for the demo model.
        executor_options: of all executors.
        sizes: of the requests.
        num_requests: different ones.
        at_once: requests that are open at a time.
    """

    model: str | None
    executor_options: tuple[str, ...]
    sizes: RequestSizes
    num_requests: int
    at_once: int


@click.command(context_settings={"show_default": True})
@click.option(
    "--run", "runs", multiple=True, type=click.Choice(["batches", "chunks", *SETTINGS]), help="[default: all]"
)
@click.option("--kills", default=20, type=click.IntRange(1), help="How often a fault strikes in a run with faults.")
@click.option("--requests", "num_requests", default=48, type=click.IntRange(1), help="Different ones.")
@click.option("--streams", "at_once", default=12, type=click.IntRange(1), help="Requests that are open at once.")
@click.option("--prompt-tokens", default=150, type=click.IntRange(1), help="Of each request.")
@click.option("--max-tokens", default=300, type=click.IntRange(1), help="Of each answer.")
@click.option("--temperature", default=1.0, type=click.FloatRange(0, 2), help="Of every second request.")
@click.option("--chunk", default=17, type=click.IntRange(2), help="Tokens in a plan, in the run `chunks`.")
@click.option("--model", default="0.6B", help="Folder of a checkpoint with a tokenizer, or a shape.")
@click.option("--dtype", default="bfloat16", help="Of the executors.")
@click.option("--executor-option", "executor_options", multiple=True, help="A further option of the executors.")
def main(
    runs: tuple[str, ...],
    kills: int,
    num_requests: int,
    at_once: int,
    prompt_tokens: int,
    max_tokens: int,
    temperature: float,
    chunk: int,
    model: str,
    dtype: str,
    executor_options: tuple[str, ...],
) -> None:
    """Compare answers with undisturbed ones."""
    sizes = RequestSizes(prompt_tokens, max_tokens, temperature)
    options = ("--dtype", dtype, "--num-blocks", str(POOL_TOKENS // 16), *executor_options)
    about = {"model": model, "dtype": dtype, "requests": num_requests, "streams": at_once} | vars(sizes)
    with tempfile.TemporaryDirectory() as scratch:
        served = Served(model_folder(model, Path(scratch)), options, sizes, num_requests, at_once)
        expected = {answer.number: answer for answer in _undisturbed(served)}
        for run in runs or ("batches", "chunks", *SETTINGS):
            if run in SETTINGS:
                answers, figures = _struck(served, Setting(run), kills)
            else:
                answers, figures = _in_other_batches(served) if run == "batches" else _in_chunks(served, chunk), {}
            click.echo(json.dumps({"run": run} | about | _comparison(answers, expected) | figures))


def _comparison(answers: Sequence[Answer], expected: dict[int, Answer]) -> dict[str, Any]:
    """How many answers are not as expected, and from where on."""
    places = [answer.first_difference(expected[answer.number]) for answer in answers]
    greedy = [answer.is_greedy for answer, place in zip(answers, places, strict=True) if place is not None]
    return {
        "answers": len(answers),
        "faulty": sum(answer.faults > 0 for answer in answers),
        "differ": len(greedy),
        "greedy_differ": sum(greedy),
        "sampled_differ": len(greedy) - sum(greedy),
        "logprobs_differ": sum(answer.has_other_logprobs(expected[answer.number]) for answer in answers),
        "first_difference_p50": median(place for place in places if place is not None) if greedy else None,
    }


# --- runs ---


def _undisturbed(served: Served) -> list[Answer]:
    requests = [(number, "") for number in range(served.num_requests)]
    return _in_fleet(served, Setting.ALONE, lambda streams, _: streams.ask(requests, served.at_once))


def _in_other_batches(served: Served) -> list[Answer]:
    """In the other direction, a third at once; then in no order, twice as many at once."""
    numbers = list(range(served.num_requests))
    shuffled = random.Random(0).sample(numbers, len(numbers))

    async def ask(streams: FixedStreams, _: LocalFleet) -> list[Answer]:
        answers = await streams.ask([(number, "few") for number in numbers[::-1]], max(1, served.at_once // 3))
        return answers + await streams.ask([(number, "many") for number in shuffled], 2 * served.at_once)

    return _in_fleet(served, Setting.ALONE, ask)


def _in_chunks(served: Served, chunk: int) -> list[Answer]:
    limits = ("--max-batch-tokens", str(chunk), "--max-num-seqs", str(min(chunk - 1, served.at_once)))
    requests = [(number, "") for number in range(served.num_requests)]
    return _in_fleet(served, Setting.ALONE, lambda streams, _: streams.ask(requests, served.at_once), limits)


def _struck(served: Served, setting: Setting, kills: int) -> tuple[list[Answer], dict[str, Any]]:
    """Requests in their order, again and again until all faults have struck; then those that are open to their ends."""
    figures: dict[str, Any] = {}

    async def ask(streams: FixedStreams, fleet: LocalFleet) -> list[Answer]:
        striking = asyncio.create_task(_strike(DisturbedFleet(fleet, setting), kills, streams, served.at_once))

        def requests() -> Iterator[tuple[int, str]]:
            for i in itertools.count():
                if striking.done():
                    return
                yield i % served.num_requests, str(i // served.num_requests)

        try:
            answers = await streams.ask(requests(), served.at_once)
            figures.update(await striking)
            return answers
        finally:
            striking.cancel()

    return _in_fleet(served, setting, ask), figures


async def _strike(fleet: DisturbedFleet, kills: int, streams: FixedStreams, at_once: int) -> dict[str, Any]:
    """Let executors go away, each time some tokens after all was well again."""
    rng = random.Random(0)
    async with httpx.AsyncClient(base_url=fleet.url, trust_env=False) as http:
        for _ in range(kills):
            async with asyncio.timeout(PAUSE_LIMIT_S):
                await fleet.wait_until_whole(http)
                await streams.progress(rng.randint(1, MOST_BETWEEN * at_once))
                streams.num_faults += 1
                await fleet.strike(http)
                await streams.progress(1)
                await fleet.mend(http)
        status = await fleet.status(http)
    return {"faults": kills} | {name: status[name] for name in ("recomputed_tokens", "pools_adopted")}


# --- services ---


def _in_fleet(served: Served, setting: Setting, ask: Ask, further_options: tuple[str, ...] = ()) -> list[Answer]:
    """What services that were started for this answer."""
    options = (*served.executor_options, *further_options)
    with started(setting, served.model, options, ("--step-timeout", str(PAUSE_LIMIT_S))) as (fleet, _):
        return asyncio.run(ask(FixedStreams(fleet.spec.url, served_model(fleet), served.sizes), fleet))


if __name__ == "__main__":
    main()
