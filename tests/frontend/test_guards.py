"""API keys and the limit on bodies, in a frontend of their own."""

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.frontend.harness import COMPLETION, MODEL, Frontend, assert_openai_shape, running_frontend


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
    assert_openai_shape(httpx.get(guarded.url + path), 401)
    assert_openai_shape(httpx.get(guarded.url + path, headers={"authorization": "Basic alpha"}), 401)
    answer = httpx.get(guarded.url + path, headers={"authorization": "Bearer beta"})
    assert answer.status_code == (404 if path == "/nowhere" else 200)


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_have_no_keys(guarded: Frontend, path: str):
    assert httpx.get(guarded.url + path).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies(guarded: Frontend, chunked: bool):
    def body(num_bytes: int) -> bytes | Iterator[bytes]:
        content = json.dumps(COMPLETION | {"user": ""}).encode().replace(b'""', b'"' + b"u" * num_bytes + b'"')
        return (content[i : i + 1000] for i in range(0, len(content), 1000)) if chunked else content

    headers = {"authorization": "Bearer alpha", "content-type": "application/json"}
    url = f"{guarded.url}/v1/completions"
    assert httpx.post(url, content=body(9_000), headers=headers).status_code == 200
    for num_bytes in (10_001, 15_000, 500_000):
        error = assert_openai_shape(httpx.post(url, content=body(num_bytes), headers=headers), 413)
        assert "10000 bytes" in error["message"]
