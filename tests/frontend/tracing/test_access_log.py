"""`--access-log`: exactly one line for each answer, whatever it comes to, with nothing of what was asked or said."""

import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from common import messages as m
from scheduler_svc.frontend.tracing.access_log import FIELDS
from tests import ROOT
from tests.frontend.collector import attributes, collecting
from tests.frontend.tracing.lives import life
from tests.support.eventually import eventually
from tests.support.fake_core import FakeCore, Step, delta, outputs, refuse, say, silence
from tests.support.frontend_process import MODEL, Frontend, running_frontend
from tests.support.plain_http import http

KEY, SECRET = "sk-never-to-be-logged", "a secret prompt"
PROXY = "127.0.0.1"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}], "max_tokens": 9}
OPTIONS = ("--access-log", "--log-format", "json", "--log-level", "warning")


@pytest.fixture(scope="module")
def shared_frontend() -> Iterator[Frontend]:
    with running_frontend(*OPTIONS, BATON_API_KEYS=KEY) as frontend:
        yield frontend


@pytest.fixture(autouse=True)
def _lives(core: FakeCore) -> None:
    core.tell_life = lambda request_id, now: (life(now),)


class Lines:
    """What the access log says of requests that a test names by their `x-request-id`."""

    def __init__(self, frontend: Frontend) -> None:
        self.frontend = frontend
        self._num_read = 0

    def all(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.frontend.log.splitlines() if '"answered"' in line]
        return [line for line in lines if line["event"] == "answered"]

    def of(self, request: str) -> dict[str, Any]:
        """The one line of a request; another request is sent after it, so that a second line would be there, too."""
        eventually(lambda: [line for line in self.all() if line.get("request") == request])
        http.get(f"{self.frontend.url}/health", headers={"x-request-id": f"after-{request}"})
        eventually(lambda: [line for line in self.all() if line.get("request") == f"after-{request}"])
        [line] = [line for line in self.all() if line.get("request") == request]
        return line


@pytest.fixture
def lines(frontend: Frontend) -> Lines:
    return Lines(frontend)


def ask(frontend: Frontend, request: str, body: Any, path: str = "/v1/chat/completions", **headers: str):
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": request} | headers
    return http.post(frontend.url + path, json=body, headers=headers)


def without(line: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("time", "level", "service", "event", *names)}


def slow_say(submit: m.Submit) -> Iterator[Step]:
    """Takes longer than `life`."""
    yield 0.15
    yield from say([70, 71, 72], pause_s=0.02)(submit)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_a_line_with_all_that_an_operator_counts(frontend, core, lines, stream):
    core.script = slow_say
    answer = ask(frontend, f"own-{stream}", CHAT | {"stream": stream})
    line = lines.of(f"own-{stream}")
    [times] = [{name: line.pop(name) for name in ("first_token_s", "total_s")}]
    assert 0 < times["first_token_s"] < times["total_s"] < 20
    assert line.pop("tokens_in") > 3
    answer_id = json.loads(answer.text.removeprefix("data: ").split("\n")[0])["id"]
    assert without(line) == {
        "id": answer_id,
        "request": f"own-{stream}",
        "key": line["key"],
        "address": "127.0.0.1",
        "method": "POST",
        "endpoint": "/v1/chat/completions",
        "status": 200,
        "tokens_cached": 2,
        "tokens_out": 3,
        "executors": "gpu-0",
    }
    assert line["key"].startswith("env-")
    assert (line["service"], line["level"]) == ("frontend", "info")


def test_nothing_that_was_asked_or_answered_and_no_key_is_in_the_log(frontend, core, lines):
    core.script = say([70, 71, 72])
    said = ask(frontend, "secret", CHAT, "/v1/chat/completions?api_key=sk-in-the-query").json()
    lines.of("secret")
    ask(frontend, "wrong", CHAT, authorization="Bearer sk-of-nobody")
    lines.of("wrong")
    text = said["choices"][0]["message"]["content"]
    for secret in (KEY, SECRET, "sk-in-the-query", "sk-of-nobody", text):
        assert secret not in frontend.log


