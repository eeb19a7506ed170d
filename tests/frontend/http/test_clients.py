"""What differs between clients: whose a request is, how many each may have, and who may do an operator's work."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from scheduler_svc.api_key_file import ApiKey, client_id, digest, encode_key_file
from tests.frontend.sse import events_after
from tests.support.eventually import eventually
from tests.support.fake_core import REPORT, FakeCore, refuse
from tests.support.frontend_process import COMPLETION, Frontend, assert_openai_shape, running_frontend
from tests.support.plain_http import http
from tests.support.status_reports import executor_status

KEYS = [
    ApiKey(name="alice", sha256=digest("a"), created="2026-01-01T00:00:00Z", max_open_requests=3, weight=2.5),
    ApiKey(name="bob", sha256=digest("b"), created="2026-01-01T00:00:00Z"),
    ApiKey(name="prometheus", sha256=digest("p"), created="2026-01-01T00:00:00Z", metrics=True),
    ApiKey(name="root", sha256=digest("r"), created="2026-01-01T00:00:00Z", admin=True),
]
ID_OF = {key: client_id(digest(key)) for key in "abpr"}
ALICE, BOB, PROMETHEUS, ROOT = ({"authorization": f"Bearer {key}"} for key in "abpr")
EXECUTOR = executor_status(executor="host/gpu 0", epoch=7)


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_bytes(encode_key_file(KEYS))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def shared_frontend(keys_file: Path) -> Iterator[Frontend]:
    with running_frontend("--api-keys", str(keys_file)) as frontend:
        frontend.core.report = msgspec.structs.replace(REPORT, executors=[EXECUTOR])
        yield frontend


def post(frontend: Frontend, path: str, body: object, headers: dict[str, str]) -> httpx.Response:
    return http.post(f"{frontend.url}{path}", json=body, headers=headers)


def test_a_request_is_its_clients_alone(frontend: Frontend, core: FakeCore):
    body = COMPLETION | {"request_id": "mine"}
    assert post(frontend, "/v1/completions", body, ALICE).json()["id"] == "mine"
    assert post(frontend, "/v1/completions", body, BOB).json()["id"] == "mine"
    assert [submit.request_id for submit in core.submits] == [f"{ID_OF[key]}/mine-0" for key in "ab"]
    facts = [(submit.client, submit.client_name, submit.client_limit, submit.weight) for submit in core.submits]
    assert facts == [(ID_OF["a"], "alice", 3, 2.5), (ID_OF["b"], "bob", 0, 1.0)]
    assert {submit.address for submit in core.submits} == {""}, "a key says who it is"
    assert post(frontend, "/v1/completions", body | {"request_id": "hers"}, ALICE).status_code == 200
    assert events_after(frontend, "hers", **ALICE).status_code == 200
    assert_openai_shape(events_after(frontend, "hers", **BOB), 404)
    for path in ("hers", f"{ID_OF['a']}%2Fhers", f"{ID_OF['a']}/hers", "alice/hers"):
        assert http.delete(f"{frontend.url}/v1/requests/{path}", headers=BOB).status_code == 404
    assert http.delete(f"{frontend.url}/v1/requests/hers", headers=ALICE).status_code == 204
    assert_openai_shape(events_after(frontend, "hers"), 401)


def test_too_many_requests_of_one_client(frontend: Frontend, core: FakeCore):
    core.script = refuse("3 sequences of 'alice' are open and the request has 1, the limit is 3", "too_many_requests")
    answer = post(frontend, "/v1/completions", COMPLETION, ALICE)
    error = assert_openai_shape(answer, 429)
    assert (error["code"], error["type"]) == ("too_many_requests", "rate_limit_error")
    assert answer.headers["retry-after"] in {"1", "2"}


@pytest.mark.parametrize(
    ("path", "more", "what"),
    [
        ("/v1/completions", {"prompt": ["x"] * 4}, "prompts times n"),
        ("/v1/completions", {"prompt": ["x"] * 2, "n": 2}, "prompts times n"),
        ("/v1/completions", {"prompt": "x", "n": 4}, "prompts times n"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 4}, "prompts times n"),
        ("/v1/embeddings", {"input": ["x"] * 4}, "one for each input"),
    ],
)
def test_more_sequences_than_a_client_may_have_open(
    frontend: Frontend, core: FakeCore, path: str, more: dict, what: str
):
    """To send it again would never help."""
    body = {"model": COMPLETION["model"]} | more
    answer = post(frontend, path, body, ALICE)
    error = assert_openai_shape(answer, 400)
    assert error["message"] == f"The request has 4 sequences ({what}), and this API key may have 3 open at once."
    assert error["code"] == "invalid_value"
    assert answer.headers["x-should-retry"] == "false"
    assert not core.submits


def test_as_many_sequences_as_a_client_may_have_open(frontend: Frontend, core: FakeCore):
    for more in ({"prompt": ["x"] * 3}, {"n": 3}):
        assert post(frontend, "/v1/completions", COMPLETION | more, ALICE).status_code == 200
    assert post(frontend, "/v1/completions", COMPLETION | {"prompt": ["x"] * 2, "n": 2}, BOB).status_code == 200


def test_more_sequences_than_may_wait(frontend: Frontend, core: FakeCore):
    """They are refused whether the service is idle or not."""
    fleet = core.fleet
    core.fleet = msgspec.structs.replace(fleet, max_waiting=5)
    try:
        body = COMPLETION | {"prompt": ["x"] * 2, "n": 3}
        eventually(lambda: post(frontend, "/v1/completions", body, BOB).status_code == 400)
        seen = len(core.submits)
        for path, asked, number in (
            ("/v1/completions", body, 6),
            ("/v1/embeddings", {"model": COMPLETION["model"], "input": ["x"] * 7}, 7),
        ):
            answer = post(frontend, path, asked, BOB)
            message = assert_openai_shape(answer, 400)["message"]
            assert message == f"The request has {number} sequences, and 5 may wait in this service."
        assert len(core.submits) == seen
    finally:
        core.fleet = fleet
        eventually(lambda: post(frontend, "/v1/completions", body, BOB).status_code == 200)
    assert post(frontend, "/v1/completions", COMPLETION | {"n": 2}, BOB).status_code == 200


@pytest.mark.parametrize("name", ["host/gpu 0", "host%2Fgpu%200", "7"])
@pytest.mark.parametrize("body", [{"finish": True}, {"finish": False}, {}, None])
def test_draining(frontend: Frontend, core: FakeCore, name: str, body: dict | None):
    answer = post(frontend, f"/admin/executors/{name}/drain", body, ROOT)
    assert (answer.status_code, answer.json()) == (200, {"epoch": 7})
    drain = core.drains[-1]
    assert (drain.executor, drain.finish) == ("7" if name == "7" else "host/gpu 0", bool(body and body.get("finish")))


def test_draining_is_for_operators(frontend: Frontend, core: FakeCore):
    for key in (ALICE, PROMETHEUS):
        error = assert_openai_shape(post(frontend, "/admin/executors/7/drain", {}, key), 403)
        assert (error["code"], error["type"]) == ("forbidden", "permission_error")
        assert "baton keys api NAME --admin" in error["message"]
    assert_openai_shape(post(frontend, "/admin/executors/7/drain", {}, {}), 401)
    assert not core.drains


@pytest.mark.parametrize("path", ["/status", "/metrics"])
def test_what_tells_of_all_clients_is_not_for_each_of_them(frontend: Frontend, path: str):
    for key in (PROMETHEUS, ROOT):
        assert http.get(frontend.url + path, headers=key).status_code == 200
    error = assert_openai_shape(http.get(frontend.url + path, headers=ALICE), 403)
    assert (error["code"], error["type"]) == ("forbidden", "permission_error")
    assert "baton keys api NAME --metrics" in error["message"]
    assert_openai_shape(http.get(frontend.url + path), 401)
    assert http.get(f"{frontend.url}/v1/models", headers=PROMETHEUS).status_code == 200


def test_metrics_can_be_opened_and_nothing_else_with_them(keys_file: Path):
    """An endpoint picker of a gateway sends no key."""
    with running_frontend("--open-metrics", "--openapi", "--api-keys", str(keys_file)) as frontend:
        described = http.get(f"{frontend.url}/openapi.json").json()["paths"]
        needs_none = {path for path, methods in described.items() if any("security" not in m for m in methods.values())}
        assert needs_none == {"/health", "/ready", "/metrics"}
        for key in ({}, ALICE, PROMETHEUS):
            assert http.get(f"{frontend.url}/metrics", headers=key).status_code == 200
        for path in ("/status", "/v1/models"):
            assert_openai_shape(http.get(frontend.url + path), 401)
        assert_openai_shape(http.get(f"{frontend.url}/status", headers=ALICE), 403)
        assert_openai_shape(post(frontend, "/metrics", {}, {}), 401)  # only reading


def test_without_keys_operators_are_on_this_machine():
    with running_frontend() as keyless:
        elsewhere = {"x-forwarded-for": "192.0.2.7"}
        assert post(keyless, "/admin/executors/7/drain", {}, {}).status_code == 200
        error = assert_openai_shape(post(keyless, "/admin/executors/7/drain", {}, elsewhere), 403)
        assert "key is" not in error["message"], "there are none"
        assert "this machine" in error["message"]
        assert http.get(f"{keyless.url}/metrics", headers=elsewhere).status_code == 200


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [("7", 409, "executor_refused"), ("8", 404, "executor_not_found"), ("x" * 129, 404, "executor_not_found")],
)
def test_drains_that_are_refused(frontend: Frontend, core: FakeCore, name: str, status: int, code: str):
    core.refusal = "it is not to be"
    error = assert_openai_shape(post(frontend, f"/admin/executors/{name}/drain", {}, ROOT), status)
    assert error["code"] == code


def test_bad_drains(frontend: Frontend, core: FakeCore):
    bad_bodies: list[object] = [{"finish": 1}, {"force": True}, []]
    for body in bad_bodies:
        assert_openai_shape(post(frontend, "/admin/executors/7/drain", body, ROOT), 400)
    assert not core.drains
