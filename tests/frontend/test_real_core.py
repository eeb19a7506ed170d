"""A frontend process and the real core: what a client comes back for is there, and is what it would have been."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from common import messages as m
from scheduler_svc.core.requests import retention
from scheduler_svc.frontend.text.detokenizer import Detokenizer
from scheduler_svc.server.journal import Journal
from tests.frontend.sse import Event, events_after, events_in, events_of, text_of
from tests.support.core import FakeExecutor, RunningCore, running_core
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.eventually import eventually
from tests.support.frontend_process import MODEL, Frontend
from tests.support.hello import LIMITS
from tests.support.oracle import expected_output
from tests.support.plain_http import NO_TLS, http

PROMPTS = [[5, 6, 7], [8, 9]]
MAX_TOKENS = 60
BODY = {
    "model": MODEL,
    "prompt": PROMPTS,
    "n": 2,
    "max_tokens": MAX_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "resumable": True,
}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCore]:
    with running_core(tmp_path_factory.mktemp("core")) as core:
        yield core


@pytest.fixture(scope="module")
def one_for_all(core: RunningCore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    frontend = Frontend(SimpleNamespace(endpoint=core.front), tmp_path_factory.mktemp("frontend") / "log")
    yield frontend
    frontend.stop()


@pytest.fixture
def executor(core: RunningCore) -> Iterator[FakeExecutor]:
    executor = FakeExecutor(core.back, step_s=0.01)
    yield executor
    executor.kill()


@pytest.fixture
def frontend(one_for_all: Frontend, executor: FakeExecutor) -> Frontend:
    """A frontend of a service with an executor; requests of other tests are known, too."""
    one_for_all.wait_until_ready()
    return one_for_all


def expected_text(prompt: list[int]) -> str:
    """What the oracle says after a prompt."""
    detokenizer = Detokenizer(TOKENIZER.token_bytes)
    params = m.SamplingParams(max_tokens=MAX_TOKENS)
    return detokenizer.feed(expected_output(prompt, params, LIMITS.vocab_size)) + detokenizer.flush()


def texts_of(events: list) -> list[str]:
    """The four choices' texts."""
    return [text_of(events, choice) for choice in range(4)]


def test_breaking_off_and_going_on(frontend: Frontend):
    seen = []
    with http.stream("POST", f"{frontend.url}/v1/completions", json=BODY | {"request_id": "broken-off"}) as answer:
        events = events_in(answer)
        seen += [next(events) for _ in range(9)]
    while seen[-1].data != "[DONE]":
        headers = {"last-event-id": seen[-1].id}
        with http.stream("GET", f"{frontend.url}/v1/requests/broken-off/events", headers=headers) as answer:
            assert answer.status_code == 200
            seen += [event for event, _ in zip(events_in(answer), range(30), strict=False)]
    assert texts_of(seen) == [expected_text(prompt) for prompt in PROMPTS for _ in range(2)]
    assert seen[-2].data["usage"]["completion_tokens"] == 4 * MAX_TOKENS
    assert seen[-2].data["usage"]["prompt_tokens"] == 5
    assert len({event.id for event in seen}) == len(seen)
    assert {event.data["system_fingerprint"] for event in seen[:-1]} == {"bt-f00d-float32"}


def test_another_frontend_takes_over(core: RunningCore, frontend: Frontend, tmp_path: Path):
    other = Frontend(SimpleNamespace(endpoint=core.front), tmp_path / "other-log")
    try:
        other.wait_until_ready()
        body = BODY | {"request_id": "taken", "resumable": False}
        with http.stream("POST", f"{frontend.url}/v1/completions", json=body) as answer:
            events = events_in(answer)
            next(events)
            whole = events_of(events_after(other, "taken").content)
            assert list(events)[-1].data["error"]["code"] == "taken_over"
        assert texts_of(whole) == [expected_text(prompt) for prompt in PROMPTS for _ in range(2)]
    finally:
        other.stop()


def test_the_end_of_a_request(frontend: Frontend):
    with http.stream("POST", f"{frontend.url}/v1/completions", json=BODY | {"request_id": "ended"}) as answer:
        events = events_in(answer)
        next(events)
        assert http.post(f"{frontend.url}/v1/completions", json=BODY | {"request_id": "ended"}).status_code == 409
        assert http.delete(f"{frontend.url}/v1/requests/ended").status_code == 204
        assert list(events)[-1].data["error"]["code"] == "cancelled"
    assert http.delete(f"{frontend.url}/v1/requests/never").status_code == 404
    status = http.get(f"{frontend.url}/status").json()
    assert (status["running"], status["waiting"]) == (0, 0)


def test_draining(frontend: Frontend):
    [executor] = http.get(f"{frontend.url}/status").json()["executors"]
    assert http.post(f"{frontend.url}/admin/executors/nobody/drain").status_code == 404
    answer = http.post(f"{frontend.url}/admin/executors/fake/drain", json={"finish": True})
    assert (answer.status_code, answer.json()) == (200, {"epoch": executor["epoch"]})


