"""Streams that wait: their headers come when the core has accepted the request, and comments while nothing does."""

from collections.abc import Iterator

import pytest

from common import messages as m
from tests.frontend.sse import events_of, text_of
from tests.support.fake_core import Step, delta, outputs, say
from tests.support.frontend_process import COMPLETION, Frontend, assert_openai_shape, running_frontend
from tests.support.plain_http import http

STREAM = COMPLETION | {"stream": True, "prompt": "hello"}
COMMENT = ": keep-alive\n\n"


@pytest.fixture(scope="module")
def shared_frontend() -> Iterator[Frontend]:
    with running_frontend("--keep-alive", "0.1") as frontend:
        yield frontend


def accepted(submit: m.Submit) -> m.Accepted:
    return m.Accepted(request_ids=(submit.request_id,))


def accepting(submit: m.Submit) -> Iterator[Step]:
    """Takes every request, and has no executor."""
    yield accepted(submit)
    yield 3600.0


def streamed(frontend: Frontend, **fields: object):
    return http.stream("POST", f"{frontend.url}/v1/completions", json=STREAM | fields)


def test_headers_and_comments_come_without_any_token(frontend: Frontend):
    frontend.core.script = accepting
    with streamed(frontend) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        received = ""
        for text in answer.iter_text():
            received += text
            if received.count(COMMENT) == 3:
                break
        assert received == 3 * COMMENT


def test_comments_stand_between_events(frontend: Frontend):
    frontend.core.script = say(list(range(100, 104)), pause_s=0.35)
    with streamed(frontend, logprobs=1) as answer:
        body = answer.read()
    assert body.count(COMMENT.encode()) >= 3
    parts = [part for part in body.decode().split("\n\n") if part]
    assert all(part == COMMENT.strip() or part.startswith("data: {") for part in parts[:-1])
    assert parts[-1] == "data: [DONE]"


def test_what_no_executor_takes_keeps_its_status_until_it_is_accepted(frontend: Frontend):
    """The first prompt's acceptance says nothing of the second one's."""

    def script(submit: m.Submit) -> Iterator[Step]:
        if submit.request_id.endswith("-0"):
            yield accepted(submit)
        yield 0.3
        yield outputs(delta(submit, [], "error", error="too many", code="queue_full"))

    frontend.core.script = script
    with streamed(frontend, prompt=["a", "b"]) as answer:
        answer.read()
        assert assert_openai_shape(answer, 429)["code"] == "queue_full"


def test_a_failure_after_the_headers_is_an_event(frontend: Frontend):
    def script(submit: m.Submit) -> Iterator[Step]:
        yield accepted(submit)
        yield 0.25
        yield outputs(delta(submit, [], "error", error="too late", code="deadline_exceeded"))

    frontend.core.script = script
    with streamed(frontend) as answer:
        body = answer.read().decode()
    assert answer.status_code == 200
    *comments, last = [part for part in body.split("\n\n") if part]
    assert set(comments) == {COMMENT.strip()}
    assert '"code":"deadline_exceeded"' in last


def test_whole_answers_get_no_comments(frontend: Frontend):
    frontend.core.script = say([100, 101], pause_s=0.3, per_step=1)
    answer = frontend.post("/v1/completions", COMPLETION | {"stop": "~~~"})  # its tokens come one by one
    assert answer.content.startswith(b"{")
    assert answer.json()["choices"][0]["finish_reason"] == "length"


def test_the_rest_of_a_stream_that_waits(frontend: Frontend):
    """Nothing says that its request was accepted, but silence."""
    frontend.core.script = accepting
    with streamed(frontend, request_id="waits", resumable=True) as answer:
        next(answer.iter_text())
    with http.stream("GET", f"{frontend.url}/v1/requests/waits/events") as answer:
        assert answer.status_code == 200
        assert next(text for text in answer.iter_text() if text) == COMMENT


def test_only_resumable_streams_have_ids_and_these_come_after_the_data(frontend: Frontend):
    with streamed(frontend) as answer:
        plain = answer.read()
    assert b"id:" not in plain
    with streamed(frontend, resumable=True, request_id="mine") as answer:
        named = answer.read()
    *events, done = [part.split("\n") for part in named.decode().split("\n\n") if part]
    assert all(data.startswith("data: ") and name.startswith("id: ") for data, name in events)
    assert done == ["data: [DONE]"]
    rest = http.get(f"{frontend.url}/v1/requests/mine/events").content
    assert b"\nid: end\n" in rest or b"!\n\n" in rest
    assert text_of(events_of(rest)) == text_of(events_of(plain)) == text_of(events_of(named)) == "hello"
