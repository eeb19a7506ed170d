"""What a batch costs beside the same prompts sent by hand, and what it costs the requests that come meanwhile.

    python benchmarks/bench_batches.py
    python benchmarks/bench_batches.py --model Qwen/Qwen3-0.6B --lines 200

One service, in which the sides take turns, each with prompts that no side has sent before. The first JSON line has the
throughput of a batch, from its creation to its end, over that of the same number of prompts sent to /v1/completions
with as many at once as the batch has: the median of the rounds' own ratios. A batch has few lanes for some seconds
after a request of somebody else, so the sides are that far apart. The second line has the time to the first token of
streams that come one after the other, with a pause between them, while a batch runs and while none does.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import httpx

from benchmarks.rig.machine import processor
from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports
from scheduler_svc.frontend.background.line_share import RECENT_S

Json = dict[str, Any]
ENDED = ("completed", "failed", "expired", "cancelled")
POLL_S = 0.05
PAUSE_S = 0.1  # between streams: somebody reads the answer


@dataclass(frozen=True)
class Work:
    """Lines of a batch, or the same by hand.

    Attributes:
        concurrency: requests at once that are sent by hand.
    """

    lines: int
    prompt_words: int
    max_tokens: int
    concurrency: int


class Service:
    """One service, and prompts that it has not seen."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self._http = http
        self._model = model
        self._num_prompts = 0

    def bodies(self, number: int, words: int, max_tokens: int) -> list[Json]:
        """Requests of prompts that share no beginning with an earlier one."""
        self._num_prompts += number
        return [
            {
                "model": self._model,
                "prompt": f"{self._num_prompts - i} " + "the king and the queen of " * (words // 6),
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
            for i in range(number)
        ]

    async def batch(self, work: Work) -> float:
        """Seconds of a batch, from its creation to its end."""
        bodies = self.bodies(work.lines, work.prompt_words, work.max_tokens)
        start_s = time.perf_counter()
        await self.ended(await self.begin_batch(bodies))
        return time.perf_counter() - start_s

    async def begin_batch(self, bodies: list[Json]) -> str:
        """The id of a new batch."""
        url = "/v1/completions"
        lines = [
            json.dumps({"custom_id": str(i), "method": "POST", "url": url, "body": body})
            for i, body in enumerate(bodies)
        ]
        files = {"file": ("in.jsonl", "\n".join(lines).encode())}
        uploaded = await self._http.post("/v1/files", data={"purpose": "batch"}, files=files)
        asked = {"input_file_id": uploaded.json()["id"], "endpoint": url, "completion_window": "24h"}
        return str((await self._http.post("/v1/batches", json=asked)).raise_for_status().json()["id"])

    async def seen(self, batch_id: str) -> Json:
        """The batch as it is."""
        batch: Json = (await self._http.get(f"/v1/batches/{batch_id}")).raise_for_status().json()
        return batch

    async def ended(self, batch_id: str) -> None:
        """Wait for the end of a batch. Raises RuntimeError if a line of it has failed."""
        while (batch := await self.seen(batch_id))["status"] not in ENDED:
            await asyncio.sleep(POLL_S)
        if batch["status"] != "completed" or batch["request_counts"]["failed"]:
            raise RuntimeError(f"the batch is {batch['status']}, with {batch['request_counts']}")

    async def cancel(self, batch_id: str) -> None:
        """End a batch."""
        await self._http.post(f"/v1/batches/{batch_id}/cancel")
        while (await self.seen(batch_id))["status"] not in ENDED:
            await asyncio.sleep(POLL_S)

    async def by_hand(self, work: Work) -> float:
        """Seconds of as many requests, some of them at a time."""
        todo = iter(self.bodies(work.lines, work.prompt_words, work.max_tokens))

        async def send() -> None:
            for body in todo:
                (await self._http.post("/v1/completions", json=body)).raise_for_status()

        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(work.concurrency):
                tasks.create_task(send())
        return time.perf_counter() - start_s

    async def first_tokens(self, number: int, words: int) -> list[float]:
        """Seconds to the first token of streams, one after the other."""
        ttft_s = []
        for body in self.bodies(number, words, 8):
            start_s, first_s = time.perf_counter(), 0.0
            async with self._http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        first_s = first_s or time.perf_counter() - start_s
            ttft_s.append(first_s)
            await asyncio.sleep(PAUSE_S)
        return ttft_s


async def measure(url: str, work: Work, *, rounds: int, streams: int, stream_words: int) -> AsyncIterator[Json]:
    """Both lines of figures."""
    limits = httpx.Limits(max_connections=work.concurrency + 8)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        service = Service(http, model)
        warm = Work(work.concurrency, work.prompt_words, work.max_tokens, work.concurrency)
        await service.batch(warm)
        await service.by_hand(warm)
        yield await _throughput(service, work, rounds)
        yield await _first_tokens(service, work, rounds, streams, stream_words)


async def _throughput(service: Service, work: Work, rounds: int) -> Json:
    batches: list[float] = []
    by_hand: list[float] = []
    for turn in range(rounds):
        sides = [(batches, service.batch), (by_hand, service.by_hand)]
        for seconds, side in sides if turn % 2 else reversed(sides):
            await asyncio.sleep(RECENT_S + 1)
            seconds.append(await side(work))
    ratios = [hand / batch for hand, batch in zip(by_hand, batches, strict=True)]
    num_tokens = work.lines * work.max_tokens
    return {
        "measures": "throughput",
        "rounds": rounds,
        "lines": work.lines,
        "concurrency": work.concurrency,
        "tok_s_batch": round(num_tokens / median(batches), 1),
        "tok_s_by_hand": round(num_tokens / median(by_hand), 1),
        "ratio": _spread(ratios),
    }


async def _first_tokens(service: Service, work: Work, rounds: int, streams: int, words: int) -> Json:
    """In each round all streams without a batch, and all with one, which never ends meanwhile."""
    alone, beside = [], []
    done = 0
    for _ in range(rounds):
        alone += await service.first_tokens(streams, words)
        batch_id = await service.begin_batch(service.bodies(50_000 // rounds, work.prompt_words, work.max_tokens))
        while not (await service.seen(batch_id))["request_counts"]["completed"]:
            await asyncio.sleep(POLL_S)
        beside += await service.first_tokens(streams, words)
        batch = await service.seen(batch_id)
        if batch["status"] != "in_progress":
            raise RuntimeError("the batch had ended before the streams had: name a larger model, or fewer streams")
        done += batch["request_counts"]["completed"]
        await service.cancel(batch_id)
    return {
        "measures": "ttft",
        "rounds": rounds,
        "streams": streams,
        "ms_alone": _spread([1000 * ttft for ttft in alone]),
        "ms_beside_batch": _spread([1000 * ttft for ttft in beside]),
        "ratio": round(median(beside) / median(alone), 3),
        "lines_done_meanwhile": done,
    }


def _spread(values: list[float]) -> list[float]:
    """Lower quartile, median and upper quartile."""
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return [round(low, 3), round(median(values), 3), round(high, 3)]


@click.command()
@click.option("--model", help="Checkpoint to serve.  [default: the embedded demo model]")
@click.option("--lines", default=600, show_default=True, type=click.IntRange(min=1), help="Of each batch.")
@click.option("--prompt-words", default=60, show_default=True, type=click.IntRange(min=6), help="Of a line.")
@click.option("--max-tokens", default=60, show_default=True, type=click.IntRange(min=1), help="Of a line.")
@click.option("--concurrency", default=56, show_default=True, type=click.IntRange(min=1),
              help="Requests at once by hand; a batch has seven eighths of the executors' lanes.")  # fmt: skip
@click.option("--streams", default=20, show_default=True, type=click.IntRange(min=2), help="In each round.")
@click.option(
    "--stream-words", default=300, show_default=True, type=click.IntRange(min=6), help="Of a stream's prompt."
)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1), help="Of the executor.")
@click.option("--executor-option", "executor_options", multiple=True, help="As --executor-option=--max-num-seqs=32.")
def main(
    model: str | None,
    lines: int,
    prompt_words: int,
    max_tokens: int,
    concurrency: int,
    streams: int,
    stream_words: int,
    rounds: int,
    threads: int,
    executor_options: tuple[str, ...],
) -> None:
    """Measure what batches cost, and what they cost others. Prints JSON lines."""
    port, executor_port = free_ports(2)
    work = Work(lines, prompt_words, max_tokens, concurrency)
    with tempfile.TemporaryDirectory() as folder:
        spec = FleetSpec(
            model=model,
            port=port,
            executor_port=executor_port,
            executors=1,
            scheduler_options=("--journal", str(Path(folder, "journal.sqlite3"))),
            executor_options=("--threads", str(threads), *executor_options),
        )
        with LocalFleet(spec, Path(folder)) as fleet:
            fleet.wait_ready()
            measured = measure(spec.url, work, rounds=rounds, streams=streams, stream_words=stream_words)
            asyncio.run(_print(measured, {"processor": processor(), "model": model or "demo"}))


async def _print(measured: AsyncIterator[Json], facts: Json) -> None:
    async for figures in measured:
        click.echo(json.dumps(facts | figures))


if __name__ == "__main__":
    main()
