"""API keys: files, their reload, who gets in, and what it costs to be refused."""

import asyncio
import json
import os
import socket

import httpx
import msgspec
import pytest

from common import messages as m
from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.api_key_file import ApiKey, ApiKeysError, digest, encode_key_file, is_reserved, new_key
from scheduler_svc.frontend import api_keys
from scheduler_svc.frontend.api_keys import ApiClient, ApiKeys
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.middleware import RequireApiKey
from scheduler_svc.frontend.requests.schemas import CompletionRequest
from scheduler_svc.frontend.requests.tokenized_request import tokenize_completion
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.kv_event_options import salt_of_group
from tests.frontend.harness import COMPLETION, assert_openai_shape, running_frontend
from tests.support.clock import Clock
from tests.support.eventually import eventually

ALICE, BOB = new_key(), new_key()
FIRST = ApiClient(
    "env-a7937b64", 0, is_admin=True, may_read_status=True, cache_domain="key env-a7937b64"
)  # its key is "first"


def entry(name, key, **options):
    return ApiKey(name=name, sha256=digest(key), created="2026-01-01T00:00:00+00:00", **options)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "api-keys.json"
    write(path, entry("alice", ALICE, max_open_requests=2))
    return path


def write(path, *entries):
    path.with_name("new").write_bytes(encode_key_file(entries))
    path.with_name("new").chmod(0o600)
    path.with_name("new").replace(path)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(api_keys, "time", clock)
    return clock


def test_keys_of_both_kinds(file):
    keys = ApiKeys(["first", "second"], file)
    assert keys.are_required
    assert keys.client_of("first") == FIRST
    assert keys.client_of("second") == ApiClient(
        "env-16367aac", 0, is_admin=True, may_read_status=True, cache_domain="key env-16367aac"
    )
    assert keys.client_of(ALICE) == ApiClient(
        "alice", 2, is_admin=False, may_read_status=False, min_priority=0, cache_domain="key alice"
    )
    for wrong in ("", "third", ALICE[:-1], ALICE + "x", ALICE.upper(), digest(ALICE), "\ud800"):
        assert keys.client_of(wrong) is None


def test_a_key_without_a_name_keeps_its_own_when_others_go():
    """Requests belong to names, and outlive a restart: no client may inherit another's."""
    assert ApiKeys(["second"]).client_of("second") == ApiKeys(["first", "second"]).client_of("second")
    assert is_reserved(FIRST.name)


def test_what_keys_may_do(file):
    for rights, expected in (
        ({}, (False, False)),
        ({"metrics": True}, (False, True)),
        ({"admin": True}, (True, True)),
        ({"admin": True, "metrics": True}, (True, True)),
    ):
        write(file, entry("bob", BOB, **rights))
        client = ApiKeys(path=file).client_of(BOB)
        assert (client.is_admin, client.may_read_status) == expected


def test_a_file_from_before_there_were_such_rights(file):
    old = msgspec.json.decode(file.read_bytes())
    assert set(old["keys"][0]) == {"name", "sha256", "created", "max_open_requests"}, "and older releases read ours"
    file.write_text(json.dumps(old))
    assert ApiKeys(path=file).client_of(ALICE) == ApiClient(
        "alice", 2, is_admin=False, may_read_status=False, min_priority=0, cache_domain="key alice"
    )


def test_without_keys_nobody_is_asked_but_an_empty_file_lets_nobody_in(file):
    assert not ApiKeys().are_required
    write(file)
    keys = ApiKeys(path=file)
    assert keys.are_required
    assert keys.client_of("") is None


def test_a_client_is_found_by_its_name_as_long_as_its_key_is_there(file, clock):
    """For work that goes on without a request: batches."""
    write(file, entry("alice", ALICE, max_open_requests=3), entry("bob", BOB))
    keys = ApiKeys(path=file)
    assert keys.named("alice") == keys.client_of(ALICE)
    assert keys.named("carol") is None
    assert keys.named("") is None
    write(file, entry("bob", BOB))
    clock.now += 1.5
    assert keys.named("alice") is None
    assert keys.named("bob") is not None
    without = ApiKeys().named("")
    assert without is not None
    assert (without.name, without.is_admin) == ("", False)
    assert ApiKeys().named("alice") is None


def test_a_file_that_changes_is_read_again(file, clock, capsys):
    keys = ApiKeys(["first"], file)
    write(file, entry("bob", BOB, admin=True))
    assert keys.client_of(BOB) is None, "the file is not looked at for every request"
    clock.now += 1.5
    assert keys.client_of(BOB) == ApiClient("bob", 0, is_admin=True, may_read_status=True, cache_domain="key bob")
    assert keys.client_of(ALICE) is None
    file.write_text("half a fi")
    for _ in range(3):
        clock.now += 1.5
        assert keys.client_of(BOB) is not None, "what cannot be read changes nothing"
    file.unlink()
    clock.now += 1.5
    assert keys.client_of(BOB) is not None
    assert keys.client_of("first") is not None
    write(file, entry("alice", ALICE))
    clock.now += 1.5
    assert keys.client_of(ALICE) is not None
    assert keys.client_of(BOB) is None


