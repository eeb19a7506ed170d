"""Requests that a client comes back for: the events endpoint, and the end of a request."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from common import messages as m
from tests.frontend.sse import Event, events_after, events_in, events_of, text_of
from tests.support.demo_tokenizer import ids
from tests.support.eventually import eventually
from tests.support.fake_core import FakeCore, Step, delta, outputs, say, silence
from tests.support.frontend_process import COMPLETION, MODEL, Frontend, assert_openai_shape
from tests.support.plain_http import NO_TLS, http

STREAM = COMPLETION | {"stream": True, "max_tokens": 1000}
WORDS = list(range(300, 340))
names = iter(f"my.own_id-{i}" for i in range(10**6))


@pytest.fixture
def request_id() -> str:
    return next(names)


def open_stream(frontend: Frontend, body: dict) -> httpx.Response:
    """A stream that is being read; to be closed by the test."""
    client = httpx.Client(timeout=20, verify=NO_TLS)
    request = client.build_request("POST", f"{frontend.url}/v1/completions", json=body)
    return client.send(request, stream=True)


def take(answer: httpx.Response, num_events: int) -> list[Event]:
    """The first events of a stream, which is broken off then."""
    events = events_in(answer)
    taken = [next(events) for _ in range(num_events)]
    answer.close()
    return taken


def logprobs_of(events: list[Event], choice: int) -> list[tuple]:
    """A tuple for each token of a choice of completions."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    parts = [part for event in events if event.data != "[DONE]" for part in event.data["choices"]]
    columns = [[part["logprobs"][name] for part in parts if part["index"] == choice] for name in names]
    return list(zip(*([entry for chunk in column for entry in chunk] for column in columns), strict=True))


def test_every_event_has_an_id_except_the_last(frontend: Frontend, core: FakeCore, request_id: str):
    core.script = say([300, 301, 302], pause_s=0.2)  # so that no two share an event
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True, "request_id": request_id}
    more = {"stream_options": {"include_usage": True}, "resumable": True}
    events = events_of(frontend.post("/v1/chat/completions", chat | more).content)
    assert [event.id for event in events] == ["0", "1", "2", "3!", "end", ""]
    assert events[-1].data == "[DONE]"
    assert {event.data["id"] for event in events[:-1]} == {request_id}


@pytest.mark.parametrize(("num_choices", "resumable"), [(1, False), (9, False), (9, True)])
def test_ids_that_nobody_asked_for_are_not_sent(
    frontend: Frontend, core: FakeCore, request_id: str, num_choices: int, resumable: bool
):
    """Benchmark clients read an event's first line alone, and an id has an entry for each choice."""
    core.script = say([300, 301])
    body = STREAM | {"request_id": request_id, "prompt": ["x"] * num_choices, "stream_options": {"include_usage": True}}
    *events, done = events_of(frontend.post("/v1/completions", body | {"resumable": resumable}).content)
    assert {bool(event.id) for event in events} == {resumable}
    assert done.id == ""
    *again, _ = events_of(events_after(frontend, request_id).content)
    assert all(event.id for event in again), "who asks for the rest of an answer may do so again"
    texts = [text_of(events, choice) for choice in range(num_choices)]
    assert [text_of(again, choice) for choice in range(num_choices)] == texts


def test_the_openai_client_does_not_mind_ids(client: openai.OpenAI, core: FakeCore, request_id: str):
    core.script = say(WORDS)
    extra = {"request_id": request_id, "resumable": True}
    stream = client.completions.create(model=MODEL, prompt="x", max_tokens=100, stream=True, extra_body=extra)
    assert stream.response.headers["x-request-id"] == request_id
    chunks = list(stream)
    assert {chunk.id for chunk in chunks} == {request_id}
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("replay_size", [1, 1000])
def test_a_stream_goes_on_after_any_event(frontend: Frontend, core: FakeCore, request_id: str, replay_size: int):
    core.script = say(WORDS[:6], pause_s=0.005)
    core.replay_size = replay_size
    body = STREAM | {"prompt": ["x", "y"], "n": 2, "request_id": request_id, "resumable": True}
    events = events_of(frontend.post("/v1/completions", body | {"stream_options": {"include_usage": True}}).content)
    whole = [text_of(events, choice) for choice in range(4)]
    assert all(whole)
    for number, event in enumerate(events[:-1]):
        rest = events_of(events_after(frontend, request_id, event.id).content)
        both = [*events[: number + 1], *rest]
        assert [text_of(both, choice) for choice in range(4)] == whole
        assert rest[-1].data == "[DONE]"
        if event.id != "end":
            assert rest[-2] == events[-2]  # the usage
    assert events_of(events_after(frontend, request_id).content)[-2:] == events[-2:]


