"""What requests hold in memory while they are computed: their tokens, and none of what was sent."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontend.fake_core import silence
from tests.frontend.harness import MODEL, Frontend, running_frontend
from tests.support.pooling_folders import make_embedder, make_reranker

NUM_REQUESTS = 12
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
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    folder = tmp_path_factory.mktemp("models")
    models = [f"embed={make_embedder(folder / 'vectors')}", f"score={make_reranker(folder / 'judge')}"]
    options = [option for model in models for option in ("--pooling-model", model)]
    with running_frontend(*options, script=silence) as frontend:
        yield frontend


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
