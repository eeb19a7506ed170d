"""Responses and their events, as a client is told them."""

import asyncio
import json
from collections.abc import Sequence

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from common import messages as m
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.responses.called_tool import CalledTool
from scheduler_svc.frontend.answers.responses.events import Outcome, ResponseEvents, ResponseSpec
from scheduler_svc.frontend.answers.responses.objects import response_json
from scheduler_svc.frontend.answers.responses.token_record import follow
from scheduler_svc.frontend.background.token_log import TokenLog
from scheduler_svc.frontend.parsing.message import MessageRules
from scheduler_svc.frontend.requests.responses.head import head_json
from scheduler_svc.frontend.requests.responses.schemas import ResponseRequest
from tests.frontend.answers import contexts
from tests.frontend.answers.texts import BOTH
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.fake_core import int32, logprob_columns

ID = "resp_0123456789abcdef01234567"
EVENT = TypeAdapter(ResponseStreamEvent)


def spec_of(
    *,
    in_summary: bool = False,
    is_sealed: bool = False,
    is_background: bool = True,
    tools: dict[str, CalledTool] | None = None,
) -> ResponseSpec:
    body = ResponseRequest(model="m", input="Hi", background=is_background)
    head = head_json(body, m.SamplingParams(max_tokens=9), response_id=ID, model="m", created=1)
    return ResponseSpec(ID, head, in_summary, is_sealed, is_background, tools or {})


def context_of(rules: MessageRules = BOTH, logprobs: int = 0, stop: tuple[str, ...] = ()) -> AnswerContext:
    return contexts.context_of("response", message=rules, logprobs=logprobs, stop=stop)


def deltas_of(
    tokens: Sequence[int], sizes: Sequence[int], reason: m.FinishReason, logprobs: int = 0
) -> list[m.TokenDelta]:
    """All tokens in groups of these sizes over and over; the end may come by itself, unless it is a stop token."""
    deltas: list[m.TokenDelta] = []
    start = 0
    while start < len(tokens):
        group = list(tokens[start : start + sizes[len(deltas) % len(sizes)]])
        start += len(group)
        end = reason if start == len(tokens) and (reason == "stop" or sizes[0] != 2) else None
        columns = logprob_columns(group, logprobs)
        deltas.append(m.TokenDelta(request_id="r", index=0, token_ids=int32(group), finish_reason=end, **columns))
    if not deltas or deltas[-1].finish_reason is None:
        deltas.append(m.TokenDelta(request_id="r", index=0, token_ids=b"", finish_reason=reason))
    return deltas


async def stream(
    deltas: Sequence[m.TokenDelta], context: AnswerContext, spec: ResponseSpec, after: int = -1
) -> tuple[bytes, Outcome]:
    """The bytes of a stream whose deltas come one by one, and what the response came to."""
    queue, generation = follow(spec, context.encode(), 3, TOKENIZER)
    broadcast = TokenLog(ID, queue)
    events = ResponseEvents(spec, after=after)
    parts = [events.begun()]

    async def put() -> None:
        for delta in deltas:
            broadcast.put(delta)
            await asyncio.sleep(0)

    putting = asyncio.create_task(put())
    async for pieces in generation.pieces():
        parts += events.of(pieces)
    await putting
    outcome = events.outcome(generation.usage)
    return b"".join([*parts, events.ended(generation.usage, "")]), outcome


def events_in(data: bytes) -> list[dict]:
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        name, fields = block.split("\n")
        event = json.loads(fields.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def whole(spec: ResponseSpec, outcome: Outcome) -> dict:
    return json.loads(bytes(response_json(spec.head, outcome.status, outcome.output, outcome.tail)))


def check_growth(events: list[dict]) -> None:
    """Items begin and end in turn, and each text is the sum of its pieces."""
    texts: dict[int, str] = {}
    done: dict[int, dict] = {}
    for event in events:
        kind, index = event["type"], event.get("output_index", -1)
        if kind == "response.output_item.added":
            assert index == len(texts) == len(done), "one item after the other"
            texts[index] = ""
        elif kind.endswith(".delta"):
            assert event["delta"], "an event that says nothing"
            texts[index] += event["delta"]
        elif kind == "response.output_item.done":
            done[index] = event["item"]
        elif kind.endswith("_text.done"):
            assert event["text"] == texts[index]
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == texts[index]
        elif kind == "response.custom_tool_call_input.done":
            assert event["input"] == texts[index]
    output = events[-1]["response"]["output"]
    assert output == [done[index] for index in range(len(done))]
    assert output, "every answer has an item"
    assert len({item["id"] for item in output}) == len(output)
    Response.model_validate(events[-1]["response"])