def test_a_broken_connection_of_a_resumable_request(frontend: Frontend, core: FakeCore, request_id: str):
    core.script = say(WORDS, pause_s=0.02)
    first = take(open_stream(frontend, STREAM | {"request_id": request_id, "resumable": True}), 3)
    eventually(lambda: core.detaches)
    assert core.detaches[0].request_id == f"{request_id}-0"
    assert not core.cancels
    second = events_of(events_after(frontend, request_id, first[-1].id).content)
    undisturbed = events_of(events_after(frontend, request_id).content)
    assert text_of(first + second) == text_of(undisturbed)
    assert second[-1].data == "[DONE]"


def test_a_connection_that_came_back_breaks_again(frontend: Frontend, core: FakeCore, request_id: str):
    core.script = say(WORDS, pause_s=0.02)
    for resumable in (True, False):
        name = f"{request_id}-{resumable}"
        first = events_in(open_stream(frontend, STREAM | {"request_id": name, "resumable": resumable}))
        next(first)
        url = f"{frontend.url}/v1/requests/{name}/events"
        with httpx.Client(timeout=20, verify=NO_TLS) as client, client.stream("GET", url) as second:
            assert next(events_in(second)).id
        assert list(first)[-1].data["error"]["code"] == "taken_over"
    eventually(lambda: core.detaches and core.cancels)
    assert [detach.request_id for detach in core.detaches] == [f"{request_id}-True-0"]
    assert [cancel.request_id for cancel in core.cancels] == [f"{request_id}-False-0"]


def test_a_whole_answer_can_be_fetched_as_a_stream(frontend: Frontend, core: FakeCore, request_id: str):
    def script(submit: m.Submit) -> Iterator[Step]:
        while not core.detaches:
            yield 0.02
        yield outputs(delta(submit, WORDS, "length"))

    core.script = script
    body = COMPLETION | {"request_id": request_id, "resumable": True}
    frontend.begin("/v1/completions", body).close()
    eventually(lambda: core.detaches)
    answer = events_after(frontend, request_id)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"] == request_id
    events = events_of(answer.content)
    assert [event.id for event in events] == ["40!", "end", ""]  # as the whole answer would have had the usage
    assert events[0].data["choices"][0]["finish_reason"] == "length"


def test_a_second_connection_takes_over(frontend: Frontend, core: FakeCore, request_id: str):
    core.script = say(WORDS, pause_s=0.02)
    events = events_in(open_stream(frontend, STREAM | {"request_id": request_id, "prompt": ["x", "y"]}))
    first = [next(events)]
    second = events_of(events_after(frontend, request_id).content)
    first += list(events)
    assert first[-1].data["error"]["code"] == "taken_over"
    assert first[-1].id == ""
    assert second[-1].data == "[DONE]"
    assert text_of(second, 1).startswith(text_of(first, 1))
    assert not core.cancels
    assert not core.detaches


def test_several_connections_at_once(frontend: Frontend, core: FakeCore, request_id: str):
    """However their attaches meet, the one that comes last reads everything, and the others are told."""
    core.script = say(WORDS, pause_s=0.02)
    stream = open_stream(frontend, STREAM | {"request_id": request_id})
    url = f"{frontend.url}/v1/requests/{request_id}/events"
    with httpx.Client(timeout=20, verify=NO_TLS) as client:
        streams = [client.send(client.build_request("GET", url), stream=True) for _ in range(3)]
        events = [list(events_in(answer)) for answer in (stream, *streams)]
    assert [ended[-1].data for ended in events].count("[DONE]") == 1
    codes = [ended[-1].data["error"]["code"] for ended in events if ended[-1].data != "[DONE]"]
    assert codes == ["taken_over"] * 3


