"""What is left of a request: its id in the answer, a count, and a log line if it was refused."""

from collections import Counter

import pytest

from scheduler_svc.frontend.link.request_counts import MAX_LABELS, RequestCounts
from tests.support.eventually import eventually
from tests.support.fake_core import FakeCore, refuse
from tests.support.frontend_process import COMPLETION, Frontend, assert_openai_shape
from tests.support.plain_http import http

OWN_ID = "trace-7/abc"


@pytest.fixture(autouse=True)
def _told(frontend: Frontend, core: FakeCore) -> None:
    """What earlier tests made it count has been told."""
    http.get(f"{frontend.url}/metrics")
    core.counts.clear()


def counts(core: FakeCore) -> tuple[Counter, Counter]:
    answered: Counter[tuple[str, int]] = Counter()
    refused: Counter[str] = Counter()
    for message in core.counts:
        answered.update({(each.path, each.status): each.count for each in message.http})
        refused.update({each.name: each.count for each in message.refused})
    return answered, refused


REFUSALS = [
    ("POST", "/v1/completions", {**COMPLETION, "max_tokens": 10**6}, 400, "context_length_exceeded"),
    ("POST", "/v1/completions", {**COMPLETION, "temperature": 9}, 400, "invalid_value"),
    ("POST", "/v1/chat/completions", {"model": "x", "messages": [{"role": "user"}]}, 404, "model_not_found"),
    ("GET", "/v1/models/none", None, 404, "model_not_found"),
    ("GET", "/nowhere", None, 404, "unknown_url"),
    ("GET", "/v1/models/", None, 404, "model_not_found"),
    ("GET", "/status/", None, 404, "unknown_url"),
    ("DELETE", "/v1/completions", None, 405, "method_not_allowed"),
    ("DELETE", "/v1/requests/none", None, 404, "request_not_found"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "code"), REFUSALS)
def test_each_refusal_has_an_id_a_count_and_a_line(
    frontend: Frontend, core: FakeCore, method: str, path: str, body: object, status: int, code: str
):
    answer = http.request(method, frontend.url + path, json=body, headers={"x-request-id": OWN_ID})
    assert assert_openai_shape(answer, status)["code"] == code
    assert answer.headers["x-request-id"] == OWN_ID
    assert answer.headers["x-should-retry"] == "false"
    assert "location" not in answer.headers
    http.get(f"{frontend.url}/metrics")  # tells the core first what was counted
    answered, refused = counts(core)
    assert refused[code] == 1
    assert sum(number for (_, counted), number in answered.items() if counted == status) == 1
    assert f'event="request refused" code={code}' in frontend.log


def test_endpoints_are_counted_by_their_routes(frontend: Frontend, core: FakeCore):
    for path in ("/v1/models", "/v1/models/a", "/v1/models/b/c", "/x/y", "/z", "/health"):
        http.get(frontend.url + path)
    frontend.post("/v1/completions", COMPLETION)
    http.get(f"{frontend.url}/metrics")
    answered, _ = counts(core)
    assert answered[("/v1/models", 200)] == answered[("/v1/completions", 200)] == answered[("/health", 200)] == 1
    assert answered[("/v1/models/{model_id}", 404)] == 2
    assert answered[("other", 404)] == 2


def test_counts_come_with_the_hellos(frontend: Frontend, core: FakeCore):
    http.get(f"{frontend.url}/nowhere")
    eventually(lambda: counts(core)[1] == {"unknown_url": 1})


def test_what_the_core_refuses_is_logged_here_and_counted_there(frontend: Frontend, core: FakeCore):
    core.script = refuse("all are busy", "too_many_requests")
    for stream in (False, True):
        answer = frontend.post("/v1/completions", COMPLETION | {"stream": stream})
        assert assert_openai_shape(answer, 429)["code"] == "too_many_requests"
        assert answer.headers["x-should-retry"] == "true"
        assert answer.headers["x-request-id"].startswith("cmpl-")
    assert 'event="request refused" code=too_many_requests' in frontend.log
    http.get(f"{frontend.url}/metrics")
    answered, refused = counts(core)
    assert answered[("/v1/completions", 429)] == 2
    assert not refused


@pytest.mark.parametrize(("code", "status"), [("deadline_exceeded", 504), ("request_exists", 409), ("no_token", 422)])
def test_what_would_end_the_same_is_not_to_be_tried_again(frontend: Frontend, core: FakeCore, code: str, status: int):
    core.script = refuse("request id 'CLIENT/mine-0' is in use", code)
    for number, stream in enumerate((False, True)):
        body = COMPLETION | {"stream": stream, "request_id": f"mine{code}{number}"}
        answer = frontend.post("/v1/completions", body)
        error = assert_openai_shape(answer, status)
        assert answer.headers["x-should-retry"] == "false"
        if status == 409:
            assert f"'mine{code}{number}'" in error["message"]
            assert "CLIENT" not in error["message"]


@pytest.mark.parametrize("own", ["", "with a space", "x" * 129, "\u00e9".encode("latin-1")])
def test_ids_that_are_none_are_not_sent_back(frontend: Frontend, own: str | bytes):
    answer = http.get(f"{frontend.url}/v1/models", headers={"x-request-id": own})
    assert answer.headers["x-request-id"].startswith("req-")


def test_the_own_id_comes_back_with_answers_of_all_kinds(frontend: Frontend):
    for stream in (False, True):
        url = f"{frontend.url}/v1/completions"
        answer = http.post(url, json=COMPLETION | {"stream": stream}, headers={"x-request-id": OWN_ID})
        assert answer.status_code == 200
        assert answer.headers.get_list("x-request-id") == [OWN_ID]


def test_labels_are_bounded():
    counts = RequestCounts()
    for number in range(2 * MAX_LABELS):
        counts.ignored(f"field_{number}")
        counts.ignored(f"no name {number}")
        counts.ignored("x" * (100 + number))
    report = counts.report()
    assert len(report.ignored) == MAX_LABELS
    assert sum(each.count for each in report.ignored) == 6 * MAX_LABELS
    counts.reported()
    assert counts.report() is None