def test_files_that_cannot_be_used(file):
    good = msgspec.json.decode(file.read_bytes())

    def changed(**fields):
        return {**good, "keys": [{**good["keys"][0], **fields}]}

    for content in (
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({**good, "version": 2}).encode(),
        json.dumps({**good, "extra": 1}).encode(),
        json.dumps(changed(name="../x")).encode(),
        json.dumps(changed(name="")).encode(),
        json.dumps(changed(name="a\n")).encode(),
        json.dumps(changed(sha256="ab")).encode(),
        json.dumps(changed(max_open_requests=-1)).encode(),
        json.dumps(changed(max_open_requests=2**31)).encode(),
        json.dumps(changed(admin="yes")).encode(),
        json.dumps(changed(metrics=1)).encode(),
        json.dumps(changed(unknown=1)).encode(),
    ):
        file.write_bytes(content)
        with pytest.raises(ApiKeysError, match="is no file of"):
            ApiKeys(path=file)
    file.write_text(json.dumps(good))
    for mode in (0o620, 0o602, 0o666):
        file.chmod(mode)
        with pytest.raises(ApiKeysError, match="chmod go-w"):
            ApiKeys(path=file)
    file.chmod(0o640)
    assert ApiKeys(path=file).are_required
    with pytest.raises(ApiKeysError, match="No such file"):
        ApiKeys(path=file.with_name("nothing"))


