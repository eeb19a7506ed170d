"""The published anthropic client, unchanged: messages, streams, tools, thoughts, errors, counts."""

import json
from collections.abc import Iterator

import anthropic
import httpx
import pydantic
import pytest
from anthropic.types import ErrorResponse, Message, RawMessageStreamEvent

from common import messages as m
from scheduler_svc.frontend.answers.messages_api.blocks import tool_input
from tests.frontend.thinker import CALL, CITY, accepts, answering, prompt_of, running_thinker
from tests.support.demo_tokenizer import EOS, ids
from tests.support.fake_core import MAX_MODEL_LEN, FakeCore, Step, delta, outputs, refuse, say, tokens_of
from tests.support.frontend_process import Frontend
from tests.support.plain_http import http

MODEL = "thinker"
KEY = "alpha"
USER = [{"role": "user", "content": "Rain?"}]
ASKED = {"model": MODEL, "max_tokens": 100, "messages": USER}
WEATHER = {"name": "weather", "description": "d", "input_schema": CITY}
THOUGHT = "<think>\nI look.\n</think>\n\n"
THINKS = {"type": "enabled", "budget_tokens": 50}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """A model with Qwen3's habits and the demo model's tokens, behind an API key."""
    folder, another = tmp_path_factory.mktemp("model"), ("--served-model-name", "other")
    with running_thinker(folder, *another, name=MODEL, BATON_API_KEYS=KEY) as frontend:
        yield frontend


@pytest.fixture
def core(thinker: Frontend) -> FakeCore:
    thinker.core.forget()
    return thinker.core


@pytest.fixture
def client(thinker: Frontend, core: FakeCore) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=thinker.url, api_key=KEY, max_retries=0, timeout=20) as client:
        yield client


def as_sent(message: Message) -> list[dict]:
    """The blocks of a message as they came."""
    return [block.model_dump(exclude_unset=True) for block in message.content]


def post(frontend: Frontend, path: str = "/v1/messages", **asked: object) -> httpx.Response:
    return http.post(f"{frontend.url}{path}", json=ASKED | asked, headers={"x-api-key": KEY})


def test_a_message(client: anthropic.Anthropic, core: FakeCore):
    answering(core, "It rains.")
    message = client.messages.create(
        **ASKED | {"model": "other"}, system="Be brief.", extra_body={"temperature": 0.5, "top_k": 7}
    )
    assert as_sent(message) == [{"type": "text", "text": "It rains."}]
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    [submit] = core.submits
    assert submit.request_id == f"{submit.client}/{message.id}-0"
    assert message.id.startswith("msg_")
    assert message._request_id == message.id
    num_prompt = len(tokens_of(submit.prompt))
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (num_prompt - 2, 2)
    assert (usage.cache_creation_input_tokens, usage.output_tokens) == (0, len(ids("It rains.")) + 1)
    assert (submit.params.max_tokens, submit.params.temperature, submit.params.top_k) == (100, 0.5, 7)
    assert prompt_of(submit).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nRain?<|im_end|>")


@pytest.mark.parametrize("pause_s", [0.0, 0.002])
def test_a_stream(client: anthropic.Anthropic, core: FakeCore, pause_s: float):
    answering(core, f"{THOUGHT}Wait.\n{CALL}\n{CALL}", pause_s=pause_s)
    asked = ASKED | {"tools": [WEATHER], "thinking": THINKS}
    with client.messages.stream(**asked) as stream:
        events = list(stream)
        streamed = stream.get_final_message()
    assert "".join(event.text for event in events if event.type == "text") == "Wait."
    assert "".join(event.thinking for event in events if event.type == "thinking") == "I look."
    whole = client.messages.create(**asked, extra_body={"request_id": f"chosen-{pause_s}"})
    assert whole.id == f"chosen-{pause_s}"
    thought, said, *calls = as_sent(whole)
    assert (thought["thinking"], said) == ("I look.", {"type": "text", "text": "Wait."})
    assert [(call["name"], call["input"]) for call in calls] == [("weather", {"city": "Köln"})] * 2
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert whole.usage == streamed.usage
    assert whole.usage.output_tokens_details.thinking_tokens == len(ids("<think>\nI look.\n</think>"))
    # But for ids and signatures, which follow from the message's id.
    ours = {"id", "signature"}
    assert [{k: v for k, v in block.items() if k not in ours} for block in as_sent(streamed)] == [
        {k: v for k, v in block.items() if k not in ours} for block in as_sent(whole)
    ]
    assert len({call["id"] for call in [*as_sent(streamed)[2:], *calls]}) == 4
    assert all(call["id"].startswith("toolu_") for call in calls)


