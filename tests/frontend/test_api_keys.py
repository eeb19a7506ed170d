"""API keys: files, their reload, who gets in, and what it costs to be refused."""

import asyncio
import json
import os
import socket
from datetime import UTC, datetime
from math import inf

import httpx
import msgspec
import pytest

from common import clocks
from common import messages as m
from scheduler_svc.api_key_file import ApiKey, ApiKeysError, digest, encode_key_file, is_reserved, new_key
from scheduler_svc.frontend.api_keys import ApiClient, ApiKeys
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.callers import Callers
from scheduler_svc.frontend.http.middleware import RequireApiKey
from scheduler_svc.frontend.requests.schemas import CompletionRequest
from scheduler_svc.frontend.requests.tokenized_request import tokenize_completion
from scheduler_svc.kv_event_options import salt_of_group
from tests.support.clock import Clock
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.eventually import eventually
from tests.support.frontend_process import COMPLETION, assert_openai_shape, running_frontend
from tests.support.other_user import needs_root
from tests.support.plain_http import NO_TLS, http

ALICE, BOB = new_key(), new_key()


def client(name, key, max_open_requests=0, **rights):
    """What a key makes of its sender, as far as it has no cache group and the key file names no id."""
    own = digest(key)[:32]
    rights = {"is_admin": False, "may_read_status": rights.get("is_admin", False), "min_priority": 0} | rights
    if rights["is_admin"]:
        rights["min_priority"] = -100
    return ApiClient(own, name, max_open_requests, cache_domain=f"key {own}", sha256=digest(key), **rights)


FIRST = client("env-a7937b64", "first", is_admin=True)


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


class Clocks(Clock):
    """The machine's clocks, as `ApiKeys` asks them."""

    def __call__(self):
        return clocks.Clocks(self.time(), self.now, self.now)


@pytest.fixture
def clock():
    return Clocks()


def test_keys_of_both_kinds(file):
    keys = ApiKeys(["first", "second"], file)
    assert keys.are_required
    assert keys.client_of("first") == FIRST
    assert keys.client_of("second") == client("env-16367aac", "second", is_admin=True)
    assert keys.client_of(ALICE) == client("alice", ALICE, 2)
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
    assert ApiKeys(path=file).client_of(ALICE) == client("alice", ALICE, 2)


def test_a_weight_counts_for_the_requests_that_come_after_its_change(file, clock):
    write(file, entry("alice", ALICE, weight=2.5), entry("bob", BOB))
    assert "weight" not in msgspec.json.decode(file.read_bytes())["keys"][1], "older releases read what they know"
    keys = ApiKeys(path=file, clocks=clock)
    assert [Asked(keys.client_of(key)).submit.weight for key in (ALICE, BOB)] == [2.5, 1.0]
    write(file, entry("alice", ALICE, weight=0.01), entry("bob", BOB))
    clock.now += 1.5
    assert Asked(keys.client_of(ALICE)).submit.weight == 0.01
    assert keys.of_id(digest(ALICE)[:32]).weight == 0.01, "also for what goes on without a request"


def test_without_keys_nobody_is_asked_but_an_empty_file_lets_nobody_in(file):
    assert not ApiKeys().are_required
    write(file)
    keys = ApiKeys(path=file)
    assert keys.are_required
    assert keys.client_of("") is None


def test_a_client_is_found_by_its_id_as_long_as_it_has_a_key(file, clock):
    """For work that goes on without a request: responses in the background, and batches."""
    write(file, entry("alice", ALICE, max_open_requests=3), entry("bob", BOB))
    keys = ApiKeys(path=file, clocks=clock)
    alice, bob = keys.client_of(ALICE), keys.client_of(BOB)
    assert keys.of_id(alice.id) == alice
    assert keys.of_id("alice") is None, "a name is no owner"
    assert keys.of_id("") is None
    write(file, entry("bob", BOB))
    clock.now += 1.5
    assert keys.of_id(alice.id) is None
    assert keys.of_id(bob.id) is not None
    without = ApiKeys().of_id("")
    assert without is not None
    assert (without.id, without.name, without.is_admin) == ("", "", False)
    assert ApiKeys().of_id(alice.id) is None


def test_a_name_that_is_given_again_is_another_client(file, clock):
    keys = ApiKeys(path=file, clocks=clock)
    before = keys.client_of(ALICE)
    write(file, entry("alice", BOB))
    clock.now += 1.5
    after = keys.client_of(BOB)
    assert after.name == before.name
    assert after.id != before.id
    assert Asked(after).submit.client != Asked(before).submit.client
    assert Asked(after).submit.cache_salt != Asked(before).submit.cache_salt
    assert Asked(after, request_id="same").submit.request_id != Asked(before, request_id="same").submit.request_id


