"""A stream of Anthropic's events that breaks off anywhere, any number of times, and goes on after the last event that
came: all events together are those of one stream, and they build up the message that comes whole."""

import asyncio

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_svc.frontend.answers.messages_api.events import MessageEvents
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.parsing.message import MessageRules
from tests.frontend.answers import contexts
from tests.frontend.answers.message_events import Seen, object_in, service, whole
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.effort import examples

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "🦊é\\n", "b": [1]}}\n</tool_call>'
SEGMENTS = [
    *("one", " two", "🦊", "月", "\n", "<think>\n", "I look.", "\n</think>\n\n", "</think>", CALL, CALL[:-30]),
    *('<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', "\n<tool_call>", "</tool_call>", "<to"),
]
TEXTS = st.lists(st.sampled_from(SEGMENTS), max_size=8).map("".join)
STOPS = st.lists(st.sampled_from(["two", "🦊é", "🦊月", "look", "\n\n", "e t"]), max_size=2, unique=True)
RULES = st.builds(
    MessageRules,
    thought=st.sampled_from(["none", "open", "may_open"]),
    calls=st.sampled_from(["none", "hermes"]),
    is_one_call=st.booleans(),
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS, stop=STOPS, rules=RULES, hides_thought=st.booleans(), fills_window=st.booleans(), data=st.data())
def test_a_stream_that_breaks_anywhere(
    text: str, stop: list[str], rules: MessageRules, hides_thought: bool, fills_window: bool, data: st.DataObject
):
    asked = {"message": rules, "hides_thought": hides_thought, "fills_window": fills_window}
    context = contexts.context_of("message", stop=tuple(stop), **asked)
    tokens = TOKENIZER.encode([text], add_special_tokens=False)[0]
    reason = data.draw(st.sampled_from(["stop", "length"]))
    undisturbed = Seen()
    asyncio.run(service(context, tokens, reason).read(undisturbed, [1000], 10**9))
    assert undisturbed.is_done
    seen, broken = Seen(), service(context, tokens, reason)
    broken.most_bytes = data.draw(st.sampled_from([0, 700, 2**16]))
    for _ in range(400):
        sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
        asyncio.run(broken.read(seen, sizes, data.draw(st.integers(1, 12))))
        if seen.is_done:
            break
    assert seen.events == undisturbed.events
    at_once = asyncio.run(whole(context, tokens, reason))
    built = undisturbed.message()
    for block in built["content"]:
        arguments = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = object_in(arguments)
    assert built == at_once


def test_a_failure_has_no_number_and_is_told_wherever_it_comes():
    context = contexts.context_of("message")
    for after in (-1, 0, 1000):
        events = MessageEvents("id", context, 5, has_ids=True, after=after)
        told = events.failed(ApiError(503, "lost \ud800", code="capacity_lost", retry=True)).decode()
        *first, failure, rest = told.split("\n\n")
        assert len(first) == (after < 0)
        assert not rest
        name, data = failure.split("\n")
        assert name == "event: error"
        assert msgspec.json.decode(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"