def test_every_event_is_one_that_the_package_knows(thinker: Frontend, core: FakeCore):
    answering(core, f"{THOUGHT}Wait.\n{CALL}")
    answer = post(thinker, stream=True, tools=[WEATHER], thinking=THINKS)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    names = []
    adapter = pydantic.TypeAdapter(RawMessageStreamEvent)
    for event in answer.text.split("\n\n")[:-1]:
        name, data = event.split("\n")  # a stream that is not resumable has no ids
        names.append(name.removeprefix("event: "))
        assert adapter.validate_json(data.removeprefix("data: ")).type == names[-1]
    kinds = ["message_start", "content_block_start", "content_block_delta", "content_block_stop"]
    assert list(dict.fromkeys(names)) == [*kinds, "message_delta", "message_stop"]
    assert names.count("content_block_start") == names.count("content_block_stop") == 3


def test_a_round_with_tools(client: anthropic.Anthropic, core: FakeCore):
    answering(core, f"{THOUGHT}Wait.\n{CALL}\n{CALL}")
    first = client.messages.create(**ASKED, tools=[WEATHER], thinking=THINKS)
    calls = [block for block in first.content if block.type == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "rain"}]},
        {"type": "tool_result", "tool_use_id": calls[1].id, "content": "no answer", "is_error": True},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]
    answering(core, "It rains.")
    turns = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": results[:2]}]
    second = client.messages.create(**ASKED | {"messages": turns}, tools=[WEATHER], thinking=THINKS)
    assert (second.stop_reason, second.content[0].text) == ("end_turn", "It rains.")
    prompt = prompt_of(core.submits[1])
    assert f"<think>\nI look.\n</think>\n\nWait.\n{CALL}\n{CALL}<|im_end|>" in prompt
    responses = "<tool_response>\nrain\n</tool_response>\n<tool_response>\nError: no answer\n</tool_response><|im_end|>"
    assert responses in prompt
    turns[-1]["content"] = results
    client.messages.create(**ASKED | {"messages": turns}, tools=[WEATHER])
    assert f"{responses}\n<|im_start|>user\nBe brief.<|im_end|>" in prompt_of(core.submits[2])


def test_the_packages_tool_runner(client: anthropic.Anthropic, core: FakeCore):
    """It asks for a conversation that the server holds, and goes on without one."""

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """What it is like.

        Args:
            city: Where.
        """
        return f"rain in {city}"

    def script(submit: m.Submit) -> Iterator[Step]:
        answer = "It rains." if "<tool_response>" in prompt_of(submit) else CALL
        yield from say([*ids(answer), EOS], "stop")(submit)

    core.script = script
    last = client.beta.messages.tool_runner(**ASKED, tools=[weather]).until_done()
    assert last.content[0].text == "It rains."
    assert len(core.submits) == 2
    assert "<tool_response>\nrain in Köln\n</tool_response>" in prompt_of(core.submits[1])


@pytest.mark.parametrize(
    ("choice", "has_two", "has_text"),
    [
        ({"type": "any"}, True, False),
        ({"type": "any", "disable_parallel_tool_use": True}, False, False),
        ({"type": "tool", "name": "weather"}, False, False),
    ],
)
def test_a_call_that_is_forced(
    client: anthropic.Anthropic, core: FakeCore, choice: dict, has_two: bool, has_text: bool
):
    answering(core, CALL)
    message = client.messages.create(**ASKED, tools=[WEATHER], tool_choice=choice)
    assert [block.type for block in message.content] == ["tool_use"]
    [submit] = core.submits
    assert accepts(submit, CALL)
    assert accepts(submit, f"{CALL}\n{CALL}") == has_two
    assert accepts(submit, "It rains.") == has_text


