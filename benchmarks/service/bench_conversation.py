"""A conversation by `previous_response_id` beside the same one whose client sends all of it each time.

Both sides are `/v1/responses` on one service, turn by turn in turns, each conversation with its own first words. The
first side sends the turn's text and the id of the response before; the other one sends all items so far and stores
nothing. One JSON line: bytes of bodies and medians over the conversations of the time to the first text, for the first
turn and for the last five; `cached` is the share of a prompt's tokens that came from the prefix cache, in the turns
after the first.

Example: python benchmarks/bench_conversation.py --turns 20
"""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click
import httpx

from benchmarks.rig.machine import processor
from benchmarks.rig.named_model import model_folder
from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports

Json = dict[str, Any]
LAST = 5
_DATA = "data: "


@dataclass
class Side:
    """One way to have conversations.

    Attributes:
        num_bytes: of all bodies.
        first_ms, last_ms: times to the first text, of first turns and of the last `LAST` ones.
        num_prompt, num_cached: tokens of prompts after the first turns, and how many of them were in the prefix cache.
    """

    sends_all: bool
    num_bytes: int = 0
    first_ms: list[float] = field(default_factory=list)
    last_ms: list[float] = field(default_factory=list)
    num_prompt: int = 0
    num_cached: int = 0

    def report(self, num_conversations: int) -> Json:
        """What the JSON line has of it."""
        return {
            "bytes_sent": self.num_bytes // num_conversations,
            "ttft_first_ms": round(median(self.first_ms), 1),
            "ttft_last_ms": round(median(self.last_ms), 1),
            "cached": round(self.num_cached / self.num_prompt, 3),
        }


class Conversation:
    """One conversation of a side."""

    def __init__(self, http: httpx.Client, model: str, side: Side, name: str) -> None:
        self._http = http
        self._model = model
        self._side = side
        self._name = name
        self._items: list[Json] = []
        self._last_id: str | None = None

    def turn(self, number: int, *, is_last: bool, max_tokens: int) -> None:
        """Say something, and read the answer."""
        said = {"role": "user", "content": f"{self._name}: and what is the word of day {number}, and why is it so?"}
        self._items.append(said)
        body: Json = {"model": self._model, "max_output_tokens": max_tokens, "temperature": 0, "stream": True}
        body |= {"input": self._items, "store": False} if self._side.sends_all else {"input": [said]}
        if self._last_id is not None and not self._side.sends_all:
            body["previous_response_id"] = self._last_id
        data = json.dumps(body).encode()
        response, first_s = self._stream(data)
        self._side.num_bytes += len(data)
        self._items += response["output"]
        self._last_id = response["id"]
        if number == 0:
            self._side.first_ms.append(1e3 * first_s)
            return
        if is_last:
            self._side.last_ms.append(1e3 * first_s)
        usage = response["usage"]
        self._side.num_prompt += usage["input_tokens"]
        self._side.num_cached += usage["input_tokens_details"]["cached_tokens"]

    def _stream(self, body: bytes) -> tuple[Json, float]:
        """The response, and the seconds until its first text."""
        start_s, first_s = time.perf_counter(), 0.0
        headers = {"content-type": "application/json"}
        with self._http.stream("POST", "/v1/responses", content=body, headers=headers) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith(_DATA):
                    event = json.loads(line.removeprefix(_DATA))
                    if event["type"] == "response.output_text.delta" and not first_s:
                        first_s = time.perf_counter() - start_s
                    if event["type"] in ("response.completed", "response.incomplete"):
                        response: Json = event["response"]
                        return response, first_s
        raise click.ClickException("the stream ended without its response")


@contextmanager
def running(model: str | None, dtype: str) -> Iterator[str]:
    """A service; its address."""
    with tempfile.TemporaryDirectory() as folder:
        port, executor_port = free_ports(2)
        spec = FleetSpec(
            model=model,
            port=port,
            executor_port=executor_port,
            scheduler_options=("--journal", f"{folder}/journal.sqlite3"),
            executor_options=("--dtype", dtype),
        )
        with LocalFleet(spec, Path(folder)) as fleet:
            fleet.wait_ready()
            yield spec.url


@click.command()
@click.option(
    "--model", help="Folder of a checkpoint with a tokenizer, or a shape such as 0.6B.  [default: the demo model]"
)
@click.option("--dtype", default="float32", show_default=True, help="Of the executor.")
@click.option("--turns", "num_turns", default=20, show_default=True, help="Of each conversation.")
@click.option("--tokens", "max_tokens", default=40, show_default=True, help="Of each answer, at most.")
@click.option("--conversations", "num_conversations", default=5, show_default=True, help="Of each side.")
def main(model: str | None, dtype: str, num_turns: int, max_tokens: int, num_conversations: int) -> None:
    """Measure a conversation by previous_response_id beside one whose client sends all of it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running(model_folder(model, Path(folder)), dtype) as url,
        httpx.Client(base_url=url, timeout=120.0) as http,
    ):
        name = http.get("/v1/models").json()["data"][0]["id"]
        sides = {"previous_response_id": Side(sends_all=False), "all_items": Side(sends_all=True)}
        for i in range(-1, num_conversations):  # the first ones warm up
            counted = sides if i >= 0 else {kind: Side(side.sends_all) for kind, side in sides.items()}
            talks = [Conversation(http, name, side, f"{kind} {i}") for kind, side in counted.items()]
            for turn in range(num_turns):
                for talk in talks:
                    talk.turn(turn, is_last=turn >= num_turns - LAST, max_tokens=max_tokens)
    report = {kind: side.report(num_conversations) for kind, side in sides.items()}
    facts = {"cpu": processor(), "model": model or "demo", "turns": num_turns, "conversations": num_conversations}
    click.echo(json.dumps(facts | report))


if __name__ == "__main__":
    main()