REFUSED: dict[str, tuple[Callable[[Frontend], Any], dict[str, Any]]] = {
    "no-key": (
        lambda frontend: ask(frontend, "no-key", CHAT, authorization=""),
        {"endpoint": "/v1/chat/completions", "status": 401, "error": "invalid_api_key"},
    ),
    "no-such-model": (
        lambda frontend: ask(frontend, "no-such-model", CHAT | {"model": "x"}),
        {"endpoint": "/v1/chat/completions", "status": 404, "error": "model_not_found"},
    ),
    "no-json": (
        lambda frontend: http.post(
            f"{frontend.url}/v1/completions",
            content=b"{",
            headers={"x-request-id": "no-json", "authorization": f"Bearer {KEY}"},
        ),
        {"endpoint": "/v1/completions", "status": 400, "error": "invalid_type"},
    ),
    "nowhere": (
        lambda frontend: ask(frontend, "nowhere", {}, f"/nowhere/{SECRET}"),
        {"endpoint": "other", "status": 404, "error": "unknown_url"},
    ),
    "no-request": (
        lambda frontend: http.delete(
            f"{frontend.url}/v1/requests/none",
            headers={"x-request-id": "no-request", "authorization": f"Bearer {KEY}"},
        ),
        {"endpoint": "/v1/requests/{request_id}", "status": 404, "error": "request_not_found", "id": "none"},
    ),
    "metrics": (
        lambda frontend: http.get(
            f"{frontend.url}/metrics", headers={"x-request-id": "metrics", "authorization": f"Bearer {KEY}"}
        ),
        {"endpoint": "/metrics", "status": 200},
    ),
    "preflight": (
        lambda frontend: http.options(f"{frontend.url}/v1/models", headers={"x-request-id": "preflight"}),
        {"endpoint": "/v1/models", "status": 401, "error": "invalid_api_key"},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_other_end_is_one_line_too(frontend, lines, name):
    ask_it, facts = REFUSED[name]
    ask_it(frontend)
    line = lines.of(name)
    shown = without(line, "request", "address", "method", "total_s", "key", "tokens_in", "tokens_out", "tokens_cached")
    assert shown == facts
    assert ("key" in line) == (facts["status"] != 401)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_core_refuses_or_breaks_off(frontend, core, lines, stream):
    core.script = refuse("all are busy", "too_many_requests")
    ask(frontend, f"busy-{stream}", CHAT | {"stream": stream})
    line = lines.of(f"busy-{stream}")
    assert (line["status"], line["error"], line["tokens_out"]) == (429, "too_many_requests", 0)

    def breaks(submit: m.Submit) -> Iterator[Step]:
        yield outputs(delta(submit, [70, 71]))
        yield 0.1
        yield outputs(delta(submit, [], "error", error="broken", code="internal_error"))

    core.script = breaks
    ask(frontend, f"broken-{stream}", CHAT | {"stream": stream})
    line = lines.of(f"broken-{stream}")
    assert (line["status"], line["error"]) == (200 if stream else 500, "internal_error")
    assert line["tokens_out"] == 2


def test_a_client_that_leaves_before_its_answer_begins(frontend, core, lines):
    core.script = silence
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "left-early"}
    frontend.begin("/v1/chat/completions", CHAT, **headers).close()
    line = lines.of("left-early")
    assert (line["status"], line["error"], line["tokens_out"]) == (499, "client_closed_request", 0)


def test_a_client_that_leaves_in_the_middle_of_its_stream(frontend, core, lines):
    core.script = say(list(range(70, 170)), pause_s=0.02)
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "left"}
    with frontend.begin("/v1/chat/completions", CHAT | {"stream": True, "max_tokens": 100}, **headers) as connection:
        connection.recv(4096)
    line = lines.of("left")
    assert (line["status"], line["error"]) == (200, "client_closed_request")
    assert 0 < line["tokens_out"] < 100
    assert line["first_token_s"] <= line["total_s"]


def test_a_stream_that_is_cancelled_is_a_line_and_so_is_what_cancels_it(frontend, core, lines):
    core.script = say(list(range(70, 170)), pause_s=0.02)
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "cancelled"}
    body = CHAT | {"stream": True, "max_tokens": 100, "request_id": "mine"}
    with frontend.begin("/v1/chat/completions", body, **headers) as connection:
        connection.recv(4096)
        headers["x-request-id"] = "cancels"
        assert http.delete(f"{frontend.url}/v1/requests/mine", headers=headers).status_code == 204
        line = lines.of("cancelled")
    assert (line["id"], line["status"], line["error"]) == ("mine", 200, "cancelled")
    line = lines.of("cancels")
    assert (line["id"], line["method"], line["status"]) == ("mine", "DELETE", 204)


def raw(frontend: Frontend, sent: bytes) -> str:
    """The id of an answer to these bytes."""
    with socket.create_connection(frontend.address, timeout=10) as connection:
        connection.sendall(sent)
        head = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    assert head.startswith("HTTP/1.1 400")
    return head.partition("x-request-id: ")[2].partition("\r\n")[0]