def test_tools_that_may_not_be_called(client: anthropic.Anthropic, core: FakeCore):
    answering(core, f"{CALL}\n{CALL}")
    none = client.messages.create(**ASKED, tools=[WEATHER], tool_choice={"type": "none"})
    assert [block.type for block in none.content] == ["text"]
    assert "# Tools" not in prompt_of(core.submits[0])
    one = {"type": "auto", "disable_parallel_tool_use": True}
    message = client.messages.create(**ASKED, tools=[WEATHER], tool_choice=one)
    assert [block.type for block in message.content] == ["tool_use"]


def test_a_strict_tool(client: anthropic.Anthropic, core: FakeCore):
    answering(core, CALL)
    client.messages.create(**ASKED, tools=[WEATHER | {"strict": True, "type": "custom"}])
    [submit] = core.submits
    assert accepts(submit, CALL)
    assert accepts(submit, "It rains.")
    assert not accepts(submit, CALL.replace("city", "town"))


@pytest.mark.parametrize(
    ("thinking", "ends_with", "budget"),
    [
        (None, "<think>\n\n</think>\n\n", False),
        ({"type": "disabled"}, "<think>\n\n</think>\n\n", False),
        ({"type": "adaptive"}, "assistant\n", False),
        (THINKS, "assistant\n", True),
    ],
)
def test_whether_the_model_thinks(
    client: anthropic.Anthropic, core: FakeCore, thinking: dict | None, ends_with: str, budget: bool
):
    answering(core, "It rains.")
    client.messages.create(**ASKED, **({"thinking": thinking} if thinking else {}))
    [submit] = core.submits
    assert prompt_of(submit).endswith(ends_with)
    assert (submit.params.constraints is not None) == budget


def test_a_thought_that_is_not_shown(client: anthropic.Anthropic, core: FakeCore):
    answering(core, f"{THOUGHT}Wait.")
    message = client.messages.create(**ASKED, thinking={"type": "adaptive", "display": "omitted"})
    assert as_sent(message) == [{"type": "text", "text": "Wait."}]
    assert message.usage.output_tokens_details.thinking_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "reason", "stops", "told"),
    [
        ("one two three", "stop", ["thr", "two t"], ("stop_sequence", "two t", "one ")),
        ("one two three", "stop", ["four"], ("end_turn", None, "one two three")),
        ("one two", "length", ["four"], ("max_tokens", None, "one two")),
        (f"one\n{CALL}", "stop", ["four"], ("tool_use", None, "one")),
        (f"one\n{CALL}", "stop", ["Kö"], ("max_tokens", None, "one")),  # the call is not to be carried out
    ],
)
def test_why_a_message_ends(
    client: anthropic.Anthropic,
    core: FakeCore,
    text: str,
    reason: m.FinishReason,
    stops: list,
    told: tuple,
    stream: bool,
):
    core.script = say([*ids(text), *([EOS] if reason == "stop" else [])], reason, per_step=3)
    asked = ASKED | {"stop_sequences": stops, "tools": [WEATHER]}
    if stream:
        with client.messages.stream(**asked) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**asked)
    assert (message.stop_reason, message.stop_sequence, message.content[0].text) == told


def test_an_answer_that_fills_the_window(client: anthropic.Anthropic, core: FakeCore):
    core.script = say(ids("one two"), "length")
    message = client.messages.create(**ASKED | {"max_tokens": 10_000})
    assert message.stop_reason == "model_context_window_exceeded"
    [submit] = core.submits
    assert submit.params.max_tokens == MAX_MODEL_LEN - len(tokens_of(submit.prompt))


def test_an_answer_of_nothing(client: anthropic.Anthropic, core: FakeCore):
    answering(core, "")
    assert client.messages.create(**ASKED).content == []
    with client.messages.stream(**ASKED) as stream:
        assert (stream.get_final_message().content, stream.get_final_message().stop_reason) == ([], "end_turn")


