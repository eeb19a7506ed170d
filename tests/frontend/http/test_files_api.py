"""Files over HTTP: the published client, forms of any shape and order, limits, owners, and what breaks off."""

import json
import socket
from contextlib import closing
from urllib.parse import urlsplit

import openai
import pytest

from scheduler_svc.frontend.http import files_api
from scheduler_svc.store.database import connect
from tests.store.rows import add_file
from tests.support.eventually import eventually
from tests.support.frontend_process import assert_openai_shape, running_frontend
from tests.support.plain_http import http

KEYS = "alice-key,bob-key"
MAX_FILE = 300_000


@pytest.fixture(scope="module")
def frontend(tmp_path_factory):
    options = ("--store", str(tmp_path_factory.mktemp("store")), "--max-file-bytes", str(MAX_FILE))
    with running_frontend(*options, BATON_API_KEYS=KEYS) as frontend:
        yield frontend


@pytest.fixture
def alice(frontend):
    with frontend.client("alice-key") as client:
        yield client


@pytest.fixture
def bob(frontend):
    with frontend.client("bob-key") as client:
        yield client


def upload(frontend, data, files, **options):
    headers = {"Authorization": "Bearer alice-key"}
    return http.post(f"{frontend.url}/v1/files", headers=headers, data=data, files=files, timeout=20, **options)


def test_a_file_comes_back_as_it_went(alice):
    content = bytes(range(256)) * 1000
    made = alice.files.create(file=("every byte.jsonl", content), purpose="batch")
    assert (made.bytes, made.filename, made.purpose, made.object) == (len(content), "every byte.jsonl", "batch", "file")
    assert made.expires_at == made.created_at + 30 * 86_400
    assert alice.files.retrieve(made.id) == made
    assert alice.files.content(made.id).content == content
    assert alice.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        alice.files.content(made.id)


def test_an_empty_file_is_a_file(alice):
    made = alice.files.create(file=("nothing", b""), purpose="batch")
    assert alice.files.content(made.id).content == b""


def test_pages_of_files(alice):
    names = [alice.files.create(file=(f"{i}", b"x"), purpose="batch").id for i in range(5)]
    assert [file.id for file in alice.files.list(limit=2, order="asc")][-5:] == names
    page = alice.files.list(limit=2, after=names[3])
    assert [file.id for file in page.data] == [names[2], names[1]]
    assert page.has_more
    assert alice.files.list(purpose="user_data").data == []


def test_a_page_is_bounded_whatever_is_asked_for(tmp_path):
    """The published client asks for the pages that follow by itself."""
    with closing(connect(tmp_path)) as store:
        names = [f"file-{number:024x}" for number in range(files_api.PAGE + 1)]
        for name in names:
            add_file(store, name, owner="", expires_at=None)
    with running_frontend("--store", str(tmp_path)) as frontend, frontend.client() as client:
        page = client.files.list(limit=10_000)
        assert (len(page.data), page.has_more) == (files_api.PAGE, True)
        assert [file.id for file in client.files.list()] == names[::-1]
        answer = http.get(f"{frontend.url}/v1/files?limit=10001")
        assert_openai_shape(answer, 400)


def test_files_are_their_owners(alice, bob):
    made = alice.files.create(file=("mine", b"secret"), purpose="batch")
    for ask in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    assert made.id not in [file.id for file in bob.files.list()]
    assert alice.files.content(made.id).content == b"secret"


