"""Every refusal has OpenAI's shape, the right status, and names what is wrong."""

import json
from collections.abc import Iterator

import openai
import pytest

from tests.support.eventually import eventually
from tests.support.fake_core import FakeCore, delta, outputs, refuse
from tests.support.frontend_process import COMPLETION, MODEL, Frontend, assert_openai_shape
from tests.support.plain_http import http

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
TOOL = {"type": "function", "function": {"name": "f"}}

# body's changes, parameter that the answer must name
BAD_COMPLETIONS = [
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [1, 999999]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": ["x"] * 600, "n": 2}, "n"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": "0.5"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"stop": ""}, "stop[0]"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": {"a": 1}}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [999999]}, "stop_token_ids"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 20, "n": 128, "max_tokens": 2000}, "logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "resumable": True}, "prompt_logprobs"),
    ({"prompt_logprobs": 20, "n": 128, "prompt": [5] * 1000}, "prompt_logprobs"),
    ({"echo": True, "logprobs": 20, "n": 128, "prompt": [5] * 1000}, "logprobs"),
    ({"echo": 1}, "echo"),
    ({"max_tokens": 0, "echo": False}, "max_tokens"),
    ({"max_tokens": 0, "prompt_logprobs": 1}, "max_tokens"),
    ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
    ({"max_tokens": -1, "echo": True}, "max_tokens"),
    ({"suffix": "s"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [999999]}, "allowed_token_ids"),
    ({"bad_words": "x"}, "bad_words"),
    ({"bad_words": [" "]}, "bad_words"),
    ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
    ({"skip_special_tokens": "no"}, "skip_special_tokens"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    ({"stream": "yes"}, "stream"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    ({"model": None}, "model"),
]
SCHEMA_PARAM = "response_format.json_schema.schema"
BAD_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
    (
        {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": ""}}]},
        "messages[0].function_call",
    ),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"echo": True}, "echo"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"min_tokens": 6, "max_completion_tokens": 5}, "min_tokens"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}}, SCHEMA_PARAM),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "alloy"}}, "audio"),
    ({"functions": []}, "functions"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"prompt": "x"}, "prompt"),
]


@pytest.mark.parametrize(("change", "param"), BAD_COMPLETIONS)
def test_bad_completions(frontend: Frontend, change: dict, param: str):
    error = assert_openai_shape(frontend.post("/v1/completions", COMPLETION | change), 400)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert "\n" not in error["message"]
    assert not frontend.core.submits


@pytest.mark.parametrize(("change", "param"), BAD_CHATS)
def test_bad_chats(frontend: Frontend, change: dict, param: str):
    error = assert_openai_shape(frontend.post("/v1/chat/completions", CHAT | change), 400)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert not frontend.core.submits


def test_what_changes_no_token_is_taken(frontend: Frontend):
    harmless = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "logprobs": False,
        "top_logprobs": 0,
        "tool_choice": "none",
        "stop": None,
        "n": None,
        "temperature": None,
    }
    assert frontend.post("/v1/chat/completions", CHAT | harmless).status_code == 200


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"model":', "invalid_json"),
        (b"", "missing_required_parameter"),
        (b"[]", "invalid_type"),
        (b"\xff\xfe{}", "invalid_json"),
        (b"[" * 100_000, "invalid_value"),
        (b'{"model": "baton-demo", "prompt": "\\ud83d"}', "invalid_value"),
        (b'{"model": "baton-demo", "prompt": "x", "temperature": NaN}', "invalid_json"),
    ],
)
def test_bodies_that_are_no_requests(frontend: Frontend, content: bytes, code: str | None):
    headers = {"content-type": "application/json"}
    answer = http.post(f"{frontend.url}/v1/completions", content=content, headers=headers)
    error = assert_openai_shape(answer, 400)
    if content:
        assert error["code"] == code