@pytest.mark.parametrize(
    ("arguments", "is_kept"),
    [('{"a": [1, "é\\ud83d"], "n": 1e400}', True), ("{}", True)]
    + [(text, False) for text in ("", '{"a": "b', "[1]", '"x"', '{"a": NaN}', "[" * 100_000, '{"a": 1' + "0" * 5000)],
)
def test_input_is_an_object_whatever_the_model_wrote(arguments: str, is_kept: bool):
    expected = arguments if is_kept else json.dumps({"INVALID_JSON": arguments}, separators=(",", ":"))
    assert bytes(tool_input(arguments)).decode() == expected


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_the_input_of_a_call_that_is_cut_off_is_what_there_is_of_it(
    client: anthropic.Anthropic, core: FakeCore, reason: m.FinishReason
):
    core.script = say([*ids(CALL[:-20]), *([EOS] if reason == "stop" else [])], reason)
    message = client.messages.create(**ASKED, tools=[WEATHER])
    assert (message.stop_reason, [(call.name, call.input) for call in message.content]) == (
        "max_tokens",
        [("weather", {"INVALID_JSON": '{"city": "'})],
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_no_json_does_not_fill_the_window(client: anthropic.Anthropic, core: FakeCore, stream: bool):
    """Clients make the conversation shorter when it does."""
    answering(core, CALL.replace('"city"', "city"))
    ask = ASKED | {"max_tokens": 10_000, "tools": [WEATHER]}
    message = client.messages.create(**ask)
    if stream:
        with client.messages.stream(**ask) as events:
            message = events.get_final_message()
    assert message.stop_reason == "max_tokens"


def test_a_message_that_goes_on(client: anthropic.Anthropic, core: FakeCore):
    answering(core, " rains.")
    turns = [*USER, {"role": "assistant", "content": [{"type": "text", "text": "It"}]}]
    message = client.messages.create(**ASKED | {"messages": turns})
    assert message.content[0].text == " rains."
    assert prompt_of(core.submits[0]).endswith("<|im_start|>assistant\nIt")


def test_an_answer_by_schema(client: anthropic.Anthropic, core: FakeCore):
    class City(pydantic.BaseModel):
        city: str

    answering(core, '{"city": "Köln"}')
    parsed = client.messages.parse(**ASKED, output_format=City)
    assert parsed.parsed_output == City(city="Köln")
    [submit] = core.submits
    assert accepts(submit, '{"city": "Köln"}')
    assert not accepts(submit, "Köln")


def test_what_beta_clients_send(client: anthropic.Anthropic, core: FakeCore):
    answering(core, "It rains.")
    message = client.beta.messages.create(
        **ASKED,
        system=[{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}],
        betas=["interleaved-thinking-2025-05-14"],
        metadata={"user_id": "u"},
        service_tier="auto",
    )
    assert message.content[0].text == "It rains."
    assert prompt_of(core.submits[0]).startswith("<|im_start|>system\na\nb<|im_end|>")


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"system": "Be brief.", "tools": [WEATHER]},
        {"tools": [WEATHER], "tool_choice": {"type": "none"}},
        {"thinking": THINKS, "messages": [*USER, {"role": "assistant", "content": "It"}]},
    ],
)
def test_tokens_are_counted_as_they_will_be(client: anthropic.Anthropic, core: FakeCore, asked: dict):
    answering(core, "It rains.")
    usage = client.messages.create(**ASKED | asked).usage
    counted = client.messages.count_tokens(**{"model": MODEL, "messages": USER} | asked)
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert len(core.submits) == 1


def test_what_is_too_long_to_answer_is_counted(client: anthropic.Anthropic, thinker: Frontend):
    turns = [{"role": "user", "content": "x " * MAX_MODEL_LEN}]
    assert client.messages.count_tokens(model=MODEL, messages=turns).input_tokens > MAX_MODEL_LEN
    assert post(thinker, "/v1/messages/count_tokens", max_tokens=10**9).status_code == 200
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**ASKED | {"messages": turns})
    assert caught.value.error_code == "context_length_exceeded"


def test_a_key_in_either_header(thinker: Frontend, core: FakeCore):
    for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}, {"authorization": "x", "x-api-key": KEY}):
        for path in ("/v1/messages/count_tokens", "/v1/chat/completions"):
            answer = http.post(f"{thinker.url}{path}", json=ASKED, headers=headers)
            assert answer.status_code == 200, headers
    for headers in ({}, {"x-api-key": "beta"}, {"authorization": "Bearer beta", "x-api-key": "beta"}):
        answer = http.post(f"{thinker.url}/v1/messages", json=ASKED, headers=headers)
        check_error(answer, 401, "authentication_error", "invalid_api_key")


