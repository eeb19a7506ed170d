"""Requests as a collector of traces sees them: the real frontend process, a fake core and a real OTLP receiver."""

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from common import messages as m
from tests.frontend.collector import Collector, Span, attributes, collecting
from tests.frontend.tracing.lives import life, slow_echo
from tests.support.eventually import eventually
from tests.support.fake_core import FakeCore, refuse, say, silence
from tests.support.frontend_process import COMPLETION, MODEL, Frontend, running_frontend
from tests.support.plain_http import http
from tests.support.pooling_folders import make_reranker

RERANKER = "rank"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 9}
SERVER, INTERNAL = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_INTERNAL
UNSET, ERROR = 0, 2


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def shared_frontend(collector: Collector, tmp_path_factory) -> Iterator[Frontend]:
    reranker = make_reranker(tmp_path_factory.mktemp("reranker"))
    with running_frontend("--pooling-model", f"score:{RERANKER}={reranker}", **collector.environment) as frontend:
        yield frontend


@pytest.fixture(autouse=True)
def _no_lives(core: FakeCore) -> None:
    core.tell_life = lambda request_id, now: ()


def post(frontend: Frontend, path: str, body: object, **headers: str) -> httpx.Response:
    return http.post(frontend.url + path, json=body, headers=headers)


def id_of(answer: httpx.Response) -> str:
    return answer.headers["x-request-id"]


def test_a_request_is_a_span_with_its_sequence_below(frontend: Frontend, core: FakeCore, collector: Collector):
    core.script = say([70, 71, 72, 73], pause_s=0.05)
    core.tell_life = lambda request_id, now: (life(now),)
    before_ns = time.time_ns()
    body = CHAT | {"stream": True, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 7, "stop": ["###"]}
    answer = post(frontend, "/v1/chat/completions", body, traceparent=TRACEPARENT, tracestate="vendor=1")
    span = collector.of_answer(id_of(answer))
    assert core.life_queries == [f"{id_of(answer)}-0"]
    assert (span.name, span.kind, span.status.code) == (f"chat {MODEL}", SERVER, UNSET)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert span.trace_state == "vendor=1"
    assert before_ns <= span.start_time_unix_nano < span.end_time_unix_nano <= time.time_ns()
    told = attributes(span)
    first_chunk_s = told.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < first_chunk_s < (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    prompt_tokens = told.pop("gen_ai.usage.input_tokens")
    assert prompt_tokens > 3
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.seed": 7,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stop_sequences": ["###"],
        "gen_ai.response.id": id_of(answer),
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "baton.model": "0123456789abcdef/float32",
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "http.response.header.x-request-id": [id_of(answer)],
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
    }
    children = collector.below(span)
    assert [child.name for child in children] == [f"baton.{n}" for n in ("queue", "prefill", "decode") * 2]
    assert {child.kind for child in children} == {INTERNAL}
    assert attributes(children[1])["baton.executor.name"] == "gpu-0"
    assert attributes(children[1])["baton.executor.epoch"] == 7
    for child in children:
        assert span.start_time_unix_nano <= child.start_time_unix_nano <= child.end_time_unix_nano
        assert child.end_time_unix_nano <= span.end_time_unix_nano
    assert [event.name for event in span.events] == ["baton.first_token", "baton.lost", "baton.resumed"]
    assert attributes(span.events[1])["baton.cause"] == "timeout"
    resource = collector.resource()
    assert (resource["service.name"], resource["baton.process"]) == ("baton", "frontend")
    assert resource["process.pid"] == frontend.process.pid
    assert "service.instance.id" in resource
    assert b"secret" not in b"".join(request.SerializeToString() for request in collector.requests)