def test_the_wrong_model(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-17", prompt="x")
    assert (caught.value.code, caught.value.param, caught.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    assert "gpt-17" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("owner/gpt-17")


@pytest.mark.parametrize(
    "body",
    [{"model": "m" * 2**20, "prompt": "x"}, {"model": MODEL, "prompt": "x", "p" * 2**20: 1}],
    ids=["model", "name"],
)
def test_an_error_quotes_little_of_what_was_sent(frontend: Frontend, body: dict):
    answer = frontend.post("/v1/completions", body)
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 2000
    assert ("m" if "p" * 2**20 not in body else "p") * 100 in answer.text


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/api/chat", "This is OpenAI's API, not Ollama's: use POST /v1/chat/completions."),
        ("GET", "/api/tags", "This is OpenAI's API, not Ollama's: use GET /v1/models."),
        ("POST", "/v1/chat/completion", "Did you mean POST /v1/chat/completions?"),
        ("POST", "/chat/completions", "Did you mean POST /v1/chat/completions?"),
        ("GET", "/v1/model", "Did you mean GET /v1/models?"),
        ("GET", "/v1/files/", "Did you mean GET /v1/files?"),
        ("GET", "/docs", "With --openapi the service describes its API at /docs and /openapi.json."),
        ("GET", "/wp-login.php", "The API is at /v1/chat/completions, /v1/completions, "),
        ("GET", "/" + "completions/" * 50, "The API is at /v1/chat/completions, /v1/completions, "),
    ],
)
def test_a_path_that_is_not_there_is_answered_with_what_is(frontend: Frontend, method: str, path: str, told: str):
    answer = http.request(method, f"{frontend.url}{path}")
    message = assert_openai_shape(answer, 404)["message"]
    assert message.startswith(f"There is no {path} here. {told}")


def test_unknown_routes_and_methods(frontend: Frontend):
    assert assert_openai_shape(http.get(f"{frontend.url}/v1/nothing"), 404)["code"] == "unknown_url"
    answer = http.get(f"{frontend.url}/v1/completions")
    assert assert_openai_shape(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"


def test_too_long_for_the_model(client: openai.OpenAI, core: FakeCore):
    messages = [{"role": "user", "content": "word " * 3000}]
    for ask in (
        lambda: client.completions.create(model=MODEL, prompt="word", max_tokens=2048),
        lambda: client.completions.create(model=MODEL, prompt="word " * 3000),
        lambda: client.chat.completions.create(model=MODEL, messages=messages),
        lambda: client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=5),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask()
        assert caught.value.code == "context_length_exceeded"
        assert "2048" in caught.value.message
    assert not core.submits


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("queue_full", openai.RateLimitError),
        ("context_length_exceeded", openai.BadRequestError),
        ("invalid_value", openai.BadRequestError),
        ("unavailable", openai.InternalServerError),
        ("internal_error", openai.InternalServerError),
        ("something_new", openai.InternalServerError),
    ],
)
def test_what_the_core_refuses(client: openai.OpenAI, core: FakeCore, stream: bool, code: str, expected: type):
    core.script = refuse("because", code)
    with pytest.raises(expected) as caught:
        client.completions.create(model=MODEL, prompt="x", stream=stream)
    assert (caught.value.code, caught.value.message[-7:]) == (code, "because") or "because" in caught.value.message
    assert ("retry-after" in caught.value.response.headers) == (code in ("queue_full", "unavailable"))
    assert caught.value.status_code == {"queue_full": 429, "unavailable": 503}.get(code, caught.value.status_code)


def test_one_refused_prompt_refuses_the_list(client: openai.OpenAI, core: FakeCore):
    def script(submit) -> Iterator:
        if submit.request_id.endswith("-1"):
            yield outputs(delta(submit, [], "error", error="too much", code="queue_full"))
        yield 60.0

    core.script = script
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model=MODEL, prompt=["a", "b", "c"])
    eventually(lambda: len(core.cancels) == 2)
    assert {cancel.request_id[-2:] for cancel in core.cancels} == {"-0", "-2"}


@pytest.mark.parametrize(
    "end",
    [{"reason": "error", "error": "it burnt", "code": "internal_error"}, {"reason": "cancelled"}],
    ids=["error", "cancelled"],
)
def test_an_error_after_the_stream_began(client: openai.OpenAI, core: FakeCore, end: dict):
    def script(submit) -> Iterator:
        yield outputs(delta(submit, [300, 301]))
        yield 0.05
        yield outputs(delta(submit, [], **end))

    core.script = script
    stream = client.completions.create(model=MODEL, prompt="x", stream=True)
    assert next(stream).choices[0].text
    with pytest.raises(openai.APIError) as caught:
        next(stream)
    assert ("burnt" if end["reason"] == "error" else "cancelled") in str(caught.value)


def test_an_error_event_is_the_last_one(frontend: Frontend, core: FakeCore):
    core.script = lambda submit: iter(
        [
            outputs(delta(submit, [300])),
            0.05,
            outputs(delta(submit, [], "error", error="it burnt", code="internal_error")),
        ]
    )
    answer = frontend.post("/v1/completions", COMPLETION | {"stream": True})
    *_, last = answer.text.strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "it burnt"


def test_a_served_model_that_cannot_score_says_why(frontend: Frontend):
    answer = frontend.post("/v1/rerank", {"model": MODEL, "query": "x", "documents": ["y"]})
    error = assert_openai_shape(answer, 400)
    assert (error["param"], "writes 'yes' with 2 tokens" in error["message"]) == ("model", True)
