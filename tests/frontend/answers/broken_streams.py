"""Streams that break off anywhere and go on after the last event that came."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from common import messages as m
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.prompt_part import prompts_of
from scheduler_svc.frontend.answers.rest import rest_of
from scheduler_svc.frontend.http.streaming import EventStream
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.fake_core import int32, logprob_columns, prompt_rows

NUM_PROMPT_TOKENS = 10


@dataclass
class Sequence:
    """What the core has of one sequence."""

    token_ids: list[int]
    reason: m.FinishReason
    num_logprobs: int  # of each token
    prompt: list[int]
    num_prompt_logprobs: int  # of each of its tokens; only sequence 0 has them
    num_told: int = 0  # tokens, on the present connection

    def deltas(self, request_id: str, index: int, sizes: list[int]) -> list[m.TokenDelta]:
        """All of it, in groups of these sizes over and over."""
        deltas: list[m.TokenDelta] = []
        start = turn = 0
        columns = prompt_rows(self.prompt[1:], self.num_prompt_logprobs)
        row = 4 * self.num_prompt_logprobs
        while row and start < len(columns["prompt_logprobs"]):
            some = slice(start, start + row * sizes[turn % len(sizes)])
            start, turn = some.stop, turn + 1
            of_prompt = {name: column[some] for name, column in columns.items()}
            deltas.append(
                m.TokenDelta(request_id=request_id, index=index, token_ids=b"", model="abc/float32", **of_prompt)
            )
        start, num_of_prompt = 0, len(deltas)
        while start < len(self.token_ids) or len(deltas) == num_of_prompt:
            group = self.token_ids[start : start + sizes[turn % len(sizes)]]
            start, turn = start + sizes[turn % len(sizes)], turn + 1
            last = self.reason if start >= len(self.token_ids) else None
            delta = m.TokenDelta(
                request_id=request_id,
                index=index,
                token_ids=int32(group),
                finish_reason=last,
                **logprob_columns(group, self.num_logprobs),
            )
            deltas.append(msgspec.structs.replace(delta, num_cached_tokens=3, model="" if deltas else "abc/float32"))
        return deltas


class Reader(Protocol):
    """What a client has of a stream."""

    last_event_id: str

    def take(self, event: bytes) -> None:
        """One event of the stream."""


@dataclass
class Seen:
    """What a client has put together from all its connections."""

    last_event_id: str = ""
    texts: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list] = field(default_factory=dict)
    openings: list[int] = field(default_factory=list)
    ends: dict[int, str] = field(default_factory=dict)
    usage: dict | None = None
    is_done: bool = False

    def take(self, event: bytes) -> None:
        """One event of the stream."""
        fields = dict(line.split(": ", 1) for line in event.decode().split("\n"))
        assert not self.is_done
        if fields["data"] == "[DONE]":
            self.is_done = True
            return
        assert self.usage is None
        self.last_event_id = fields["id"]
        chunk = json.loads(fields["data"])
        self.usage = chunk.get("usage")
        for choice in chunk["choices"]:
            index = choice["index"]
            assert index not in self.ends
            if choice.get("delta", {}).get("role"):
                assert index not in self.texts
                self.openings.append(index)
            self.texts[index] = self.texts.get(index, "") + (
                choice["text"] if "text" in choice else choice["delta"].get("content", "")
            )
            if choice["logprobs"] is not None:
                names = ("content",) if "delta" in choice else ("tokens", "token_logprobs", "text_offset")
                columns = [choice["logprobs"][name] for name in names]
                self.logprobs.setdefault(index, []).extend(zip(*columns, strict=True))
            if choice["finish_reason"]:
                self.ends[index] = choice["finish_reason"]


@dataclass
class ResumableRequest:
    """A request in the core, and a frontend that answers connections for it."""

    context: AnswerContext
    sequences: list[Sequence]
    prompts: list[list[int]]
    most_bytes: int = 2**16  # of events that are sent together

    async def read(self, seen: Reader, sizes: list[int], num_events: int) -> None:
        """One connection, which breaks after so many events."""
        queue = DeltaQueue(self.hear, lambda _: None, is_streamed=True, is_resumable=True)
        for prompt in range(self.context.num_prompts):
            queue.add(str(prompt), prompt, self.context.n)
        position, written = rest_of("id", self.context, NUM_PROMPT_TOKENS, seen.last_event_id)
        written.most_bytes = self.most_bytes
        prompts = await prompts_of(self.context, list(map(int32, self.prompts)), TOKENIZER)
        answer = AnswerSpec("id", self.context, NUM_PROMPT_TOKENS, position, prompts)
        stream = EventStream(Generation(queue, TOKENIZER, answer), written, keep_alive_s=60)
        events: list[bytes] = []
        gone = asyncio.Event()

        async def receive() -> dict:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict) -> None:
            # What is written in one go may break off after any of its events.
            events.extend(event for event in message.get("body", b"").split(b"\n\n") if event)
            if len(events) >= num_events:
                gone.set()
                await asyncio.sleep(0)

        serving = asyncio.create_task(stream({"type": "http"}, receive, send))
        for sequence in self.sequences:
            sequence.num_told = 0
        streams = [
            sequence.deltas(str(choice // self.context.n), choice % self.context.n, sizes)
            for choice, sequence in enumerate(self.sequences)
        ]
        for turn in range(max(map(len, streams))):
            for deltas in streams:
                if turn < len(deltas):
                    queue.put(deltas[turn])
                    self.sequence(deltas[turn]).num_told += len(deltas[turn].token_ids) // 4
            if turn % len(sizes) == 0:  # else what comes next is in the same batch
                for _ in range(5):
                    await asyncio.sleep(0)
        await asyncio.wait_for(serving, 60)
        for event in events[:num_events]:
            seen.take(event)

    def hear(self, message: m.Cancel | m.Detach) -> None:
        """What the frontend tells the core: a stop string was found, or the connection broke."""
        if isinstance(message, m.Cancel):
            cancelled = self.sequence(message)
            cancelled.token_ids, cancelled.reason = cancelled.token_ids[: cancelled.num_told], "cancelled"

    def sequence(self, message: m.Cancel | m.TokenDelta) -> Sequence:
        """The one that a message is about."""
        return self.sequences[int(message.request_id) * self.context.n + message.index]