def test_what_is_no_request_is_a_line(frontend, lines):
    line = lines.of(raw(frontend, b"NOT HTTP\r\n\r\n"))
    expected = {"address": "127.0.0.1", "endpoint": "other", "status": 400, "error": "invalid_http"}
    assert without(line, "request") == expected


def test_a_body_that_breaks_off_is_one_line_and_one_count(frontend, core, lines):
    http.get(f"{frontend.url}/metrics", headers={"authorization": f"Bearer {KEY}"})  # tells what was counted
    core.counts.clear()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
    line = lines.of(raw(frontend, f"{head}transfer-encoding: chunked\r\n\r\nno length\r\n\r\n".encode()))
    assert (line["endpoint"], line["status"], line["error"]) == ("/v1/completions", 400, "invalid_http")
    http.get(f"{frontend.url}/metrics", headers={"authorization": f"Bearer {KEY}"})
    counted = [(each.path, each.status) for message in core.counts for each in message.http]
    assert counted.count(("/v1/completions", 400)) == 1
    assert ("/v1/completions", 499) not in counted
    assert ("other", 400) not in counted


@pytest.fixture
def own() -> Iterator[Frontend]:
    """A frontend of a test's own, without keys, behind a proxy on this machine."""
    with running_frontend(*OPTIONS, "--trusted-proxy", PROXY) as frontend:
        yield frontend


def test_streams_that_a_stopping_frontend_cuts_have_their_lines(own):
    own.core.script = silence
    connection = own.begin("/v1/chat/completions", CHAT | {"stream": True}, **{"x-request-id": "cut"})
    own.process.send_signal(signal.SIGTERM)
    own.process.wait(20)
    connection.close()
    [line] = [line for line in Lines(own).all() if line.get("request") == "cut"]
    assert line["error"] == "unavailable"


def test_a_frontend_that_the_core_leaves_writes_them_too(own):
    own.core.script = silence
    connection = own.begin("/v1/chat/completions", CHAT | {"stream": True}, **{"x-request-id": "lost"})
    own.core.close()
    eventually(lambda: [line for line in Lines(own).all() if line.get("request") == "lost"])
    connection.close()
    [line] = [line for line in Lines(own).all() if line.get("request") == "lost"]
    assert (line["error"], line.get("executors")) == ("unavailable", None)


def test_the_address_behind_a_trusted_proxy_is_its_last_word(own):
    said = {"x-request-id": "proxied", "x-forwarded-for": "6.6.6.6, 10.0.0.7"}
    http.get(f"{own.url}/v1/models/none", headers=said)
    assert Lines(own).of("proxied")["address"] == "10.0.0.7"
    refused = [json.loads(line) for line in own.log.splitlines() if "request refused" in line]
    assert [line["client"] for line in refused] == ["10.0.0.7"]


def test_lines_of_a_traced_request_name_its_trace_and_the_core_is_asked_once():
    with collecting() as collector, running_frontend(*OPTIONS, **collector.environment) as frontend:
        frontend.core.tell_life = lambda request_id, now: (life(now),)
        answer = http.post(f"{frontend.url}/v1/chat/completions", json=CHAT, headers={"x-request-id": "traced"})
        span = collector.of_answer(answer.json()["id"])
        line = Lines(frontend).of("traced")
        assert line["trace_id"] == span.trace_id.hex()
        assert attributes(span)["http.response.header.x-request-id"] == ["traced"]
        assert frontend.core.life_queries == [f"{line['id']}-0"]
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        headers = {"x-request-id": "unknown", "traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
        http.post(f"{frontend.url}/v1/chat/completions", json=CHAT | {"model": "x"}, headers=headers)
        assert Lines(frontend).of("unknown")["trace_id"] == trace_id
        [refused] = [json.loads(line) for line in frontend.log.splitlines() if "request refused" in line]
        assert (refused["request"], refused["trace_id"]) == ("unknown", trace_id)


def test_the_guide_has_each_field():
    guide = ROOT / "docs" / "operations.md"
    section = guide.read_text().partition("### The access log")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert tuple(field for row in rows for field in re.findall(r"`(\w+)`", row)) == FIELDS


def test_without_the_option_there_is_no_line_and_the_core_is_asked_nothing():
    with running_frontend("--log-format", "json") as frontend:
        frontend.core.tell_life = lambda request_id, now: (life(now),)
        assert frontend.post("/v1/chat/completions", CHAT).status_code == 200
        frontend.stop()
        assert '"answered"' not in frontend.log
        assert frontend.core.life_queries == []
