"""What taking chats apart costs: the same streams with the parsers of thoughts and calls, and without.

    python -m tests.support.reciter /tmp/reciter          a checkpoint that writes thoughts and calls
    python benchmarks/bench_chat.py --model /tmp/reciter

Two services take turns: one with its parsers, and one with `--tool-parser none --reasoning-parser none`, where thoughts
and calls are content. That one serves the same weights with the tools written into the chat template, as requests with
tools are refused there: so all prompts have the same tokens, and a benchmark whose sides count different tokens fails.
In each turn all streams are asked for at once. Two processes of one program differ in speed for as long as they live,
by several percent, so both services are started anew now and then. One JSON line for each prompt: the ratios are with
parsers over without, the medians of the rounds' own ratios with their quartiles. `ttft_ms` are medians of the time from
the request to the first text of a stream, a thought's tag aside, which has no text with parsers; `cpu_us` is CPU time
of the scheduler service for a token, of its core and its frontend together.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import httpx

from benchmarks.rig.machine import processor
from benchmarks.rig.process_times import cpu_time_s
from scheduler_svc.client.processes.local_fleet import SCHEDULER, FleetSpec, LocalFleet, free_ports

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
        cpu_s: CPU time that the scheduler service took.
    """

    num_tokens: int
    seconds: float
    ttft_s: float
    cpu_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return self.num_tokens / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU time for a token."""
        return 1e6 * self.cpu_s / self.num_tokens


@dataclass(frozen=True)
class Kind:
    """What a side serves and is asked.

    Attributes:
        model: its checkpoint.
        options: of its scheduler.
        tools: in the requests.
    """

    model: Path
    options: tuple[str, ...]
    tools: tuple[Json, ...]


@dataclass(frozen=True)
class Side:
    """A service that takes its turns.

    Attributes:
        pid: of its scheduler.
    """

    url: str
    pid: int
    kind: Kind


async def run_streams(side: Side, prompt: str, num_streams: int, salt: str) -> Run:
    """Ask for all streams at once, and read them to their ends."""
    limits = httpx.Limits(max_connections=num_streams)
    async with httpx.AsyncClient(base_url=side.url, timeout=300.0, limits=limits) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "tools": side.kind.tools,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
        }
        start_cpu_s, start_s = cpu_time_s({side.pid}), time.perf_counter()
        streams = [_stream(http, {**body, "cache_salt": f"{salt}-{number}"}) for number in range(num_streams)]
        answers = await asyncio.gather(*streams)
        seconds, cpu_s = time.perf_counter() - start_s, cpu_time_s({side.pid}) - start_cpu_s
    return Run(sum(num for num, _ in answers), seconds, median(ttft_s for _, ttft_s in answers), cpu_s)


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
    texts = [delta.get(name) or "" for delta in deltas for name in ("content", "reasoning_content")]
    return any(text.strip() not in ("", "<think>") for text in texts) or any("tool_calls" in delta for delta in deltas)


@click.command(context_settings={"show_default": True})
@click.option("--model", required=True, help="Folder of a checkpoint that writes thoughts and calls.")
@click.option("--streams", "num_streams", default=32, type=click.IntRange(1), help="At once.")
@click.option("--prompt", "prompts", multiple=True, default=PROMPTS, help="What is asked.")
@click.option("--sittings", default=8, type=click.IntRange(1), help="How often both services are started anew.")
@click.option("--repeats", default=4, type=click.IntRange(2), help="Rounds of a sitting; in each, each side runs once.")
@click.option("--same", is_flag=True, help="Both sides without parsers: what the machine makes of no difference.")
def main(model: str, num_streams: int, prompts: tuple[str, ...], sittings: int, repeats: int, same: bool) -> None:
    """Measure what the parsers of chats cost, and print the figures."""
    runs: dict[str, tuple[list[Run], list[Run]]] = {prompt: ([], []) for prompt in prompts}
    for sitting in range(sittings):
        with _both_sides(Path(model), is_swapped=bool(sitting % 2), same=same) as sides:
            for prompt in prompts:
                turns = list(zip(sides, runs[prompt], strict=True))
                for number in range(repeats + 1):  # the first round warms up
                    for side, results in turns if number % 2 else reversed(turns):
                        run = asyncio.run(run_streams(side, prompt, num_streams, f"{prompt} {number}"))
                        if number:
                            results.append(run)
    for prompt in prompts:
        click.echo(json.dumps(figures_of(prompt, num_streams, *runs[prompt])))


@contextlib.contextmanager
def _both_sides(model: Path, *, is_swapped: bool, same: bool) -> Iterator[tuple[Side, Side]]:
    """Services with parsers and without; the second one is started first if they are swapped."""
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        without = Kind(_with_tools(model, TOOLS, folder / "model"), WITHOUT, ())
        kinds = (without if same else Kind(model, (), tuple(TOOLS)), without)
        first, second = [_start(kind, folder, stack) for kind in (reversed(kinds) if is_swapped else kinds)]
        yield (second, first) if is_swapped else (first, second)


def _start(kind: Kind, folder: Path, stack: contextlib.ExitStack) -> Side:
    """Start a service."""
    port, executor_port = free_ports(2)
    journal = ("--journal", str(folder / f"journal-{port}.sqlite3"))
    options = (*kind.options, *journal)
    spec = FleetSpec(str(kind.model), port=port, executor_port=executor_port, scheduler_options=options)
    fleet = stack.enter_context(LocalFleet(spec, folder))
    fleet.wait_ready()
    return Side(spec.url, fleet.pids[SCHEDULER], kind)


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


def figures_of(prompt: str, num_streams: int, with_parsers: list[Run], without: list[Run]) -> dict[str, Any]:
    """What is printed for a prompt. Raises RuntimeError if the sides had different tokens."""
    if {run.num_tokens for run in with_parsers} != {run.num_tokens for run in without}:
        raise RuntimeError(f"the sides had different tokens: {with_parsers} and {without}")
    pairs = list(zip(with_parsers, without, strict=True))
    return {
        "prompt": prompt,
        "streams": num_streams,
        "output_tokens": with_parsers[0].num_tokens,
        "rounds": len(pairs),
        "tok_s_ratio": _spread([a.tokens_per_s / b.tokens_per_s for a, b in pairs]),
        "ttft_ratio": _spread([a.ttft_s / b.ttft_s for a, b in pairs]),
        "cpu_ratio": _spread([a.cpu_us / b.cpu_us for a, b in pairs]),
        "tok_s": round(median(run.tokens_per_s for run in with_parsers), 1),
        "tok_s_without": round(median(run.tokens_per_s for run in without), 1),
        "ttft_ms": round(1000 * median(run.ttft_s for run in with_parsers), 1),
        "ttft_ms_without": round(1000 * median(run.ttft_s for run in without), 1),
        "cpu_us": round(median(run.cpu_us for run in with_parsers), 1),
        "cpu_us_without": round(median(run.cpu_us for run in without), 1),
        "processor": processor(),
    }


def _spread(ratios: list[float]) -> list[float]:
    """First quartile, median and third quartile."""
    return [round(cut, 4) for cut in quantiles(ratios, n=4, method="inclusive")]


if __name__ == "__main__":
    main()