def test_a_second_key_is_the_same_client(file, clock):
    """That is how keys are rotated: whoever has the old key or the new one has what belongs to the client."""
    first = entry("alice", ALICE)
    write(file, first, entry("alice", BOB, id=first.client_id, max_open_requests=5))
    keys = ApiKeys(path=file, clocks=clock)
    old, new = keys.client_of(ALICE), keys.client_of(BOB)
    assert old.id == new.id == digest(ALICE)[:32]
    assert old.cache_domain == new.cache_domain
    assert keys.of_id(new.id).max_open_requests == 5, "the newest key says what goes on without a request"
    write(file, entry("alice", BOB, id=first.client_id))
    clock.now += 1.5
    assert keys.client_of(ALICE) is None
    assert keys.client_of(BOB).id == old.id
    assert revoked_in(keys, clock, 30) == []


def at(seconds):
    """A moment of the test's clock, as the file has it."""
    return datetime.fromtimestamp(1.8e9 + seconds, UTC)


def test_a_key_that_has_expired_lets_nobody_in_and_ends_nothing(file, clock):
    """What its client has is deleted once an operator revokes it; to forget to renew a key is not that."""
    write(file, entry("alice", ALICE, expires=at(100)), entry("bob", BOB))
    keys = ApiKeys(path=file, clocks=clock)
    alice = keys.client_of(ALICE)
    assert (keys.of_id(alice.id), keys.expired_client_of(ALICE)) == (alice, None)
    clock.now = 100
    assert (keys.client_of(ALICE), keys.of_id(alice.id), keys.has(alice)) == (None, None, False)
    assert keys.expired_client_of(ALICE) == alice
    assert keys.expired_client_of(BOB) is keys.expired_client_of("x") is None
    assert revoked_in(keys, clock, 30) == []
    assert alice.id in keys.known_ids()
    write(file, entry("alice", ALICE, expires=at(100)), entry("alice", new_key(), id=alice.id))
    clock.now += 1.5
    assert keys.of_id(alice.id).expires_at == inf, "of two keys the one that has not expired"


def test_who_comes_with_a_key_that_has_expired_is_told_so(guarded):
    write(guarded.key_file, entry("alice", ALICE), entry("bob", BOB, expires=datetime(2026, 1, 1, tzinfo=UTC)))

    def message(headers):
        return assert_openai_shape(http.get(f"{guarded.url}/v1/models", headers=headers), 401)["message"]

    for headers in (bearer(BOB), {"x-api-key": BOB}):
        eventually(lambda sent=headers: "'bob' expired at 2026-01-01T00:00:00+00:00" in message(sent))
    assert http.get(f"{guarded.url}/v1/models", headers=bearer(ALICE)).status_code == 200


def test_a_key_is_there_as_long_as_it_is_itself_with_its_rights(file, clock):
    """For what goes on while a connection is open; the other key of its client is another one."""
    first = entry("alice", ALICE)
    write(file, first, entry("alice", BOB, id=first.client_id))
    keys = ApiKeys(path=file, clocks=clock)
    old, new = keys.client_of(ALICE), keys.client_of(BOB)
    assert keys.has(old)
    assert keys.has(new)
    write(file, entry("alice", BOB, id=first.client_id, metrics=True))
    clock.now += 1.5
    assert not keys.has(old)
    assert not keys.has(new), "it may read more now: its reader asks again"
    assert keys.has(keys.client_of(BOB))
    assert ApiKeys().has(ApiClient("", "", 0, is_admin=True, may_read_status=True))


def revoked_in(keys, clock, seconds):
    """The names of clients that turn out to be revoked in so many seconds, each with the second."""
    told = []
    for second in range(1, seconds + 1):
        clock.now += 1
        told += [(client.name, second) for client in keys.newly_revoked()]
    return told


def test_a_key_that_is_missing_for_ten_seconds_is_revoked_once(file, clock):
    write(file, entry("alice", ALICE), entry("bob", BOB))
    keys = ApiKeys(["first"], file, clocks=clock)
    assert revoked_in(keys, clock, 30) == []
    write(file, entry("bob", BOB))
    assert revoked_in(keys, clock, 30) == [("alice", 11)]
    write(file, entry("bob", BOB), entry("alice", ALICE))
    assert revoked_in(keys, clock, 30) == []
    write(file)
    assert sorted(name for name, _ in revoked_in(keys, clock, 30)) == ["alice", "bob"]


def test_a_key_that_comes_back_in_time_was_never_revoked(file, clock):
    keys = ApiKeys(path=file, clocks=clock)
    for _ in range(3):
        write(file, entry("bob", BOB))
        assert revoked_in(keys, clock, 9) == []
        write(file, entry("bob", BOB), entry("alice", ALICE))
        assert revoked_in(keys, clock, 5) == []


def test_what_is_no_whole_file_without_a_key_revokes_nothing(file, clock, capsys):
    """Absent, damaged, unreadable, another's: nobody has said that a key is gone."""
    keys, good = ApiKeys(path=file, clocks=clock), file.read_bytes()
    file.unlink()
    assert revoked_in(keys, clock, 30) == []
    file.write_bytes(good[:-20])
    assert revoked_in(keys, clock, 30) == []
    write(file)
    file.chmod(0o666)  # anybody may have emptied it
    assert revoked_in(keys, clock, 30) == []
    write(file, entry("bob", BOB))
    assert revoked_in(keys, clock, 6) == [], "missing for the first time"
    file.write_bytes(b"")
    capsys.readouterr()
    assert revoked_in(keys, clock, 30) == [], "the second look has to be at a whole file"
    assert capsys.readouterr().out.count("cannot be read") == 1, "and the log is not filled with that"
    write(file, entry("alice", ALICE), entry("bob", BOB))
    assert revoked_in(keys, clock, 30) == []
    assert keys.client_of(ALICE) is not None