def begun(frontend: Frontend, **fields: Any) -> tuple[httpx.Response, Iterator[Event]]:
    """A stream that has begun, and its other events."""
    request = httpx.Request("POST", f"{frontend.url}/v1/completions", json=BODY | fields)
    answer = httpx.Client(timeout=20, verify=NO_TLS).send(request, stream=True)
    events = events_in(answer)
    next(events)
    return answer, events


def num_open(frontend: Frontend) -> int:
    status = http.get(f"{frontend.url}/status").json()
    return status["running"] + status["waiting"]


def test_the_first_prompt_ends_long_before_the_second(
    core: RunningCore, frontend: Frontend, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
):
    """A client that comes back finds both, and a DELETE ends the one that is left."""
    monkeypatch.setattr(retention, "RETAIN_S", 0.05)
    (_, second, *_) = expected_output(PROMPTS[0], m.SamplingParams(max_tokens=2), LIMITS.vocab_size)
    answer, _ = begun(frontend, n=1, stop_token_ids=[second], request_id="r")
    answer.close()
    requests = core.core_process.core.requests
    ended_at = eventually(lambda: requests.table.find("r-0").ended_at)
    executor.kill()  # the second prompt waits for another one
    eventually(lambda: time.monotonic() > ended_at + 10 * retention.RETAIN_S)
    with http.stream("GET", f"{frontend.url}/v1/requests/r/events") as answer:
        assert answer.status_code == 200
        next(events_in(answer))
    assert num_open(frontend) == 1
    assert http.delete(f"{frontend.url}/v1/requests/r").status_code == 204
    eventually(lambda: num_open(frontend) == 0)
    eventually(lambda: http.delete(f"{frontend.url}/v1/requests/r").status_code == 404)


def test_a_core_that_comes_back_with_its_journal(tmp_path: Path):
    """It goes on with one request, and does not know the other, which could not be resumed: its client gets no stream
    that never goes on, and it takes no executor's time."""
    with running_core(tmp_path, journal=Journal(tmp_path / "journal")) as core:
        executor = FakeExecutor(core.back, step_s=0.02)
        frontend = Frontend(SimpleNamespace(endpoint=core.front), tmp_path / "log")
        frontend.wait_until_ready()
        _, events = begun(frontend, request_id="lost", resumable=False)
        client = httpx.Client(timeout=20, verify=NO_TLS)
        request = client.build_request("POST", f"{frontend.url}/v1/completions", json=BODY | {"request_id": "r"})
        kept_events = events_in(client.send(request, stream=True))
        seen = [next(kept_events) for _ in range(5)]
    with pytest.raises(httpx.RemoteProtocolError):  # not an event with an error, which would make clients give up
        seen.extend(kept_events)
    *_, error = events
    executor.kill()
    assert error.data["error"]["code"] == "unavailable"
    with running_core(tmp_path, journal=Journal(tmp_path / "journal")) as core:
        eventually(lambda: is_healthy(frontend))
        assert num_open(frontend) == 4, "the choices of the one that could be resumed"
        executor = FakeExecutor(core.back)
        try:
            frontend.wait_until_ready()
            seen += events_of(events_after(frontend, "r", seen[-1].id).content)
            assert num_open(frontend) == 0
            assert events_after(frontend, "lost").status_code == 404
            assert http.delete(f"{frontend.url}/v1/requests/lost").status_code == 404
        finally:
            frontend.stop()
            executor.kill()
    assert seen[-1].data == "[DONE]"
    assert texts_of(seen) == [expected_text(prompt) for prompt in PROMPTS for _ in range(2)]


def test_a_stream_begins_before_there_is_an_executor(tmp_path: Path):
    with running_core(tmp_path) as core:
        frontend = Frontend(SimpleNamespace(endpoint=core.front), tmp_path / "log", "--keep-alive", "0.1")
        executor = None
        try:
            eventually(lambda: is_healthy(frontend))
            url = f"{frontend.url}/v1/completions"
            with http.stream("POST", url, json=BODY | {"resumable": False}) as answer:
                received = answer.iter_text()
                assert next(received).startswith(": keep-alive\n\n")
                assert answer.status_code == 200
                executor = FakeExecutor(core.back, step_s=0.01)
                assert "".join(received).endswith("data: [DONE]\n\n")
            assert http.post(url, json={"model": "none", "prompt": "x"}).status_code == 404
            metrics = http.get(f"{frontend.url}/metrics").text
            assert 'baton_http_requests_total{code="200",path="/v1/completions"} 1.0' in metrics
            assert 'baton_requests_refused_total{code="model_not_found"} 1.0' in metrics
        finally:
            frontend.stop()
            if executor is not None:
                executor.kill()


def is_healthy(frontend: Frontend) -> bool:
    try:
        return http.get(f"{frontend.url}/health").status_code == 200
    except httpx.TransportError:
        return False
