"""The published openai client, unchanged: tools, thoughts, and whatever other clients add to their requests."""

import json
from collections.abc import Iterator

import httpx
import openai
import pydantic
import pytest

from tests.frontend.answers.texts import ANSWER
from tests.frontend.sse import Event, events_after, events_of
from tests.frontend.thinker import CALL, CITY, accepts, answering, prompt_of, running_thinker
from tests.support.demo_tokenizer import ids
from tests.support.fake_core import FakeCore
from tests.support.frontend_process import Frontend

MODEL = "thinker"
USER = [{"role": "user", "content": "Rain?"}]
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": CITY}}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """A model with Qwen3's habits and the demo model's tokens, under two names."""
    options = ("--served-model-name", "other", "--allow-unknown")
    with running_thinker(tmp_path_factory.mktemp("model"), *options, name=MODEL) as frontend:
        yield frontend


@pytest.fixture
def core(thinker: Frontend) -> FakeCore:
    thinker.core.forget()
    return thinker.core


@pytest.fixture
def client(thinker: Frontend, core: FakeCore) -> Iterator[openai.OpenAI]:
    with thinker.client() as client:
        yield client


def test_an_agents_turns(client: openai.OpenAI, core: FakeCore):
    answering(core, f"<think>\nI look.\n</think>\n\nWait.\n{CALL}")
    first = client.chat.completions.create(model=MODEL, messages=USER, tools=[WEATHER])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert (message.content, message.reasoning_content) == ("Wait.", "I look.")
    [call] = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Köln"})
    assert first.usage.completion_tokens_details.reasoning_tokens == len(ids("<think>\nI look.\n</think>"))
    answering(core, "It rains.")
    result = {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    litellm = message.model_dump() | {"provider_specific_fields": {"refusal": None}}
    turns = [*USER, litellm, result]
    second = client.chat.completions.create(model="other", messages=turns, tools=[WEATHER])
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("It rains.", "stop")
    assert (second.choices[0].message.tool_calls, second.model) == (None, MODEL)
    prompt = prompt_of(core.submits[1])
    assert CALL in prompt
    assert "<tool_response>\nrain\n</tool_response>" in prompt


@pytest.mark.parametrize("pause_s", [0.0, 0.002])
def test_a_stream_as_the_openai_package_reads_it(client: openai.OpenAI, core: FakeCore, pause_s: float):
    answering(core, f"<think>\nI look.\n</think>\n\nWait.\n{CALL}\n{CALL}", pause_s=pause_s)

    class weather(pydantic.BaseModel):
        city: str

    tool = openai.pydantic_function_tool(weather)
    with client.chat.completions.stream(model=MODEL, messages=USER, tools=[tool]) as events:
        kinds = {event.type for event in events}
        choice = events.get_final_completion().choices[0]
    assert {"content.delta", "tool_calls.function.arguments.delta"} <= kinds
    assert (choice.message.content, choice.finish_reason) == ("Wait.", "tool_calls")
    assert [call.function.parsed_arguments for call in choice.message.tool_calls] == [weather(city="Köln")] * 2
    # The package's tool is strict: calls fit the schema, and free text may stand beside them.
    [submit] = core.submits
    assert accepts(submit, f"<think>\nI look.\n</think>\n\nWait.\n{CALL}")
    assert not accepts(submit, CALL.replace("city", "town"))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_is_forced(client: openai.OpenAI, core: FakeCore, choice: object):
    answering(core, CALL)
    answer = client.chat.completions.create(model=MODEL, messages=USER, tools=[WEATHER], tool_choice=choice)
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("tool_calls", None)
    [submit] = core.submits
    assert accepts(submit, CALL)
    assert accepts(submit, f"<think>\nhm\n</think>\n\n{CALL}")
    assert not accepts(submit, "It rains.")
    assert accepts(submit, f"{CALL}\n{CALL}") == (choice == "required")


def test_calls_or_json(client: openai.OpenAI, core: FakeCore):
    """What frameworks for agents send that want a document at the end."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY, "strict": True}}
    answering(core, '{"city": "Köln"}')
    answer = client.chat.completions.create(model=MODEL, messages=USER, tools=[WEATHER], response_format=form)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ('{"city": "Köln"}', "stop")
    [submit] = core.submits
    assert accepts(submit, CALL)
    assert accepts(submit, '<think>\nhm\n</think>\n\n{"city": "Köln"}')
    assert not accepts(submit, "It rains.")
    assert not accepts(submit, '{"town": "Köln"}')


def test_a_thought_with_a_budget(client: openai.OpenAI, core: FakeCore):
    answering(core, "<think>\nhm\n</think>\n\nYes.")
    create = client.chat.completions.create
    answer = create(model=MODEL, messages=USER, reasoning_effort="low", extra_body={"include_reasoning": False})
    assert answer.choices[0].message.content == "Yes."
    assert not hasattr(answer.choices[0].message, "reasoning_content")
    assert accepts(core.submits[0], "<think>\nhm\n</think>\n\nYes.")
    create(model=MODEL, messages=USER, extra_body={"thinking_token_budget": 4})
    assert not accepts(core.submits[1], "<think>\n" + "hm " * 50 + "\n</think>\n\nYes.")
    create(model=MODEL, messages=USER, reasoning_effort="none")
    assert core.submits[2].params.constraints is None


def test_a_stream_goes_on_in_the_middle_of_a_call(thinker: Frontend, core: FakeCore):
    answering(core, ANSWER, pause_s=0.001)
    body = {"model": MODEL, "messages": USER, "tools": [WEATHER], "stream": True, "resumable": True}
    asked = {"request_id": "cut", "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    events = events_of(thinker.post("/v1/chat/completions", body | asked).content)
    whole = said(events)
    assert [whole["tool_calls"][index][1] for index in (0, 1)] == ['{"a": "<é🦊>"}', "{}"]
    for number, event in enumerate(events[:-1]):
        rest = events_of(events_after(thinker, "cut", event.id).content)
        assert said([*events[: number + 1], *rest]) == whole
        assert rest[-1].data == "[DONE]"
    usages = [event.data["usage"]["completion_tokens"] for event in events[:-1]]
    assert usages == sorted(usages)


def said(events: list[Event]) -> dict:
    """The message that chunks add up to."""
    message: dict = {"content": "", "reasoning": "", "tool_calls": {}, "finish_reason": []}
    for event in events:
        for choice in [] if event.data == "[DONE]" else event.data["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning"):
                message[name] += delta.get(name, "")
            for call in delta.get("tool_calls", ()):
                name, arguments = message["tool_calls"].get(call["index"], ("", ""))
                function = call["function"]
                message["tool_calls"][call["index"]] = (
                    name + function.get("name", "") + call.get("id", ""),
                    arguments + function["arguments"],
                )
            if choice["finish_reason"]:
                message["finish_reason"].append(choice["finish_reason"])
    return message


def test_what_is_ignored_is_logged_once(thinker: Frontend, core: FakeCore):
    answering(core, "Yes.")
    body = {"model": MODEL, "messages": [USER[0] | {"cache_control": {}}], "no_such_parameter": 1}
    for _ in range(2):
        answer = thinker.post("/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
    for field in ("messages.cache_control", "no_such_parameter"):
        assert thinker.log.count(f"field={field}") == 1


def test_a_model_that_is_not_served(thinker: Frontend):
    answer: httpx.Response = thinker.post("/v1/chat/completions", {"model": "third", "messages": USER})
    assert answer.status_code == 404
    assert "'thinker' or 'other' does" in answer.json()["error"]["message"]