def test_a_start_without_keys_or_with_others_revokes_nothing(file, clock):
    """What a process never saw it does not miss."""
    assert revoked_in(ApiKeys(), clock, 30) == []
    assert ApiKeys().known_ids() is None
    write(file, entry("bob", BOB))
    keys = ApiKeys(path=file, clocks=clock)
    assert revoked_in(keys, clock, 30) == []
    assert keys.known_ids() == {digest(BOB)[:32]}
    file.write_bytes(b"")
    assert keys.known_ids() is None, "who has a key is not known now"


def test_a_file_that_changes_is_read_again(file, clock, capsys):
    keys = ApiKeys(["first"], file, clocks=clock)
    write(file, entry("bob", BOB, admin=True))
    assert keys.client_of(BOB) is None, "the file is not looked at for every request"
    clock.now += 1.5
    assert keys.client_of(BOB) == client("bob", BOB, is_admin=True)
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


@needs_root
def test_a_file_is_read_again_when_its_owner_is_the_right_one(file, clock):
    """Neither its time nor its size tells of that."""
    keys = ApiKeys(path=file, clocks=clock)
    write(file, entry("bob", BOB))
    os.chown(file, 4711, -1)
    clock.now += 1.5
    assert keys.client_of(BOB) is None, "a third user could have written it"
    os.chown(file, 0, -1)
    clock.now += 1.5
    assert keys.client_of(BOB) is not None


def test_a_file_that_could_not_be_read_is_read_again_although_it_is_the_same(file, clock, monkeypatch):
    """Such as on a disk that failed for a while."""
    keys = ApiKeys(path=file, clocks=clock)
    write(file, entry("bob", BOB))
    with monkeypatch.context() as away:
        away.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        clock.now += 1.5
        assert keys.client_of(BOB) is None
    clock.now += 1.5
    assert keys.client_of(BOB) is not None


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
        json.dumps(changed(weight=0)).encode(),
        json.dumps(changed(weight=100.1)).encode(),
        json.dumps(changed(weight=None)).encode(),
        json.dumps(changed(admin="yes")).encode(),
        json.dumps(changed(metrics=1)).encode(),
        json.dumps(changed(tokens_per_minute=-1)).encode(),
        json.dumps(changed(requests_per_minute="1")).encode(),
        json.dumps(changed(expires="2027-01-01T00:00:00")).encode(),
        json.dumps(changed(expires="soon")).encode(),
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
    with pytest.raises(ApiKeysError, match=f"{file} belongs to user #4712, not to root or user #4711"):
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
    asyncio.run(RequireApiKey(app, keys, Callers())(scope, receive, send))
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
    assert client_seen(keys, path="/ready") == ApiClient("", "", 0, is_admin=False, may_read_status=False)
    assert client_seen(keys, path="/ready", authorization="Bearer first") == FIRST
    assert client_seen(keys, path="/ready/") is None


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
    assert http.post(url, json=COMPLETION, headers=bearer(ALICE)).status_code == 200
    assert_openai_shape(http.post(url, json=COMPLETION, headers=bearer(BOB)), 401)
    write(guarded.key_file, entry("bob", BOB))
    eventually(lambda: http.post(url, json=COMPLETION, headers=bearer(BOB)).status_code == 200)
    assert_openai_shape(http.post(url, json=COMPLETION, headers=bearer(ALICE)), 401)
    write(guarded.key_file, entry("alice", ALICE))
    eventually(lambda: http.post(url, json=COMPLETION, headers=bearer(ALICE)).status_code == 200)


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
    answer = http.post(f"{guarded.url}/v1/completions", content=os.urandom(7_000_000), headers=bearer("wrong"))
    assert_openai_shape(answer, 401)


def test_strangers_cannot_flood_the_log(guarded):
    before = guarded.log.count("\n")
    with httpx.Client(verify=NO_TLS) as client:
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
    assert http.get(f"{guarded.url}/v1/models", headers=bearer(ALICE)).status_code == 200
    assert guarded.log.count("\n") - before < 20, guarded.log
    assert "guess" not in guarded.log, "a key that is nearly right must not stand in a log"
    assert 'event="request refused" code=invalid_api_key' in guarded.log


class Asked:
    """What the core is asked for a request of a client."""

    def __init__(self, client, **fields):
        body = {"model": "m", "prompt": "x", **fields}
        request = tokenize_completion(CompletionRequest.model_validate(body), TOKENIZER, 100)
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
    nobody = ApiClient("", "", 0, is_admin=False, may_read_status=True)
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