def test_without_a_parent_a_trace_begins_and_one_prompt_is_one_question(
    frontend: Frontend, core: FakeCore, collector: Collector
):
    core.script = slow_echo
    core.tell_life = lambda request_id, now: tuple(life(now, index=index) for index in range(3))
    answer = post(frontend, "/v1/completions", {"model": MODEL, "prompt": ["a", "b", "c", "d"], "n": 3})
    span = collector.of_answer(id_of(answer))
    assert (span.name, span.parent_span_id) == (f"text_completion {MODEL}", b"")
    told = attributes(span)
    assert (told["baton.prompts"], told["gen_ai.request.choice.count"]) == (4, 3)
    assert told["gen_ai.response.finish_reasons"] == ["length"] * 12
    assert "gen_ai.response.time_to_first_chunk" not in told
    shown = {(told["baton.prompt"], told["baton.sequence"]) for told in map(attributes, collector.below(span))}
    assert sorted(shown) == [(prompt, index) for prompt in range(4) for index in range(3)][:8]
    assert len(core.life_queries) == 4


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": TRACEPARENT[:-1]},
        {"traceparent": f"00-{'0' * 32}-{PARENT_ID}-01"},
        {"traceparent": f"ff-{TRACE_ID}-{PARENT_ID}-01"},
        {"traceparent": TRACEPARENT + "x" * 5000},
        {"traceparent": f"{TRACEPARENT}\u00e9".encode("latin-1")},
        [("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)],
        {"tracestate": "vendor=1"},
    ],
    ids=["cut", "zeros", "version ff", "long", "no ascii", "two", "only a state"],
)
def test_what_names_no_span_is_ignored(frontend: Frontend, collector: Collector, headers):
    answer = http.post(f"{frontend.url}/v1/completions", json=COMPLETION, headers=headers)
    assert answer.status_code == 200
    span = collector.of_answer(id_of(answer))
    assert span.parent_span_id == b""
    assert span.trace_id.hex() != TRACE_ID


def test_a_request_that_its_client_does_not_sample_leaves_nothing(
    frontend: Frontend, core: FakeCore, collector: Collector
):
    trace_id = "5" * 32
    post(frontend, "/v1/completions", COMPLETION, traceparent=f"00-{trace_id}-{PARENT_ID}-00")
    assert core.life_queries == []
    collector.of_answer(id_of(post(frontend, "/v1/completions", COMPLETION)))
    assert not [span for span in collector.spans if span.trace_id.hex() == trace_id]


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/messages", CHAT, "chat"),
        ("/v1/responses", {"model": MODEL, "input": "x", "store": False}, "chat"),
        ("/v1/embeddings", {"model": MODEL, "input": ["x", "y"]}, "embeddings"),
        ("/v1/rerank", {"model": RERANKER, "query": "x", "documents": ["y", "z"]}, "rerank"),
        ("/score", {"model": RERANKER, "text_1": "x", "text_2": "y"}, "score"),
    ],
)
def test_every_endpoint_that_asks_the_core_is_traced(
    frontend: Frontend, core: FakeCore, collector: Collector, path: str, body: dict, name: str
):
    core.script = slow_echo
    core.tell_life = lambda request_id, now: (life(now),)
    answer = post(frontend, path, body)
    assert answer.status_code == 200, answer.text
    span = collector.of_answer(id_of(answer))
    told = attributes(span)
    assert (span.name, told["gen_ai.operation.name"], told["http.route"]) == (f"{name} {body['model']}", name, path)
    assert told["gen_ai.usage.input_tokens"] > 0
    assert {child.name for child in collector.below(span)} == {"baton.queue", "baton.prefill", "baton.decode"}


def test_other_requests_are_not(frontend: Frontend, core: FakeCore, collector: Collector):
    for path in ("/health", "/v1/models", "/nowhere", "/v1/requests/x", "/v1/completions"):
        http.get(frontend.url + path)
    post(frontend, "/tokenize", {"prompt": "x"})
    collector.of_answer(id_of(post(frontend, "/v1/completions", COMPLETION)))
    paths = {attributes(span).get("url.path") for span in collector.spans} - {None}
    assert all(path.startswith("/v1/") or path == "/score" for path in paths)
    assert not paths & {"/v1/models", "/v1/requests/x"}


