"""What taking chats apart costs: the same streams with the parsers of thoughts and calls, and without.

    python -m tests.support.reciter /tmp/reciter          a checkpoint that writes thoughts and calls
    python benchmarks/bench_chat.py --model /tmp/reciter

Two services take turns: one with its parsers, and one with `--tool-parser none --reasoning-parser none`, where thoughts
and calls are content. That one serves the same weights with the tools written into the chat template, as requests with
tools are refused there: so all prompts have the same tokens, and a benchmark whose sides count different tokens fails.
In each turn all streams are asked for at once. One JSON line for each prompt: `tok_s_ratio` and `ttft_ratio` are with
parsers over without, the medians of the rounds' own ratios; `ttft_ms` are medians of the time from the request to the
first text of a stream. A thought's first text comes after its tag, so there the time to it has a token or two more with
parsers.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import httpx

from benchmarks.rig.machine import processor
from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports

Json = dict[str, Any]
WITHOUT = ("--tool-parser", "none", "--reasoning-parser", "none")
PROMPTS = ("Tell me of the harbor.", "Write the minutes into the ledger.")  # content; a thought and a long call
TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in keys}},
        },
    }
    for name, keys in (("get_weather", ["city"]), ("write_file", ["path", "content"]))
]
_DATA = b"data: "


@dataclass(frozen=True)
class Run:
    """All streams of a side in a round.

    Attributes:
        num_tokens: of all answers.
        seconds: from the first request to the end of the last answer.
        ttft_s: median of the streams' times to their first text.
    """

    num_tokens: int
    seconds: float
    ttft_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return self.num_tokens / self.seconds


async def run_streams(url: str, prompt: str, tools: list[Json], num_streams: int, salt: str) -> Run:
    """Ask for all streams at once, and read them to their ends."""
    limits = httpx.Limits(max_connections=num_streams)
    async with httpx.AsyncClient(base_url=url, timeout=300.0, limits=limits) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "tools": tools,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
        }
        start_s = time.perf_counter()
        streams = [_stream(http, {**body, "cache_salt": f"{salt}-{number}"}) for number in range(num_streams)]
        answers = await asyncio.gather(*streams)
        seconds = time.perf_counter() - start_s
    return Run(sum(num for num, _ in answers), seconds, median(ttft_s for _, ttft_s in answers))


async def _stream(http: httpx.AsyncClient, body: dict[str, Any]) -> tuple[int, float]:
    """Tokens of one answer, and seconds to its first text."""
    start_s = time.perf_counter()
    ttft_s = None
    last = b""
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        rest = b""
        async for data in response.aiter_raw():
            *lines, rest = (rest + data).split(b"\n")
            events = [line for line in lines if line.startswith(_DATA)]
            if ttft_s is None and any(map(_has_text, events)):
                ttft_s = time.perf_counter() - start_s
            last = next((event for event in reversed(events) if not event.endswith(b"[DONE]")), last)
    if ttft_s is None:
        raise RuntimeError("an answer has no text")
    return json.loads(last.removeprefix(_DATA))["usage"]["completion_tokens"], ttft_s


def _has_text(event: bytes) -> bool:
    if event.endswith(b"[DONE]"):
        return False
    deltas = [choice["delta"] for choice in json.loads(event.removeprefix(_DATA))["choices"]]
    return any(delta.get(name) for delta in deltas for name in ("content", "reasoning_content", "tool_calls"))


@click.command(context_settings={"show_default": True})
@click.option("--model", required=True, help="Folder of a checkpoint that writes thoughts and calls.")
@click.option("--streams", "num_streams", default=32, type=click.IntRange(1), help="At once.")
@click.option("--prompt", "prompts", multiple=True, default=PROMPTS, help="What is asked.")
@click.option("--repeats", default=5, type=click.IntRange(1), help="Rounds; in each, each side runs once.")
def main(model: str, num_streams: int, prompts: tuple[str, ...], repeats: int) -> None:
    """Measure what the parsers of chats cost, and print the figures."""
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        with_parsers = _start(model, (), folder, stack)
        without = _start(str(_with_tools(Path(model), TOOLS, folder / "model")), WITHOUT, folder, stack)
        for prompt in prompts:
            runs: dict[str, list[Run]] = {with_parsers: [], without: []}
            for number in range(repeats + 1):  # the first round warms up
                for url in runs if number % 2 else reversed(runs):
                    tools = TOOLS if url == with_parsers else []
                    run = asyncio.run(run_streams(url, prompt, tools, num_streams, f"{prompt} {number}"))
                    runs[url] += [run] if number else []
            click.echo(json.dumps(_figures(prompt, num_streams, runs[with_parsers], runs[without])))


def _start(model: str, options: tuple[str, ...], folder: Path, stack: contextlib.ExitStack) -> str:
    """Start a service. Returns its URL."""
    port, executor_port = free_ports(2)
    journal = ("--journal", str(folder / f"journal-{port}.sqlite3"))
    spec = FleetSpec(model, port=port, executor_port=executor_port, scheduler_options=(*options, *journal))
    stack.enter_context(LocalFleet(spec, folder)).wait_ready()
    return spec.url


def _with_tools(model: Path, tools: list[Json], folder: Path) -> Path:
    """The same checkpoint, whose chat template has the tools by itself."""
    folder.mkdir()
    template = "chat_template.jinja"
    for path in model.iterdir():
        if path.name != template:
            (folder / path.name).symlink_to(path.resolve())
    source = (model / template).read_text()
    (folder / template).write_text(f"{{%- set tools = {json.dumps(tools)} %}}\n{source}")
    return folder


def _figures(prompt: str, num_streams: int, with_parsers: list[Run], without: list[Run]) -> dict[str, Any]:
    if {run.num_tokens for run in with_parsers} != {run.num_tokens for run in without}:
        raise RuntimeError(f"the sides had different tokens: {with_parsers} and {without}")
    pairs = list(zip(with_parsers, without, strict=True))
    return {
        "prompt": prompt,
        "streams": num_streams,
        "output_tokens": with_parsers[0].num_tokens,
        "tok_s_ratio": round(median(a.tokens_per_s / b.tokens_per_s for a, b in pairs), 4),
        "tok_s_ratios": [round(a.tokens_per_s / b.tokens_per_s, 4) for a, b in pairs],
        "ttft_ratio": round(median(a.ttft_s / b.ttft_s for a, b in pairs), 4),
        "tok_s": round(median(run.tokens_per_s for run in with_parsers), 1),
        "tok_s_without": round(median(run.tokens_per_s for run in without), 1),
        "ttft_ms": round(1000 * median(run.ttft_s for run in with_parsers), 1),
        "ttft_ms_without": round(1000 * median(run.ttft_s for run in without), 1),
        "processor": processor(),
    }


if __name__ == "__main__":
    main()
