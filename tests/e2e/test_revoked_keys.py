"""A key is revoked while its client has everything open, and another person gets a key of the same name."""

import json
import threading

import httpx
import openai
import pytest

from tests.e2e.service import Service
from tests.support.eventually import eventually
from tests.support.keyed import KeysCommand

pytestmark = pytest.mark.slow  # a revocation takes ten seconds
MODEL = "baton-demo"
ENDLESS = {
    "model": MODEL,
    "prompt": "ROMEO:",
    "max_tokens": 2000,
    "ignore_eos": True,
    "stream": True,
    "resumable": True,
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Runs `baton keys`."""
    run = KeysCommand(tmp_path_factory.mktemp("keys"))
    run("init")
    run("api", "root", "--admin")
    return run


@pytest.fixture(scope="module")
def service(tmp_path_factory, keys):
    with Service(tmp_path_factory.mktemp("service"), options=("--api-keys", keys.file)) as running:
        yield running


def client_with(service, key):
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=key, max_retries=0, timeout=30)


class Stream:
    """A resumable stream that ends when the service ends it.

    Attributes:
        request_id: of its first event.
        error: of its last one.
    """

    def __init__(self, service, key):
        self.request_id, self.error = "", None
        self._asks = f"{service.url}/v1/completions", {"authorization": f"Bearer {key}"}
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        eventually(lambda: self.request_id)

    def _read(self):
        url, headers = self._asks
        with httpx.stream("POST", url, json=ENDLESS, headers=headers, timeout=60) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    self.request_id = self.request_id or event.get("id", "")
                    self.error = event.get("error")


def test_a_namesake_gets_nothing_and_all_that_is_open_ends(service, keys):
    first = keys("api", "bob")
    entries = keys.file.read_text()
    eventually(lambda: keyed(service, first).status_code == 200)
    bob = client_with(service, first)
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions"}
    body = {name: value for name, value in ENDLESS.items() if name not in ("stream", "resumable")}
    lines = [json.dumps(line | {"custom_id": f"{i}", "body": body}).encode() for i in range(50)]
    file = bob.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
    said = bob.responses.create(model=MODEL, input="My secret is Elsinore.", max_output_tokens=5)
    works = [bob.responses.create(model=MODEL, input="x", background=True, max_output_tokens=2000,
                                  extra_body={"ignore_eos": True}) for _ in range(3)]  # fmt: skip
    batch = bob.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    stream = Stream(service, first)
    eventually(lambda: bob.responses.retrieve(works[0].id).status == "in_progress")

    keys("revoke", "bob")
    second = keys("api", "bob")
    eventually(lambda: keyed(service, second).status_code == 200)
    assert keyed(service, first).status_code == 401
    other = client_with(service, second)
    assert [*other.files.list()] == [*other.batches.list()] == []
    for ask in (
        lambda: other.files.retrieve(file.id),
        lambda: other.files.content(file.id),
        lambda: other.responses.retrieve(said.id),
        lambda: other.responses.retrieve(works[0].id),
        lambda: other.responses.cancel(works[1].id),
        lambda: other.responses.create(model=MODEL, input="And?", previous_response_id=said.id),
        lambda: other.batches.retrieve(batch.id),
        lambda: other.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"),
    ):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
            ask()
    resumed = keyed(service, second, f"/v1/requests/{stream.request_id}/events")
    assert (resumed.status_code, resumed.json()["error"]["code"]) == (404, "request_not_found")

    stream.thread.join(60)
    assert stream.error["code"] == "invalid_api_key"
    assert stream.error["message"] == "the API key of this request was revoked"

    keys.file.write_text(entries)  # by mistake, it turns out: what was stored is there, as it ended
    eventually(lambda: keyed(service, first).status_code == 200)
    assert bob.files.content(file.id).read() == b"\n".join(lines)
    assert [bob.responses.retrieve(work.id).status for work in works] == ["cancelled"] * 3
    ended = eventually(lambda: (found := bob.batches.retrieve(batch.id)).status == "failed" and found)
    assert [error.code for error in ended.errors.data] == ["invalid_api_key"]


def keyed(service, key, path="/v1/models"):
    return httpx.get(f"{service.url}{path}", headers={"authorization": f"Bearer {key}"})