@pytest.mark.parametrize(
    ("code", "status", "is_ours"),
    [("too_many_requests", 429, False), ("unavailable", 503, True), ("no_token", 422, False)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_core_refuses(
    frontend: Frontend, core: FakeCore, collector: Collector, code: str, status: int, is_ours: bool, stream: bool
):
    core.script = refuse("no", code)
    answer = post(frontend, "/v1/completions", COMPLETION | {"stream": stream})
    span = collector.of_answer(id_of(answer))
    told = attributes(span)
    assert (told["error.type"], told["http.response.status_code"]) == (code, status)
    assert span.status.code == (ERROR if is_ours else UNSET)
    assert told["gen_ai.response.finish_reasons"] == ["error"]


def test_what_the_frontend_refuses(frontend: Frontend, core: FakeCore, collector: Collector):
    def is_refused(span: Span) -> bool:
        return attributes(span).get("error.type") == "model_not_found"

    post(frontend, "/v1/completions", {"model": "a secret model", "prompt": "x"})
    span = collector.wait_for(is_refused)
    told = attributes(span)
    assert (span.name, told["http.response.status_code"], span.status.code) == ("text_completion", 404, UNSET)
    assert "gen_ai.request.model" not in told
    assert core.life_queries == []


def test_a_stream_that_fails_late(frontend: Frontend, core: FakeCore, collector: Collector):
    def script(submit: m.Submit):
        yield from say([70], None)(submit)
        yield from refuse("broken", "internal_error")(submit)

    core.script = script
    answer = post(frontend, "/v1/completions", COMPLETION | {"stream": True})
    span = collector.of_answer(id_of(answer))
    told = attributes(span)
    assert (told["error.type"], told["http.response.status_code"]) == ("internal_error", 200)
    assert (span.status.code, span.status.message) == (ERROR, "internal_error")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up(frontend: Frontend, core: FakeCore, collector: Collector, stream: bool):
    core.script = silence
    core.tell_life = lambda request_id, now: (
        m.SequenceLife(index=0, marks=[m.Mark(at=now - 0.05, what="queued")], num_left_out=0, output=0),
    )
    request_id = f"gone-{stream}"
    body = COMPLETION | {"stream": stream, "request_id": request_id}
    frontend.begin("/v1/completions", body).close()
    span = collector.of_answer(request_id)
    told = attributes(span)
    assert told["error.type"] == "client_closed_request"
    assert told.get("http.response.status_code", 499) in ((200, 499) if stream else (499,))
    assert span.status.code == UNSET
    assert [child.name for child in collector.below(span)] == ["baton.queue"]


def test_who_reads_on_is_in_the_trace_of_the_request(frontend: Frontend, core: FakeCore, collector: Collector):
    body = COMPLETION | {"request_id": "on-1", "resumable": True, "stream": True}
    post(frontend, "/v1/completions", body, traceparent=TRACEPARENT)
    asked = collector.of_answer("on-1")
    url = f"{frontend.url}/v1/requests/on-1/events"

    def resumed_below(parent_id: bytes) -> Span:
        return collector.wait_for(lambda span: span.name == f"resume {MODEL}" and span.parent_span_id == parent_id)

    http.get(url)
    span = resumed_below(asked.span_id)
    assert span.trace_id == asked.trace_id
    assert attributes(span)["http.route"] == "/v1/requests/{request_id}/events"
    assert not span.links
    other = f"00-{'1' * 32}-{'2' * 16}-01"
    http.get(url, headers={"traceparent": other})
    [link] = resumed_below(bytes.fromhex("2" * 16)).links
    assert (link.trace_id, link.span_id) == (asked.trace_id, asked.span_id)


def test_work_that_is_left_for_later_has_its_place_in_the_trace(tmp_path: Path, collector: Collector):
    store = tmp_path / "store"
    with running_frontend("--store", str(store), **collector.environment) as frontend:
        answer = post(frontend, "/v1/responses", {"model": MODEL, "input": "x", "background": True})
        span = collector.of_answer(id_of(answer))
        traceparent = f"00-{span.trace_id.hex()}-{span.span_id.hex()}-"
        assert any(traceparent.encode() in path.read_bytes() for path in store.iterdir() if path.is_file())
    assert collector.below(span) == []


def test_a_core_that_does_not_tell(frontend: Frontend, core: FakeCore, collector: Collector):
    """Its span waits for the end of the question, which comes when the frontend ends."""
    with running_frontend(**collector.environment) as other:
        other.core.answers_queries = False
        answer = post(other, "/v1/completions", COMPLETION)
        begun = time.monotonic()
        assert other.stop() == 0
        assert time.monotonic() - begun < 6
    assert collector.below(collector.of_answer(id_of(answer))) == []


def test_a_collector_that_is_away_harms_nothing():
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # it accepts, and says nothing
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with running_frontend(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_BSP_SCHEDULE_DELAY="10") as frontend:
            for _ in range(20):
                begun = time.monotonic()
                assert post(frontend, "/v1/completions", COMPLETION).status_code == 200
                assert time.monotonic() - begun < 5
            begun = time.monotonic()
            assert frontend.stop() == 0
            assert time.monotonic() - begun < 6


def test_a_collector_that_is_not_there_is_told_once():
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "10"}
    with running_frontend(**variables) as frontend:
        post(frontend, "/v1/completions", COMPLETION)
        eventually(lambda: "traces not exported" in frontend.log)
        post(frontend, "/v1/completions", COMPLETION)
        begun = time.monotonic()
        assert frontend.stop() == 0
        assert time.monotonic() - begun < 6
        assert frontend.log.count("traces not exported") == 1
        assert len(re.findall("level=(warning|error)", frontend.log)) == 1
