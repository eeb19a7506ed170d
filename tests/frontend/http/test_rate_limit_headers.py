"""What clients with limits a minute are told of them, and what the core is asked to count."""

from collections.abc import Iterator
from datetime import UTC, datetime

import anthropic
import httpx
import openai
import pytest

from common import messages as m
from scheduler_svc.api_key_file import ApiKey, digest, encode_key_file
from scheduler_svc.frontend.http.rate_limit_headers import duration
from tests.support.fake_core import FakeCore, Step, delta, echo, outputs
from tests.support.frontend_process import COMPLETION, MODEL, Frontend, assert_openai_shape, running_frontend
from tests.support.plain_http import http
from tests.support.pooling_folders import make_reranker

KEYS = [
    ApiKey(name="alice", sha256=digest("a"), created="", requests_per_minute=60, tokens_per_minute=5000),
    ApiKey(name="bob", sha256=digest("b"), created=""),
]
ALICE, BOB = ({"authorization": f"Bearer {key}"} for key in "ab")
REQUESTS = m.Rate(limit=60, remaining=59, reset_s=1.0)
TOKENS = m.Rate(limit=5000, remaining=4321, reset_s=68.148)
HEADERS = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "59",
    "x-ratelimit-reset-requests": "1s",
    "x-ratelimit-limit-tokens": "5000",
    "x-ratelimit-remaining-tokens": "4321",
    "x-ratelimit-reset-tokens": "1m8.148s",
}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
MESSAGE = CHAT
TEXTS = {"model": MODEL, "input": ["a", "b"]}
RANKING = {"model": "judge", "query": "q", "documents": ["a", "b"]}
WAYS = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"model": MODEL, "input": "x"},
    "/v1/embeddings": TEXTS,
    "/v1/rerank": RANKING,
}


@pytest.fixture(scope="module")
def shared_frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys.json").write_bytes(encode_key_file(KEYS))
    (folder / "keys.json").chmod(0o600)
    judge = make_reranker(folder / "judge")
    with running_frontend("--api-keys", f"{folder}/keys.json", "--pooling-model", f"score={judge}") as frontend:
        yield frontend


def counted(submit: m.Submit, *, is_accepted: bool = True) -> Iterator[Step]:
    """What the core says first of a request of a client with limits."""
    if submit.charge is not None and submit.charge.is_limited:
        told = {"requests": REQUESTS, "tokens": TOKENS}
        yield m.RateLimits(request_id=submit.request_id, is_accepted=is_accepted, **told)


def accept(submit: m.Submit) -> Iterator[Step]:
    yield from counted(submit)
    if submit.stream:
        yield m.Accepted(request_ids=(submit.request_id,))
    yield from echo(submit)


def over_limit(submit: m.Submit) -> Iterator[Step]:
    yield from counted(submit, is_accepted=False)
    yield outputs(delta(submit, [], "error", error="too many", code="rate_limit_exceeded", retry_after_s=7))


def post(frontend: Frontend, path: str, body: object, headers: dict[str, str] = ALICE) -> httpx.Response:
    return http.post(f"{frontend.url}{path}", json=body, headers=headers)


@pytest.mark.parametrize("path", WAYS)
def test_answers_say_what_is_left(frontend: Frontend, core: FakeCore, path: str):
    core.script = accept
    answer = post(frontend, path, WAYS[path])
    assert answer.status_code == 200
    assert {name: value for name, value in answer.headers.items() if "ratelimit" in name} == HEADERS
    unlimited = post(frontend, path, WAYS[path], BOB)
    assert unlimited.status_code == 200
    assert not [name for name in unlimited.headers if "ratelimit" in name]


def test_streams_say_it_before_their_first_token(frontend: Frontend, core: FakeCore):
    def slow(submit: m.Submit) -> Iterator[Step]:
        yield from counted(submit)
        yield m.Accepted(request_ids=(submit.request_id,))
        yield 3600.0

    core.script = slow
    body = COMPLETION | {"stream": True}
    with http.stream("POST", f"{frontend.url}/v1/completions", json=body, headers=ALICE) as answer:
        assert answer.headers.items() >= HEADERS.items()


