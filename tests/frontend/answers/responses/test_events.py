"""A response's events: what openai's package says events are, numbered by tokens alone, and the same after any cut."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.responses.called_tool import CalledTool
from scheduler_svc.frontend.answers.responses.events import BEGINNING, NEVER, ResponseEvents, ResponseSpec
from scheduler_svc.frontend.answers.responses.thoughts import opened_thought
from scheduler_svc.frontend.answers.responses.token_record import TokenRecord, follow, written
from scheduler_svc.frontend.background.token_log import COLUMNS, TokenLog
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.parsing.message import MessageRules
from tests.frontend.answers.responses.told import (
    EVENT,
    ID,
    check_growth,
    context_of,
    deltas_of,
    events_in,
    spec_of,
    stream,
    whole,
)
from tests.frontend.answers.texts import CALL, PIECES, SECOND
from tests.support.demo_tokenizer import EOS, TOKENIZER, ids
from tests.support.effort import examples
from tests.support.instructions import instructions_of

CUSTOM_CALL = '<tool_call>\n{"name": "f", "arguments": {"input": "<é\\n🦊>"}}\n</tool_call>'
TOOLS: list[dict[str, CalledTool]] = [
    {},
    {"f": CalledTool("close", "agents")},
    {"f": CalledTool("patch", is_custom=True), "g": CalledTool("g", "n", is_custom=True)},
]
TOKENS = st.lists(st.sampled_from([*PIECES, CUSTOM_CALL]), max_size=12).map(lambda pieces: ids("".join(pieces)))


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(
    TOKENS,
    st.sampled_from(["stop", "length"]),
    st.sampled_from(["none", "open", "may_open"]),
    st.sampled_from(["none", "hermes"]),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from([0, 2]),
    st.sampled_from(TOOLS),
    st.data(),
)
def test_events_are_numbered_by_tokens_alone(tokens, reason, thought, calls, flags, logprobs, tools, data):
    spec = spec_of(in_summary=flags[0], is_sealed=flags[1], is_background=flags[2], tools=tools)
    context = context_of(MessageRules(thought=thought, calls=calls), logprobs)
    tokens = [*tokens, EOS] if reason == "stop" else tokens
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    data_of_all, outcome = asyncio.run(stream(deltas_of(tokens, [1000], reason, logprobs), context, spec))
    events = events_in(data_of_all)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENT.validate_python(event)
    check_growth(events)
    assert events[-1]["response"] == whole(spec, outcome)
    after = data.draw(st.integers(-1, len(events)))
    deltas = deltas_of(tokens, sizes, reason, logprobs)
    cut, _ = asyncio.run(stream(deltas, context, spec, after))
    rest = events_in(cut)
    for event in [*rest, *events]:
        event.get("response", {}).pop("completed_at", None)
    assert rest == events[after + 1 :]
    if not spec.is_background:
        return
    record = TokenRecord(1, spec, context.encode(), 3, _kept(spec, context, deltas))
    again = _written(TokenRecord.decode(record.encode()), max(after, len(BEGINNING) - 1))
    of_tokens = [event for event in events if "response" not in event]
    assert events_in(again) == [event for event in of_tokens if event["sequence_number"] > after]
    assert again in data_of_all, "what was stored is written again byte for byte"


def _kept(spec: ResponseSpec, context: AnswerContext, deltas: Sequence[m.TokenDelta]) -> list[m.TokenDelta]:
    log = TokenLog(ID, follow(spec, context.encode(), 3, TOKENIZER)[0])
    for delta in deltas:
        log.put(delta)
    return log.deltas


def _written(record: TokenRecord, after: int) -> bytes:
    _, generation = follow(record.spec, record.context, record.num_prompt_tokens, TOKENIZER)
    events = ResponseEvents(record.spec, after=after)
    return b"".join(part for step in written(record.deltas, generation, events) for part in step)


def test_a_thought_a_text_and_calls_are_items():
    tokens = [*ids(f"<think>\nHm.\n</think>\n\nWell:\n{CALL}\n{SECOND}"), EOS]
    spec = spec_of(is_sealed=True)
    data, outcome = asyncio.run(stream(deltas_of(tokens, [3], "stop"), context_of(), spec))
    response = Response.model_validate(whole(spec, outcome))
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.status == "completed"
    thought = response.output[0]
    assert thought.content[0].text == opened_thought(thought.encrypted_content) == "Hm."
    assert response.output_text == "Well:"
    assert response.usage.output_tokens == len(tokens)
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    summary = spec_of(in_summary=True)
    data, outcome = asyncio.run(stream(deltas_of(tokens, [3], "stop"), context_of(), summary))
    assert whole(summary, outcome)["output"][0]["summary"] == [{"text": "Hm.", "type": "summary_text"}]
    assert b"reasoning_summary_text.delta" in data


@pytest.mark.parametrize("reason", ["error", "cancelled"])
@pytest.mark.parametrize("num_tokens", [0, 4])
def test_a_failure_is_an_event_and_is_written_again(reason: m.FinishReason, num_tokens: int):
    tokens = ids("one two three four five")[:num_tokens]
    spec, context = spec_of(), context_of(MessageRules())
    queue, generation = follow(spec, context.encode(), 3, TOKENIZER)
    broadcast = TokenLog(ID, queue)
    events = ResponseEvents(spec)
    parts: list[bytes] = []

    async def read() -> None:
        for delta in deltas_of(tokens, [1], "length")[:-1]:
            broadcast.put(delta)
        broadcast.put(m.TokenDelta(request_id="r", index=0, token_ids=b"", finish_reason=reason, error="no", code="x"))
        async for pieces in generation.pieces():
            parts.extend(events.of(pieces))

    with pytest.raises(RequestRejected) as caught:
        asyncio.run(read())
    outcome = events.failure(ApiError.of_rejection(caught.value), generation.usage)
    parts.append(events.failed(ApiError.of_rejection(caught.value)))
    seen = events_in(b"".join(parts))
    assert seen[-1]["type"] == "response.failed"
    assert seen[-1]["response"]["status"] == outcome.status == ("failed" if reason == "error" else "cancelled")
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    record = TokenRecord(1, spec, context.encode(), 3, broadcast.deltas)
    for after in range(len(BEGINNING) - 1, len(seen)):
        assert events_in(_written(record, after)) == seen[after + 1 : -1]


def test_events_that_are_not_sent_are_not_written():
    costs = [instructions_of(ResponseEvents(spec_of(), after=after).begun) for after in (NEVER, -1)]
    assert costs[0] < 0.85 * costs[1]
    assert ResponseEvents(spec_of(), after=NEVER).begun() == b""


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 500), max_size=40), st.data())
def test_each_token_is_there_once_however_often_the_core_begins_anew(tokens, data):
    queue, _ = follow(spec_of(), context_of(MessageRules()).encode(), 3, TOKENIZER)
    log = TokenLog(ID, queue)
    for _ in range(data.draw(st.integers(1, 4))):
        log.begin_anew()
        end = data.draw(st.integers(0, len(tokens)))
        for delta in deltas_of(tokens[:end], [data.draw(st.integers(1, 7))], "length", logprobs=2):
            if delta.finish_reason is None:
                log.put(delta)
    log.begin_anew()
    for delta in deltas_of(tokens, [5], "length", logprobs=2):
        log.put(delta)
    [expected] = deltas_of(tokens, [1000], "length", logprobs=2)
    told = [delta for _, delta in asyncio.run(queue.get())]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(tokens))] * 2)))
    [part] = deltas_of(tokens[start:stop], [1000], "length", logprobs=2)
    for deltas, wanted in ((log.deltas, expected), (told, expected), (log.between(start, stop), part)):
        for name in COLUMNS:
            assert b"".join(getattr(delta, name) for delta in deltas) == getattr(wanted, name)
    assert not any(delta.finish_reason for delta in log.between(0, len(tokens)))


def test_an_outcome_does_not_change():
    events = ResponseEvents(spec_of())
    list(events.of([]))
    first = events.failure(ApiError(500, "no", code="x"))
    assert events.failure(ApiError(499, "no", code="cancelled")) is first