def test_a_file_may_expire_earlier(alice):
    made = alice.files.create(
        file=("x", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert made.expires_at == made.created_at + 7200


def test_the_file_may_come_before_the_fields(frontend):
    """As Node's client sends them when its user names the file first."""
    parts = [("file", ("a", b"content")), ("purpose", (None, b"batch"))]
    answer = upload(frontend, None, parts)
    assert answer.status_code == 200
    assert answer.json()["purpose"] == "batch"


@pytest.mark.parametrize(
    ("data", "files", "param"),
    [
        ({}, {"file": ("a", b"x")}, "purpose"),
        ({"purpose": "assistants"}, {"file": ("a", b"x")}, "purpose"),
        ({"purpose": "batch"}, {"other": (None, b"x")}, "file"),
        ({"purpose": "batch", "file": "text"}, {"other": (None, b"x")}, "file"),
        ({"purpose": "batch", "expires_after[seconds]": "7200"}, {"file": ("a", b"x")}, "expires_after[anchor]"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, {"file": ("a", b"x")}, "expires_after[seconds]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "60"},
            {"file": ("a", b"x")},
            "expires_after[seconds]",
        ),
        ({"purpose": "b" * 2000}, {"file": ("a", b"x")}, "purpose"),
    ],
)
def test_what_no_upload_may_have(frontend, alice, data, files, param):
    before = [file.id for file in alice.files.list()]
    error = assert_openai_shape(upload(frontend, data, files), 400)
    assert error["param"] == param
    assert [file.id for file in alice.files.list()] == before


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/json"}, {"content-type": "multipart/form-data"}])
def test_a_body_that_is_no_form(frontend, headers):
    headers = {"Authorization": "Bearer alice-key"} | headers
    assert_openai_shape(http.post(f"{frontend.url}/v1/files", headers=headers, content=b"{}"), 400)


def test_a_form_without_its_end(frontend, alice):
    before = [file.id for file in alice.files.list()]
    headers = {"Authorization": "Bearer alice-key", "content-type": "multipart/form-data; boundary=b"}
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nxyz'
    answer = http.post(f"{frontend.url}/v1/files", headers=headers, content=part)
    assert "end is missing" in assert_openai_shape(answer, 400)["message"]
    assert [file.id for file in alice.files.list()] == before


def test_a_file_beyond_the_limit(frontend, alice):
    before = [file.id for file in alice.files.list()]
    large = b"x" * (MAX_FILE + 70_000)
    assert_openai_shape(upload(frontend, {"purpose": "batch"}, {"file": ("a", large)}), 413)

    def chunks():  # of no declared length
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        for _ in range(50):
            yield b"x" * 10_000

    headers = {"Authorization": "Bearer alice-key", "content-type": "multipart/form-data; boundary=b"}
    answer = http.post(f"{frontend.url}/v1/files", headers=headers, content=chunks())
    assert_openai_shape(answer, 413)
    assert [file.id for file in alice.files.list()] == before


def test_an_upload_whose_client_goes_leaves_nothing(frontend, tmp_path_factory):
    """Not even in the quota: what had come is deleted at once."""
    store = tmp_path_factory.mktemp("small")
    options = ("--store", str(store), "--store-limit", "1")
    with running_frontend(*options) as small:
        where = urlsplit(small.url)
        head = (
            b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n"
            b"content-type: multipart/form-data; boundary=b\r\n\r\n"
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        )
        with socket.create_connection((where.hostname, where.port)) as connection:
            connection.sendall(head + b"x" * 900_000)
        with small.client() as client:

            def fits():
                try:
                    return client.files.create(file=("f", b"y" * 700_000), purpose="batch")
                except openai.RateLimitError:
                    return None

            assert eventually(fits).bytes == 700_000
            with pytest.raises(openai.RateLimitError, match="stored bytes"):
                client.files.create(file=("f", b"y" * 700_000), purpose="batch")


def test_without_a_store(tmp_path_factory):
    with running_frontend() as frontend:
        for method, path in (("GET", "/v1/files"), ("GET", "/v1/files/file-1"), ("GET", "/v1/batches")):
            answer = http.request(method, f"{frontend.url}{path}")
            assert assert_openai_shape(answer, 404)["code"] == "store_not_found"


# --- batches, as far as no worker is needed ---


@pytest.fixture
def input_file(alice):
    return alice.files.create(file=("in.jsonl", b"{}\n"), purpose="batch").id


def batch(client, input_file, **fields):
    asked = {"input_file_id": input_file, "endpoint": "/v1/completions", "completion_window": "24h"}
    return client.batches.create(**(asked | fields))


def test_a_batch_waits_for_the_worker(alice, bob, input_file):
    made = batch(alice, input_file, metadata={"a": "b"}, completion_window="2h")
    assert (made.status, made.metadata, made.object) == ("validating", {"a": "b"}, "batch")
    assert made.expires_at == made.created_at + 7200
    assert made.request_counts.to_dict() == {"total": 0, "completed": 0, "failed": 0}
    assert alice.batches.retrieve(made.id) == made
    assert alice.batches.list(limit=1).data[0].id == made.id
    assert bob.batches.list().data == []
    for ask in (bob.batches.retrieve, bob.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    assert alice.batches.cancel(made.id).status == "cancelling"
    assert alice.batches.cancel(made.id).status == "cancelling"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "24"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "999h"}, "completion_window"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"extra_body": {"nonsense": 1}}, "nonsense"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
def test_what_no_batch_may_have(alice, input_file, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        batch(alice, input_file, **fields)
    assert refused.value.param == param


def test_the_input_has_to_be_there(alice, bob, input_file):
    for client, file_id in ((bob, input_file), (alice, "file-0"), (alice, "nonsense")):
        with pytest.raises(openai.NotFoundError) as refused:
            batch(client, file_id)
        assert refused.value.param == "input_file_id"


def test_so_many_batches_may_be_open(bob):
    file_id = bob.files.create(file=("in.jsonl", json.dumps({}).encode()), purpose="batch").id
    made = [batch(bob, file_id).id for _ in range(100)]
    assert len(set(made)) == 100
    with pytest.raises(openai.RateLimitError) as refused:
        batch(bob, file_id)
    assert refused.value.code == "too_many_batches"
    bob.batches.cancel(made[0])  # it has not ended: nothing finalizes it here
    assert len(list(bob.batches.list(limit=30))) == 100