def test_what_is_to_be_counted(frontend: Frontend, core: FakeCore):
    core.script = accept
    four_tokens = {"prompt": [1, 2, 3, 4]}
    for body, tokens in (
        (COMPLETION | four_tokens | {"max_tokens": 10}, 14),
        (COMPLETION | four_tokens | {"max_tokens": 10, "n": 3}, 34),
        (COMPLETION | {"prompt": [[1, 2], [3]], "max_tokens": 10, "n": 2}, 2 + 1 + 4 * 10),
    ):
        core.forget()
        core.script = accept
        assert post(frontend, "/v1/completions", body).status_code == 200
        limits = {"requests_per_minute": 60, "tokens_per_minute": 5000}
        first, *others = core.submits
        assert first.charge == m.Charge(tokens=tokens, **limits)
        assert [submit.charge for submit in others] == [None] * len(others)
    core.forget()
    assert post(frontend, "/v1/embeddings", {"model": MODEL, "input": [[1, 2], [3]]}, BOB).status_code == 200
    assert [submit.charge for submit in core.submits] == [m.Charge(tokens=3), None]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
def test_of_many_prompts_the_first_pays_for_all_before_the_others_come(frontend: Frontend, core: FakeCore, path: str):
    many = {"/v1/completions": COMPLETION | {"prompt": ["x"] * 200}, "/v1/embeddings": TEXTS | {"input": ["x"] * 200}}
    core.script = over_limit
    assert_openai_shape(post(frontend, path, many[path]), 429)
    assert len(core.submits) == 1
    core.forget()
    core.script = accept
    assert post(frontend, path, many[path]).status_code == 200
    assert len(core.submits) == 200


def test_openais_client_raises_a_rate_limit_error_and_would_wait(frontend: Frontend, core: FakeCore):
    core.script = over_limit
    with pytest.raises(openai.RateLimitError) as caught:
        frontend.client("a").chat.completions.create(**CHAT)
    headers = caught.value.response.headers
    assert headers.items() >= HEADERS.items()
    assert (headers["retry-after"], headers["x-should-retry"]) == ("7", "true")
    assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "rate_limit_error")


def test_anthropics_client_is_told_in_its_own_words(frontend: Frontend, core: FakeCore):
    client = anthropic.Anthropic(base_url=frontend.url, api_key="a", max_retries=0)
    core.script = over_limit
    with pytest.raises(anthropic.RateLimitError) as caught:
        client.messages.create(**MESSAGE)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    refused = caught.value.response.headers
    core.script = accept
    served = client.messages.with_raw_response.create(**MESSAGE).headers
    assert refused["retry-after"] == "7"
    for headers in (refused, served):
        told = {name.removeprefix("anthropic-ratelimit-"): value for name, value in headers.items() if "ratel" in name}
        resets = [datetime.fromisoformat(told.pop(f"{kind}-reset")) for kind in ("requests", "tokens")]
        assert told == {
            "requests-limit": "60",
            "requests-remaining": "59",
            "tokens-limit": "5000",
            "tokens-remaining": "4321",
        }
        waits = [(at - datetime.now(UTC)).total_seconds() for at in resets]
        assert -20 < waits[0] <= 1.0
        assert 40 < waits[1] <= 69


def test_pages_of_allowed_origins_see_the_headers():
    with running_frontend("--cors-origin", "http://page.test") as frontend:
        frontend.core.script = accept
        answer = post(frontend, "/v1/completions", COMPLETION, {"origin": "http://page.test"})
        exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
        assert exposed >= HEADERS.keys()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0004, "0s"),
        (0.12, "120ms"),
        (0.9999, "1s"),
        (7.66, "7.66s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (68.148, "1m8.148s"),
        (3600, "1h0m0s"),
        (86_461.5, "24h1m1.5s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str):
    assert duration(seconds) == text
