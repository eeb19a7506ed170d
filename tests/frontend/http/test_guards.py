"""API keys and the limit on bodies, in a frontend of their own."""

import json
import socket
from collections.abc import Iterator

import openai
import pytest

from tests.support.frontend_process import COMPLETION, MODEL, Frontend, assert_openai_shape, running_frontend
from tests.support.plain_http import http


@pytest.fixture(scope="module")
def guarded() -> Iterator[Frontend]:
    with running_frontend("--max-body-bytes", "10000", BATON_API_KEYS="alpha, beta") as frontend:
        yield frontend


def test_one_of_the_keys_is_needed(guarded: Frontend):
    for key in ("alpha", "beta"):
        with guarded.client(key) as client:
            assert client.completions.create(model=MODEL, prompt="x").choices[0].text == "x"
    for key in ("gamma", "alpha,", "alphabeta"):
        with guarded.client(key) as client, pytest.raises(openai.AuthenticationError) as caught:
            client.completions.create(model=MODEL, prompt="x")
        assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("path", ["/v1/models", "/status", "/metrics", "/nowhere"])
def test_nothing_is_told_without_a_key(guarded: Frontend, path: str):
    assert_openai_shape(http.get(guarded.url + path), 401)
    assert_openai_shape(http.get(guarded.url + path, headers={"authorization": "Basic alpha"}), 401)
    answer = http.get(guarded.url + path, headers={"authorization": "Bearer beta"})
    assert answer.status_code == (404 if path == "/nowhere" else 200)


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_have_no_keys(guarded: Frontend, path: str):
    assert http.get(guarded.url + path).status_code == 200


def answer_to(frontend: Frontend, request: bytes) -> bytes:
    """What the frontend answers before it closes the connection, though nothing more is sent."""
    with socket.create_connection(("127.0.0.1", int(frontend.url.rpartition(":")[2])), timeout=10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("framing", ["content-length: 8388608", "transfer-encoding: chunked"])
@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("POST /v1/completions", 401),
        ("POST /admin/executors/7/drain", 401),
        ("POST /health", 401),
        ("PUT /ready", 401),
        ("GET /health", 413),
        ("GET /ready", 413),
        ("HEAD /health", 413),
        ("GET /v1/models", 401),
    ],
)
def test_no_body_is_read_without_a_key(guarded: Frontend, request_line: str, status: int, framing: str):
    answer = answer_to(guarded, f"{request_line} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in answer.lower()


def test_a_drain_that_is_cut_off_drains_nothing(guarded: Frontend):
    """The executor would leave without finishing its requests."""
    head = b"POST /admin/executors/7/drain HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alpha\r\n"
    for rest in (b"content-length: 15\r\n\r\n{", b"transfer-encoding: chunked\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", int(guarded.url.rpartition(":")[2])), timeout=10) as connection:
            connection.sendall(head + rest)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"", "it is not answered"
    url = f"{guarded.url}/admin/executors/8/drain"
    http.post(url, json={"finish": True}, headers={"authorization": "Bearer alpha"})
    assert [(drain.executor, drain.finish) for drain in guarded.core.drains] == [("8", True)]


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies(guarded: Frontend, chunked: bool):
    def body(num_bytes: int) -> bytes | Iterator[bytes]:
        content = json.dumps(COMPLETION | {"user": ""}).encode().replace(b'""', b'"' + b"u" * num_bytes + b'"')
        return (content[i : i + 1000] for i in range(0, len(content), 1000)) if chunked else content

    headers = {"authorization": "Bearer alpha", "content-type": "application/json"}
    url = f"{guarded.url}/v1/completions"
    assert http.post(url, content=body(9_000), headers=headers).status_code == 200
    for num_bytes in (10_001, 15_000, 500_000):
        error = assert_openai_shape(http.post(url, content=body(num_bytes), headers=headers), 413)
        assert "10000 bytes" in error["message"]


def test_what_is_refused_before_any_endpoint_is_looked_for_counts_for_its_endpoint(guarded: Frontend):
    guarded.core.forget()
    http.post(f"{guarded.url}/v1/completions", json=COMPLETION)
    http.post(f"{guarded.url}/nowhere", json=COMPLETION)
    headers = {"authorization": "Bearer alpha"}
    http.post(f"{guarded.url}/v1/completions", content=b"x" * 15_000, headers=headers)
    http.get(f"{guarded.url}/metrics", headers=headers)
    counted = {(http.path, http.status) for message in guarded.core.counts for http in message.http}
    assert {("/v1/completions", 401), ("other", 401), ("/v1/completions", 413)} <= counted
