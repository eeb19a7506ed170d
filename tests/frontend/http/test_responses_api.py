"""The Responses API as openai's package uses it: what is stored, gone on from, refused, and whose it is."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import openai
import pytest
from pydantic import BaseModel

from common import messages as m
from scheduler_svc.frontend.storing.responses import MAX_OPEN
from scheduler_svc.store import responses
from scheduler_svc.store.database import connect
from tests.store.rows import response
from tests.support.demo_tokenizer import decoded, ids
from tests.support.fake_core import FakeCore, say, tokens_of
from tests.support.frontend_process import MODEL, Frontend, assert_openai_shape, running_frontend
from tests.support.plain_http import http

HELLO = {"model": MODEL, "input": "hello there", "max_output_tokens": 7}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}


@pytest.fixture(scope="module")
def store_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def shared_frontend(store_folder) -> Iterator[Frontend]:
    options = ("--store", str(store_folder), "--store-limit", "1")
    with running_frontend(*options, BATON_API_KEYS="alpha,beta") as frontend:
        yield frontend


@pytest.fixture
def client(frontend: Frontend) -> Iterator[openai.OpenAI]:
    with frontend.client("alpha") as client:
        yield client


def prompt_of(core: FakeCore) -> str:
    """What the model was told last."""
    return decoded(tokens_of(core.submits[-1].prompt))


def test_a_whole_response_is_what_is_stored(client, core):
    core.script = say(ids("Good day!"))
    response = client.responses.create(**HELLO, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    assert (response.status, response.output_text) == ("incomplete", "Good day!")
    assert response.incomplete_details.reason == "max_output_tokens"
    assert (response.instructions, response.metadata, response.temperature) == ("Be brief.", {"a": "b"}, 0.5)
    assert response.usage.input_tokens == len(tokens_of(core.submits[-1].prompt))
    assert client.responses.retrieve(response.id) == response
    assert "Be brief." in prompt_of(core)
    assert prompt_of(core).index("Be brief.") < prompt_of(core).index("hello there")


def test_a_stream_and_what_it_stored_are_equal(client, core):
    events = list(client.responses.create(**HELLO, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.incomplete"
    assert client.responses.retrieve(events[-1].response.id) == events[-1].response
    core.script = say(ids("Good day!"), "stop")
    with client.responses.stream(**HELLO) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text


def test_a_conversation_sends_what_is_new_alone(client, core):
    core.script = say(ids("Good day!"))
    first = client.responses.create(**HELLO)
    second = client.responses.create(model=MODEL, input="again", previous_response_id=first.id, max_output_tokens=3)
    assert second.previous_response_id == first.id
    prompt = prompt_of(core)
    assert prompt.index("hello there") < prompt.index("Good day!") < prompt.index("again")
    items = client.responses.input_items.list(second.id).data
    assert [item.content[0].text for item in items] == ["again"], "its own items"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        client.responses.create(model=MODEL, input="again", previous_response_id=second.id)


def test_items_are_referred_to_and_calls_and_thoughts_come_back(client, core):
    core.script = say(ids("Good day!"))
    first = client.responses.create(**HELLO)
    said = first.output[0]
    asked = [
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "item_reference", "id": said.id},
        {"type": "reasoning", "id": "rs_x", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": "b"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "it rains"},
        {"role": "user", "content": "two"},
    ]
    second = client.responses.create(model=MODEL, input=asked, max_output_tokens=3)
    prompt = prompt_of(core)
    assert prompt.index("one") < prompt.index("Good day!") < prompt.index("it rains") < prompt.index("two")
    listed = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.type for item in listed] == [
        *("message", "message", "reasoning", "function_call", "function_call_output", "message")
    ], "page by page"
    assert listed[1].id == said.id
    missing = [{"type": "item_reference", "id": "msg_000000000000000000000000o0"}]
    with pytest.raises(openai.NotFoundError, match="msg_000000000000000000000000o0"):
        client.responses.create(model=MODEL, input=missing)


def test_what_is_referred_to_is_bounded_as_often_as_it_is(client):
    """A short body may stand for very much."""
    thought = [{"type": "reasoning", "summary": [], "encrypted_content": "x" * 200_000}]  # which no prompt shows
    first = client.responses.create(**HELLO | {"input": [*thought, {"role": "user", "content": "hi"}]})
    name = client.responses.input_items.list(first.id, order="asc").data[0].id
    client.responses.create(**HELLO | {"input": [{"type": "item_reference", "id": name}] * 2}, store=False)
    with pytest.raises(openai.BadRequestError, match="8388608 bytes of items by reference") as caught:
        client.responses.create(**HELLO | {"input": [{"type": "item_reference", "id": name}] * 4000}, store=False)
    assert caught.value.param == "input"
    client.responses.delete(first.id)


def test_one_key_sees_nothing_of_another(frontend, client):
    mine = client.responses.create(**HELLO)
    with frontend.client("beta") as other:
        for attempt in (
            lambda: other.responses.retrieve(mine.id),
            lambda: other.responses.delete(mine.id),
            lambda: other.responses.cancel(mine.id),
            lambda: other.responses.input_items.list(mine.id),
            lambda: other.responses.create(model=MODEL, input="x", previous_response_id=mine.id),
            lambda: other.responses.create(model=MODEL, input=[{"type": "item_reference", "id": mine.output[0].id}]),
        ):
            with pytest.raises(openai.NotFoundError):
                attempt()
    assert client.responses.retrieve(mine.id) == mine


def test_what_is_not_stored_is_not_there(client):
    response = client.responses.create(**HELLO, store=False)
    assert response.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


@pytest.mark.parametrize(
    "field", ["user", "safety_identifier", "prompt_cache_key", "instructions", "metadata", "input"]
)
def test_half_a_character_is_refused(frontend, field):
    value = {"a": "\ud83e"} if field == "metadata" else "\ud83e"
    body = json.dumps(HELLO | {field: value}).encode()
    headers = {"authorization": "Bearer alpha", "content-type": "application/json"}
    assert_openai_shape(http.post(f"{frontend.url}/v1/responses", content=body, headers=headers), 400)


def test_log_probabilities_come_with_the_text_and_are_bounded(client, core, monkeypatch):
    response = client.responses.create(**HELLO, top_logprobs=3)
    [part] = response.output[0].content
    assert len(part.logprobs) == 7
    assert all(len(one.top_logprobs) == 3 for one in part.logprobs)
    assert part.text in "".join(one.token for one in part.logprobs)
    assert client.responses.create(model=MODEL, input="hi", top_logprobs=20).status in ("incomplete", "completed")
    assert core.submits[-1].params.max_tokens <= 2**16 // 21, "as many as may be"


def test_text_by_schema_reaches_the_core_as_a_grammar(client, core):
    class Answer(BaseModel):
        name: str

    core.script = say(ids('{"name": "x"}'))
    response = client.responses.parse(**HELLO, text_format=Answer)
    assert response.output_parsed == Answer(name="x")
    assert core.submits[-1].params.constraints.grammar


def test_a_response_in_the_background_waits_in_the_store_where_no_worker_is(client, core):
    before = len(core.submits)
    response = client.responses.create(**HELLO, background=True)
    assert response.status == "queued"
    assert client.responses.retrieve(response.id).status == "queued"
    assert len(core.submits) == before, "the worker submits it"
    with pytest.raises(openai.BadRequestError, match="queued"):
        client.responses.create(model=MODEL, input="x", previous_response_id=response.id)
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled", "again"
    done = client.responses.create(**HELLO)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(done.id)
    with pytest.raises(openai.BadRequestError, match="background"):
        list(client.responses.retrieve(done.id, stream=True))


def test_a_key_has_so_many_responses_in_the_background(client, store_folder):
    first = client.responses.create(**HELLO, background=True)
    with closing(connect(store_folder)) as store:
        [owner] = store.execute("SELECT owner FROM responses WHERE response_id = ?", (first.id,)).fetchone()
        others = [f"resp_{number:024x}" for number in range(MAX_OPEN - 1)]
        for other in others:
            responses.add(store, response(other, owner, created_at=time.time(), expires_at=None, work=b"", head=b""))
        with pytest.raises(openai.RateLimitError, match=f"the limit is {MAX_OPEN}") as refused:
            client.responses.create(**HELLO, background=True)
        assert refused.value.code == "too_many_requests"
        assert client.responses.create(**HELLO).status == "incomplete", "the others are not bounded by it"
        for other in [*others, first.id]:
            responses.delete(store, owner, other, time.time())
    assert client.responses.create(**HELLO, background=True).status == "queued"


def test_a_failure_after_the_headers_is_stored(frontend, core, client):
    core.script = _fails
    events = list(client.responses.create(**HELLO, stream=True))
    assert events[-1].type == "response.failed"
    failed = events[-1].response
    assert failed.error.message == "it broke"
    assert client.responses.retrieve(failed.id) == failed


def _fails(submit: m.Submit):
    yield from list(say(ids("some text"))(submit))[:-1]
    ending = m.TokenDelta(request_id=submit.request_id, index=0, token_ids=b"", finish_reason="error", error="it broke")
    yield m.Outputs(number=0, deltas=(ending,))


def test_the_store_is_full(frontend):
    with frontend.client("beta") as client:
        tool = TOOL | {"description": "x" * 300_000}
        asked = HELLO | {"tools": [tool], "tool_choice": "none", "background": True}  # the model is told of no tool
        kept = [client.responses.create(**asked) for _ in range(3)]
        with pytest.raises(openai.RateLimitError, match="bytes") as caught:
            client.responses.create(**asked)
        assert caught.value.code == "insufficient_quota"
        assert caught.value.response.headers["x-should-retry"] == "false"
        for response in kept:
            client.responses.delete(response.id)
        client.responses.create(model=MODEL, input="hi", max_output_tokens=3)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0]"),
        ({"input": "x", "tools": [{"type": "no_such"}]}, "tools"),
        ({"input": "x", "tools": [TOOL, TOOL]}, "tools"),
        ({"input": "x", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": "x", "tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "previous_response_id": "resp_x"}, "previous_response_id"),
        ({"input": "x", "metadata": {"a": "b" * 513}}, "metadata"),
        ({"input": "x", "no_such": 1}, "no_such"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": 10**6}, "input"),
        ({"input": "x", "include": ["all"]}, "include[0]"),
    ],
    ids=lambda each: each if isinstance(each, str) else json.dumps(each)[:40],
)
def test_what_is_refused(frontend, body, param):
    answer = http.post(
        f"{frontend.url}/v1/responses", json={"model": MODEL, **body}, headers={"authorization": "Bearer alpha"}
    )
    error = assert_openai_shape(answer, 400)
    assert error["param"].startswith(param), error


@pytest.mark.parametrize("name", ["x", "resp_0", "resp_" + "0" * 24, "%F0%9F%A6%8A", "resp_" + "g" * 24])
@pytest.mark.parametrize("path", ["", "/input_items", "/cancel"])
def test_ids_that_are_none(frontend, name, path):
    method = "POST" if path == "/cancel" else "GET"
    answer = http.request(
        method, f"{frontend.url}/v1/responses/{name}{path}", headers={"authorization": "Bearer alpha"}
    )
    assert assert_openai_shape(answer, 404)["code"] == "response_not_found"


@pytest.mark.parametrize(
    "query", ["stream=x", "starting_after=-2", "starting_after=x", "starting_after=99999999999999999999"]
)
def test_queries_that_are_none(frontend, client, query):
    response = client.responses.create(**HELLO)
    url = f"{frontend.url}/v1/responses/{response.id}?{query}"
    error = assert_openai_shape(http.get(url, headers={"authorization": "Bearer alpha"}), 400)
    assert error["param"] == query.split("=")[0]


def test_the_stream_of_a_request_by_its_id_is_not_that_of_a_response(frontend, client):
    response = client.responses.create(**HELLO)
    url = f"{frontend.url}/v1/requests/{response.id}/events"
    assert http.get(url, headers={"authorization": "Bearer alpha"}).status_code == 404


def test_without_a_store():
    with running_frontend() as frontend, frontend.client() as client:
        response = client.responses.create(**HELLO)
        assert response.store is False
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response.id)
        for more in ({"background": True}, {"previous_response_id": "resp_" + "0" * 24}):
            with pytest.raises(openai.BadRequestError, match="without"):
                client.responses.create(**HELLO, **more)