@pytest.mark.parametrize("request_id", ["never-seen", "no.such", "x" * 65, "a%20b", "%F0%9F%A6%8A", "a:b"])
@pytest.mark.parametrize("event_id", ["", "5"])
def test_an_unknown_request(frontend: Frontend, request_id: str, event_id: str):
    error = assert_openai_shape(events_after(frontend, request_id, event_id), 404)
    assert (error["code"], error["param"]) == ("request_not_found", "request_id")
    assert_openai_shape(http.delete(f"{frontend.url}/v1/requests/{request_id}"), 404)


@pytest.mark.parametrize("event_id", ["x", "1.2", "end.1", "1!!"])
def test_a_last_event_id_that_cannot_be(frontend: Frontend, core: FakeCore, request_id: str, event_id: str):
    frontend.post("/v1/completions", STREAM | {"request_id": request_id})
    error = assert_openai_shape(events_after(frontend, request_id, event_id), 400)
    assert error["param"] == "Last-Event-ID"


def test_tokens_that_are_computed_again(frontend: Frontend, core: FakeCore, request_id: str):
    """A client may have more than a core that came back remembers: it hears nothing until there is more."""
    core.script = say(WORDS, pause_s=0.01)
    stream = open_stream(frontend, STREAM | {"request_id": request_id, "resumable": True})
    take(stream, 1)
    answer = events_after(frontend, request_id, "30")
    events = events_of(answer.content)
    assert int(events[0].id.rstrip("!")) > 30
    assert text_of(events) == text_of(events_of(events_after(frontend, request_id, "30").content))


def test_an_id_in_use(frontend: Frontend, core: FakeCore, request_id: str):
    core.script = silence
    body = COMPLETION | {"request_id": request_id, "n": 2}
    frontend.begin("/v1/completions", body | {"resumable": True}).close()
    error = assert_openai_shape(frontend.post("/v1/completions", body), 409)
    assert error["code"] == "request_exists"
    eventually(lambda: core.detaches)
    assert not core.cancels  # above all not the one that has the id


@pytest.mark.parametrize("bad", ["", "x" * 65, "a b", "a/b", "é", "a\n", 5])
def test_ids_that_are_none(frontend: Frontend, core: FakeCore, bad: object):
    error = assert_openai_shape(frontend.post("/v1/completions", COMPLETION | {"request_id": bad}), 400)
    assert error["param"] == "request_id"
    assert not core.submits


def test_what_the_core_is_told_of_a_request(frontend: Frontend, core: FakeCore, request_id: str):
    frontend.post("/v1/completions", STREAM | {"request_id": request_id, "prompt": ["x", "y"], "stop": "z"})
    assert [submit.request_id for submit in core.submits] == [f"{request_id}-0", f"{request_id}-1"]
    assert core.submits[0].context
    assert not core.submits[1].context  # once is enough


def test_what_was_asked_of_an_answer_holds_after_any_event(frontend: Frontend, core: FakeCore, request_id: str):
    """The other connection knows from the request's context how many log-probabilities there are, which tokens have
    text, and what ends it."""
    tokens = ids("one <|im_end|>two 月 three four")
    core.script, core.replay_size = say([*tokens, *ids(" five six")], pause_s=0.005), 7
    asked = {"logprobs": 2, "stop": " four", "include_stop_str_in_output": True, "skip_special_tokens": False}
    body = STREAM | asked | {"request_id": request_id, "resumable": True, "n": 2, "min_tokens": 1}
    events = events_of(frontend.post("/v1/completions", body).content)
    assert text_of(events) == "one <|im_end|>two 月 three four"
    whole = [logprobs_of(events, choice) for choice in (0, 1)]
    assert [len(entries) for entries in whole] == [len(tokens)] * 2
    eventually(lambda: core.cancels)
    for number, event in enumerate(events[:-1]):
        both = [*events[: number + 1], *events_of(events_after(frontend, request_id, event.id).content)]
        assert [logprobs_of(both, choice) for choice in (0, 1)] == whole
        assert [text_of(both, choice) for choice in (0, 1)] == [text_of(events, choice) for choice in (0, 1)]


