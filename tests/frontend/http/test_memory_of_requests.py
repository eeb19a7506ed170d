"""What requests hold in memory: their tokens while they are computed, and of long answers that nobody reads a piece."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.fake_core import echo, say, silence
from tests.support.frontend_process import MODEL, Frontend, running_frontend
from tests.support.plain_http import NO_TLS, http
from tests.support.pooling_folders import make_embedder, make_reranker

NUM_REQUESTS = 6
NUM_READERS = 60
HELD_MB = 32  # that the frontend of these tests may hold
SENT = "x" * 6_000_000  # in each of them, of which no token comes
USER = {"role": "user", "content": "x"}
BODIES = {
    "/v1/completions": {"model": MODEL, "prompt": "x", "user": SENT},
    "/v1/chat/completions": {"model": MODEL, "messages": [USER], "user": SENT},
    "/v1/messages": {"model": MODEL, "max_tokens": 9, "messages": [USER], "metadata": {"user_id": SENT}},
    "/v1/responses": {"model": MODEL, "input": [USER | {"left out": SENT}], "store": False},
    "/v1/embeddings": {"model": "vectors", "input": ["x"], "user": SENT},
    "/v1/rerank": {"model": "judge", "query": "x", "documents": ["x"], "user": SENT},
    "/v1/score": {"model": "judge", "text_1": "x", "text_2": "x", "user": SENT},
}


@pytest.fixture(scope="module")
def shared_frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    folder = tmp_path_factory.mktemp("models")
    models = [f"embed={make_embedder(folder / 'vectors')}", f"score={make_reranker(folder / 'judge')}"]
    options = [option for model in models for option in ("--pooling-model", model)]
    options += ["--store", str(folder / "store"), "--held-mb", str(HELD_MB)]
    with running_frontend(*options) as frontend:
        yield frontend


@pytest.fixture
def frontend(shared_frontend: Frontend) -> Frontend:
    shared_frontend.core.script = silence
    return shared_frontend


def resident_mb(frontend: Frontend) -> float:
    num_pages = int(Path(f"/proc/{frontend.process.pid}/statm").read_text().split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.parametrize("path", BODIES)
def test_a_body_is_in_memory_no_longer_when_its_request_is_computed(frontend: Frontend, path: str):
    with contextlib.ExitStack() as open_connections:
        # What the first one takes, the process keeps.
        open_connections.enter_context(frontend.begin(path, BODIES[path]))
        at_first = resident_mb(frontend)
        for _ in range(NUM_REQUESTS - 1):
            open_connections.enter_context(frontend.begin(path, BODIES[path]))
        assert resident_mb(frontend) - at_first < NUM_REQUESTS * len(SENT) / 1e6 / 2


def test_an_answer_that_many_ask_for_and_none_reads_is_not_in_memory(frontend: Frontend):
    frontend.core.script = echo
    name = frontend.post("/v1/responses", {"model": MODEL, "input": "x", "user": SENT}).json()["id"]
    before = resident_mb(frontend)
    with contextlib.ExitStack() as readers:
        for _ in range(NUM_READERS):
            reader = readers.enter_context(socket.create_connection(frontend.address, timeout=20))
            reader.sendall(b"GET /v1/responses/%b HTTP/1.1\r\nhost: localhost\r\n\r\n" % name.encode())
            assert reader.recv(15) == b"HTTP/1.1 200 OK"
        assert resident_mb(frontend) - before < 30, "the answers have 360"
    assert http.get(f"{frontend.url}/v1/responses/{name}").json()["user"] == SENT


def test_streams_with_long_heads_are_refused_before_they_are_too_many(frontend: Frontend):
    frontend.core.script = say([5] * 9, pause_s=60.0)
    body = {"model": MODEL, "input": "x", "user": SENT, "stream": True}
    before, codes = resident_mb(frontend), []
    with contextlib.ExitStack() as streams, httpx.Client(verify=NO_TLS, base_url=frontend.url, timeout=20) as http:
        for _ in range(NUM_REQUESTS):
            answer = streams.enter_context(http.stream("POST", "/v1/responses", json=body))
            codes.append(answer.status_code)
        assert 1 <= codes.count(200) <= HELD_MB * 2**20 // 2 // len(SENT)
        assert codes.count(503) == NUM_REQUESTS - codes.count(200)
        assert resident_mb(frontend) - before < 3 * HELD_MB
