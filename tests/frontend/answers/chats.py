"""Chats whose messages have thoughts and calls: their whole answers, and what a client puts together from chunks."""

import asyncio
import itertools
import json
from dataclasses import dataclass, field

from common import messages as m
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.formats import format_of
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.parsing.message import MessageRules
from tests.frontend.answers import contexts
from tests.frontend.answers.texts import BOTH
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.fake_core import int32, logprob_columns


def context_of(rules: MessageRules = BOTH, **more: object) -> AnswerContext:
    return contexts.context_of("chat", message=rules, **more)


def generation_of(
    context: AnswerContext, tokens: list[int], size: int, reason: m.FinishReason, after: str = ""
) -> Generation:
    """An answer of which everything has come, `size` tokens at a time."""
    queue = DeltaQueue(lambda _: None, lambda _: None, is_streamed=True, is_resumable=True)
    queue.add("r", 0, context.n)
    starts = range(0, len(tokens), size) or [0]
    for index, start in itertools.product(range(context.n), starts):
        group = tokens[start : start + size]
        columns = logprob_columns(group, context.logprobs)
        end = reason if start == starts[-1] else None
        queue.put(m.TokenDelta(request_id="r", index=index, token_ids=int32(group), finish_reason=end, **columns))
    position = Position.after(after, context.n) if after else Position.start(context.n)
    return Generation(queue, TOKENIZER, AnswerSpec("chatcmpl-1", context, 3, position))


def whole(context: AnswerContext, tokens: list[int], reason: m.FinishReason = "stop", size: int = 10**6) -> dict:
    async def run() -> dict:
        with generation_of(context, tokens, size, reason) as generation:
            choices = await generation.whole()
            answer = format_of("chatcmpl-1", context).whole(choices, generation.usage, generation.model)
            return json.loads(to_json(answer))

    return asyncio.run(run())


async def _fed(generation: Generation, queue: DeltaQueue, deltas: list[m.TokenDelta]) -> list[list]:
    """The turns of an answer whose deltas come one by one."""
    turns = []

    async def read() -> None:
        with generation:
            async for pieces in generation.pieces():
                turns.append(pieces)  # noqa: PERF401

    reader = asyncio.create_task(read())
    for delta in deltas:
        queue.put(delta)
        for _ in range(5):
            await asyncio.sleep(0)
    await asyncio.wait_for(reader, 60)
    return turns


def streamed(
    context: AnswerContext, tokens: list[int], reason: m.FinishReason = "stop", size: int = 1, **limits: int
) -> list[dict]:
    """The chunks of a stream whose tokens come so many at a time."""
    queue = DeltaQueue(lambda _: None, lambda _: None, is_streamed=True, is_resumable=True)
    queue.add("r", 0, context.n)
    deltas = []
    for start in range(0, len(tokens), size):
        group = tokens[start : start + size]
        end = reason if start + size >= len(tokens) else None
        columns = logprob_columns(group, context.logprobs)
        deltas += [
            m.TokenDelta(request_id="r", index=index, token_ids=int32(group), finish_reason=end, **columns)
            for index in range(context.n)
        ]
    spec = AnswerSpec("chatcmpl-1", context, 3, Position.start(context.n))
    generation = Generation(queue, TOKENIZER, spec, **limits)
    form = format_of("chatcmpl-1", context)
    turns = asyncio.run(_fed(generation, queue, deltas))
    return [json.loads(to_json(form.chunk(piece))) for pieces in turns for piece in pieces]


@dataclass
class Message:
    """What a client puts together from chunks."""

    thought: str = ""
    content: str = ""
    calls: dict[int, dict] = field(default_factory=dict)
    logprobs: list = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, choice: dict) -> None:
        delta = choice["delta"]
        assert delta.get("reasoning") == delta.get("reasoning_content")
        self.thought += delta.get("reasoning_content", "")
        self.content += delta.get("content", "")
        for part in delta.get("tool_calls", ()):
            if part["index"] not in self.calls:
                assert part["type"] == "function"
                call = {"id": part["id"], "type": "function", "function": {"name": part["function"]["name"]}}
                self.calls[part["index"]] = call | {"arguments": ""}
            else:
                assert part.keys() == {"index", "function"}
                assert part["function"].keys() == {"arguments"}
            self.calls[part["index"]]["arguments"] += part["function"]["arguments"]
        if choice["logprobs"] is not None:
            self.logprobs += choice["logprobs"]["content"]
        self.finish_reason = choice["finish_reason"] or self.finish_reason

    def plain(self) -> dict:
        """As a whole answer's choice."""
        calls = [
            call | {"function": call["function"] | {"arguments": call["arguments"]}} for call in self.calls.values()
        ]
        return {
            "thought": self.thought,
            "content": self.content,
            "calls": [{name: call[name] for name in ("id", "type", "function")} for call in calls],
            "logprobs": self.logprobs,
            "finish_reason": self.finish_reason,
        }


def joined(parts: list[dict], choice: int = 0) -> dict:
    message = Message()
    for part in parts:
        for each in part["choices"]:
            if each["index"] == choice:
                message.take(each)
    return message.plain()


def plain(answer: dict, choice: int = 0) -> dict:
    """A choice of a whole answer in the same form."""
    said = answer["choices"][choice]
    message = said["message"]
    assert message.get("reasoning") == message.get("reasoning_content")
    return {
        "thought": message.get("reasoning_content", ""),
        "content": message["content"] or "",
        "calls": message.get("tool_calls", []),
        "logprobs": said["logprobs"]["content"] if said["logprobs"] else [],
        "finish_reason": said["finish_reason"],
    }