def test_each_chunk_says_what_computed_it(frontend: Frontend, core: FakeCore, request_id: str):
    def script(submit: m.Submit) -> Iterator[Step]:
        yield outputs(
            delta(submit, [300], model="a" * 32 + "/float32"), delta(submit, [300], index=1, model="b/bfloat16")
        )
        yield outputs(delta(submit, [301]), delta(submit, [301], "length", index=1))
        yield outputs(delta(submit, [302], "length", model="c" * 32 + "/float32"))

    core.script = script
    body = STREAM | {"request_id": request_id, "resumable": True, "n": 2, "stream_options": {"include_usage": True}}
    *events, usage, _ = events_of(frontend.post("/v1/completions", body).content)
    fingerprints = {
        (event.data["choices"][0]["index"], event.data["system_fingerprint"]): event.data["choices"][0]["finish_reason"]
        for event in events
    }
    old, new = "bt-aaaaaaaaaaaa-float32", "bt-cccccccccccc-float32"
    assert fingerprints == {(0, old): None, (1, "bt-b-bfloat16"): "length", (0, new): "length"}
    assert usage.data["system_fingerprint"] == new


def test_the_error_that_ended_a_request_is_said_again(frontend: Frontend, core: FakeCore, request_id: str):
    core.script = lambda submit: iter(
        [
            outputs(delta(submit, [300])),
            0.05,
            outputs(delta(submit, [], "error", error="it burnt", code="internal_error")),
        ]
    )
    events = events_of(frontend.post("/v1/completions", STREAM | {"request_id": request_id, "resumable": True}).content)
    assert [event.id for event in events] == ["1", ""]
    again = events_of(events_after(frontend, request_id).content)
    assert again == events
    assert assert_openai_shape(events_after(frontend, request_id, "1"), 500)["message"] == "it burnt"


# --- DELETE ---


def cancelled(core: FakeCore, request_id: str) -> set[str]:
    """Of this request alone: a second Cancel of the one before may still come."""
    return {cancel.request_id for cancel in core.cancels if cancel.request_id.startswith(f"{request_id}-")}


def test_deleting_what_is_being_read_here(frontend: Frontend, core: FakeCore, request_id: str):
    core.script = say(WORDS, pause_s=0.05)
    events = events_in(
        open_stream(frontend, STREAM | {"request_id": request_id, "resumable": True, "prompt": ["x", "y"]})
    )
    next(events)
    answer = http.delete(f"{frontend.url}/v1/requests/{request_id}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert list(events)[-1].data["error"]["code"] == "cancelled"
    eventually(lambda: cancelled(core, request_id) == {f"{request_id}-0", f"{request_id}-1"})


def test_deleting_what_nobody_reads(frontend: Frontend, core: FakeCore, request_id: str):
    core.script = say(WORDS, pause_s=0.05)
    take(open_stream(frontend, STREAM | {"request_id": request_id, "prompt": ["x", "y"], "resumable": True}), 2)
    eventually(lambda: core.detaches)
    assert http.delete(f"{frontend.url}/v1/requests/{request_id}").status_code == 204
    eventually(lambda: cancelled(core, request_id) == {f"{request_id}-0", f"{request_id}-1"})
    *_, last = events_of(events_after(frontend, request_id).content)
    assert last.data["error"]["code"] == "cancelled"


def test_deleting_what_has_ended(frontend: Frontend, core: FakeCore, request_id: str):
    events = frontend.post("/v1/completions", STREAM | {"request_id": request_id, "resumable": True}).content
    assert http.delete(f"{frontend.url}/v1/requests/{request_id}").status_code == 204
    assert events_after(frontend, request_id).content == events