def check_error(answer: httpx.Response, status: int, kind: str, code: str) -> ErrorResponse:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["request-id"]
    error = ErrorResponse.model_validate_json(answer.content, strict=True)
    assert error.error.type == kind
    assert json.loads(answer.content)["error"]["details"]["error_code"] == code
    return error


def test_errors_of_every_layer(thinker: Frontend, core: FakeCore):
    check_error(post(thinker, model="none"), 404, "not_found_error", "model_not_found")
    check_error(post(thinker, "/v1/messages/none"), 404, "not_found_error", "unknown_url")
    check_error(post(thinker, system="x" * 9 * 2**20), 413, "invalid_request_error", "body_too_large")
    check_error(post(thinker, container="c"), 400, "invalid_request_error", "unsupported_parameter")
    headers = {"x-api-key": KEY}
    got = http.get(f"{thinker.url}/v1/messages", headers=headers)
    check_error(got, 405, "invalid_request_error", "method_not_allowed")
    no_json = http.post(
        f"{thinker.url}/v1/messages", content=b"{", headers=headers | {"content-type": "application/json"}
    )
    check_error(no_json, 400, "invalid_request_error", "invalid_json")
    other = http.post(f"{thinker.url}/v1/chat/completions", json={}, headers=headers)
    assert list(other.json()) == ["error"], "the others keep OpenAI's shape"


@pytest.mark.parametrize(
    ("code", "error", "kind"),
    [
        ("queue_full", anthropic.RateLimitError, "rate_limit_error"),
        ("unavailable", anthropic.APIStatusError, "overloaded_error"),
        ("deadline_exceeded", anthropic.APIStatusError, "timeout_error"),
        ("internal_error", anthropic.InternalServerError, "api_error"),
        ("request_exists", anthropic.ConflictError, "conflict_error"),
    ],
)
def test_what_the_core_refuses(client: anthropic.Anthropic, core: FakeCore, code: str, error: type, kind: str):
    core.script = refuse("no", code)
    for stream in (False, True):
        with pytest.raises(error) as caught:
            client.messages.create(**ASKED, stream=stream)
        assert (caught.value.type, caught.value.error_code) == (kind, code)
        retries = "true" if code in ("queue_full", "unavailable") else "false"
        assert caught.value.response.headers["x-should-retry"] == retries


def test_a_stream_that_fails_in_the_middle(client: anthropic.Anthropic, core: FakeCore):
    def script(submit: m.Submit):
        yield outputs(delta(submit, ids("It")))
        yield outputs(delta(submit, [], "error", error="lost", code="capacity_lost"))

    core.script = script
    with client.messages.stream(**ASKED) as stream:
        texts: list[str] = []
        with pytest.raises(anthropic.APIStatusError) as caught:
            texts.extend(stream.text_stream)
    assert "".join(texts) == "It"
    assert (caught.value.type, caught.value.api_message) == ("overloaded_error", "lost")


def test_a_stream_goes_on_after_an_event(thinker: Frontend, core: FakeCore):
    answering(core, f"{THOUGHT}Wait.\n{CALL}")
    asked = {"request_id": "r1", "resumable": True, "tools": [WEATHER], "thinking": THINKS}
    events = post(thinker, stream=True, **asked).text.split("\n\n")[:-1]
    assert [event.split("\n")[2] for event in events] == [f"id: {number}" for number in range(len(events))]
    url = f"{thinker.url}/v1/requests/r1/events"
    for number in (-1, 0, 5, len(events) - 1):
        after = {"last-event-id": str(number)} if number >= 0 else {}
        rest = http.get(url, headers={"x-api-key": KEY, **after})
        assert rest.text.split("\n\n")[:-1] == events[number + 1 :]
    for bad in ("5!", "-1", "end", "x", "1.2"):
        refused = http.get(url, headers={"x-api-key": KEY, "last-event-id": bad})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Last-Event-ID")