def test_a_file_of_some_third_user_is_refused(file, monkeypatch):
    """Its owner could add a key, whatever the mode is."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result([0o100600, 1, 1, 1, 4712, 0, 1, 0, 0, 0]))
    with pytest.raises(ApiKeysError, match=f"{file} belongs to user 4712, not to root or user 4711"):
        ApiKeys(path=file)
    monkeypatch.setattr(os, "geteuid", lambda: 4712)
    assert ApiKeys(path=file).client_of(ALICE) is not None


def client_seen(keys, path="/v1/models", peer=("192.0.2.7", 5), **headers):
    """The `baton.client` that an application behind the middleware sees; None if it is not asked."""
    seen, sent = [], []

    async def app(scope, receive, send):
        seen.append(scope["baton.client"])

    async def receive():
        raise AssertionError("the body was read")

    async def send(message):
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": raw, "client": peer}
    asyncio.run(RequireApiKey(app, keys)(scope, receive, send))
    if not seen:
        assert sent[0]["status"] == 401
        assert dict(sent[0]["headers"])[b"connection"] == b"close"
        return None
    assert not sent
    return seen[0]


def test_who_a_request_is_from(file):
    keys = ApiKeys(["first"], file)
    assert client_seen(keys, authorization=f"Bearer {ALICE}").name == "alice"
    assert client_seen(keys, authorization="bearer   first ") == FIRST
    for header in ("Bearer", "Bearer ", f"Basic {ALICE}", ALICE, f"Bearer{ALICE}", "Bearer \u00e9"):
        assert client_seen(keys, authorization=header) is None
    assert client_seen(keys) is None
    assert client_seen(keys, peer=("127.0.0.1", 5)) is None, "keys are for everybody"
    assert client_seen(keys, path="/ready") == ApiClient("", 0, is_admin=False, may_read_status=False)
    assert client_seen(keys, path="/ready", authorization="Bearer first") == FIRST
    assert client_seen(keys, path="/ready/") is None


@pytest.mark.parametrize(
    ("peer", "is_admin"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("192.0.2.7", False), ("::", False), ("x", False)],
)
def test_without_keys_this_machine_is_admin(peer, is_admin):
    assert client_seen(ApiKeys(), peer=(peer, 5)) == ApiClient("", 0, is_admin, may_read_status=True)
    for header in ("forwarded", "x_forwarded_for", "origin"):
        assert not client_seen(ApiKeys(), peer=(peer, 5), **{header: "http://evil.example"}).is_admin
    assert client_seen(ApiKeys(), peer=None) == ApiClient("", 0, is_admin=False, may_read_status=True)


@pytest.mark.parametrize(
    ("host", "origin", "is_admin"),
    [
        ("localhost:8000", "http://localhost:8000", True),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("[::1]:8000", "http://[::1]:8000", True),
        ("localhost", "https://localhost", True),
        ("localhost:8000", "http://localhost:9000", False),  # another service of this machine
        ("localhost:8000", "null", False),
        ("rebound.example:8000", "http://rebound.example:8000", False),  # its owner lets DNS say that it is here
        ("[::1", "http://[::1", False),
        ("", "http://", False),
    ],
)
def test_only_the_services_own_page_speaks_for_this_machine(host, origin, is_admin):
    assert client_seen(ApiKeys(), peer=("127.0.0.1", 5), host=host, origin=origin).is_admin == is_admin


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "api-keys.json"
    write(path, entry("alice", ALICE))
    with running_frontend("--api-keys", str(path)) as frontend:
        frontend.key_file = path
        yield frontend


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_a_key_of_the_file_opens_and_one_that_is_added_does_so_later(guarded):
    url = f"{guarded.url}/v1/completions"
    assert httpx.post(url, json=COMPLETION, headers=bearer(ALICE)).status_code == 200
    assert_openai_shape(httpx.post(url, json=COMPLETION, headers=bearer(BOB)), 401)
    write(guarded.key_file, entry("bob", BOB))
    eventually(lambda: httpx.post(url, json=COMPLETION, headers=bearer(BOB)).status_code == 200, 5)
    assert_openai_shape(httpx.post(url, json=COMPLETION, headers=bearer(ALICE)), 401)
    write(guarded.key_file, entry("alice", ALICE))
    eventually(lambda: httpx.post(url, json=COMPLETION, headers=bearer(ALICE)).status_code == 200, 5)


def raw(frontend):
    return socket.create_connection(("127.0.0.1", int(frontend.url.rsplit(":", 1)[1])), timeout=10)


def test_a_body_without_a_key_is_not_waited_for(guarded):
    with raw(guarded) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n{")
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer.lower()
    assert b"invalid_api_key" in answer


def test_a_client_that_sends_a_large_body_reads_why_it_is_refused(guarded):
    answer = httpx.post(f"{guarded.url}/v1/completions", content=os.urandom(7_000_000), headers=bearer("wrong"))
    assert_openai_shape(answer, 401)


def test_strangers_cannot_flood_the_log(guarded):
    before = guarded.log.count("\n")
    with httpx.Client() as client:
        for number in range(200):
            assert client.get(f"{guarded.url}/v1/models", headers=bearer(f"guess-{number}")).status_code == 401
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01\xff\xfc",
        b"GET\r\n\r\n",
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03",
        b"\r\n" * 9,
    ):
        for _ in range(25):
            with raw(guarded) as connection:
                connection.sendall(garbage)
    assert httpx.get(f"{guarded.url}/v1/models", headers=bearer(ALICE)).status_code == 200
    assert guarded.log.count("\n") - before < 20, guarded.log
    assert "guess" not in guarded.log, "a key that is nearly right must not stand in a log"
    assert 'event="request refused" code=invalid_api_key' in guarded.log


class Asked:
    """What the core is asked for a request of a client."""

    def __init__(self, client, **fields):
        body = {"model": "m", "prompt": "x", **fields}
        tokenizer = Tokenizer(DEMO_MODEL_DIR)
        request = tokenize_completion(CompletionRequest.model_validate(body), tokenizer, 100)
        (self.submit,) = request.submits(client, b"")


def clients(file, **keys):
    """Clients with keys of these rights, by name."""
    plain = {name: new_key() for name in keys}
    write(file, *(entry(name, plain[name], **rights) for name, rights in keys.items()))
    known = ApiKeys(path=file)
    return [known.client_of(key) for key in plain.values()]


def test_no_key_shares_a_cached_prefix_with_another_unless_an_operator_says_so(file):
    team = {"cache_group": "team"}
    alone, other, one, two, imitator = clients(file, alone={}, other={}, one=team, two=team, team={})
    salts = {
        client.name: Asked(client, cache_salt="s").submit.cache_salt for client in (alone, other, one, two, imitator)
    }
    assert salts["one"] == salts["two"]
    assert len(set(salts.values())) == 4
    assert Asked(one).submit.cache_salt == salt_of_group("team"), "routers are told of another group's blocks"
    assert Asked(alone).submit.cache_salt != Asked(alone, cache_salt="s").submit.cache_salt
    for one_salt, other_salt in (("", "key other/"), ("/", ""), ("x", "x")):
        assert (
            Asked(alone, cache_salt=one_salt).submit.cache_salt != Asked(other, cache_salt=other_salt).submit.cache_salt
        )
    nobody = ApiClient("", 0, is_admin=False, may_read_status=True)
    assert Asked(nobody, cache_salt="s").submit.cache_salt == "s"
    longest = Asked(clients(file, **{"n" * 64: {}})[0], cache_salt="s" * 256).submit
    assert msgspec.convert(msgspec.to_builtins(longest), m.Submit) == longest


def test_a_key_may_ask_for_so_much_priority_and_no_more(file):
    plain, trusted, admin = clients(file, plain={}, trusted={"min_priority": -10}, root={"admin": True})
    for client, lowest in ((plain, 0), (trusted, -10), (admin, -100)):
        assert Asked(client, priority=lowest).submit.priority == lowest
        assert Asked(client, priority=100).submit.priority == 100
        if lowest > -100:
            with pytest.raises(ApiError, match=f"is {lowest - 1}, the lowest value of this API key is {lowest}") as no:
                Asked(client, priority=lowest - 1)
            assert (no.value.status, no.value.code, no.value.param) == (403, "priority_not_allowed", "priority")
