"""Bytes of bodies: in one request, and in all that are being read, of all clients and of one."""

import asyncio
import tracemalloc

import pytest
from starlette.requests import Request

from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.accounts import ClientAccounts, held_of
from scheduler_svc.frontend.http.body_limit import SMALL_BODY_BYTES, LimitBody
from scheduler_svc.frontend.http.connection_guard import ConnectionLimits
from tests.frontend import raw_http
from tests.frontend.links import in_event_loop, until

LIMIT = 4 * SMALL_BODY_BYTES
COUNTED = LIMIT - SMALL_BODY_BYTES  # of the longest body
BODY = b"x" * LIMIT
BODIES_AT_ONCE = 16  # of the longest
ALL = BODIES_AT_ONCE * LIMIT


class Sender:
    """A client that sends its body when the test says so, and what it is answered."""

    def __init__(self, app, declared=None, *, name="alice", method="POST", headers=(), peer=None, path="/"):
        self._app = app
        self._parts = asyncio.Queue()
        self.status = None
        self.headers = {}
        headers = [*headers] if declared is None else [*headers, (b"content-length", str(declared).encode())]
        client = ApiClient(name, name, 0, is_admin=False, may_read_status=False)
        self.scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": peer}
        self.scope["baton.client"] = client

    def send(self, chunk, *, more=True):
        self._parts.put_nowait({"type": "http.request", "body": chunk, "more_body": more})

    def leave(self):
        self._parts.put_nowait({"type": "http.disconnect"})

    @property
    def is_read(self):
        return self._parts.empty()

    async def run(self):
        async def sent(message):
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], dict(message["headers"])

        async with asyncio.timeout(60):
            await self._app(self.scope, self._parts.get, sent)


def limited(inner, body_bytes=LIMIT, file_bytes=LIMIT):
    """An application as a frontend limits it, with room for `BODIES_AT_ONCE`."""
    return ClientAccounts(LimitBody(inner, body_bytes, file_bytes), BODIES_AT_ONCE * body_bytes, 1000)


@pytest.fixture
def bodies():
    """Those that the application was called with."""
    return []


@pytest.fixture
def app(bodies):
    async def inner(scope, receive, send):
        bodies.append((await receive())["body"])
        held_of(Request(scope)).release()
        if "wait" in scope:
            await scope["wait"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return limited(inner)


async def answer(app, *chunks, **facts):
    """The status of a request that is sent at once."""
    sender = Sender(app, **facts)
    for chunk in chunks:
        sender.send(chunk)
    sender.send(b"", more=False)
    await sender.run()
    return sender.status


async def holding(app, name, num_bodies, **facts):
    """Requests of a client that have sent a longest body but not its end, and their tasks."""
    senders = [Sender(app, name=name, **facts) for _ in range(num_bodies)]
    for sender in senders:
        sender.send(BODY)
    tasks = [asyncio.create_task(sender.run()) for sender in senders]
    await until(lambda: all(sender.is_read for sender in senders))
    return senders, tasks


@in_event_loop
async def test_a_body_over_the_limit(app):
    for declared, chunks in ((2 * LIMIT + 1, []), (None, [BODY, b"x"]), (None, [BODY] * 4)):
        assert await answer(app, *chunks, declared=declared) == 413
    assert app.held.num_held == 0


@in_event_loop
async def test_a_client_holds_no_more_than_it_leaves_free(app):
    num_bodies = ALL // 2 // COUNTED
    senders, tasks = await holding(app, "alice", num_bodies)
    assert app.held.num_held == num_bodies * COUNTED
    assert await answer(app, BODY, name="alice") == 503
    assert await answer(app, BODY, name="bob") == 200
    for sender in senders:
        sender.send(b"", more=False)
    await asyncio.gather(*tasks)
    assert {sender.status for sender in senders} == {200}
    assert app.held.num_held == 0
    assert await answer(app, BODY, name="alice") == 200


@in_event_loop
async def test_all_clients_together_hold_no_more_than_all(app):
    everyone, tasks = [], []
    for i in range(10):
        senders, more_tasks = await holding(app, f"client {i}", BODIES_AT_ONCE)
        everyone += senders
        tasks += more_tasks
        assert app.held.num_held < ALL
    for sender in everyone:
        sender.send(b"", more=False)
    await asyncio.gather(*tasks)
    assert {sender.status for sender in everyone} == {200, 503}
    assert app.held.num_held == 0


@in_event_loop
async def test_without_keys_a_client_is_an_address(app):
    senders, tasks = await holding(app, "", BODIES_AT_ONCE, peer=("192.0.2.1", 5))
    assert await answer(app, BODY, name="", peer=("192.0.2.1", 6)) == 503
    assert await answer(app, BODY, name="", peer=("192.0.2.2", 5)) == 200
    for sender in senders:
        sender.leave()
    await asyncio.gather(*tasks)
    assert app.held.num_held == 0


@in_event_loop
async def test_small_bodies_are_always_taken(app):
    senders, tasks = await holding(app, "alice", BODIES_AT_ONCE)
    assert await answer(app, b"x" * SMALL_BODY_BYTES, name="alice") == 200
    assert await answer(app, *[b"x"] * 1000, name="alice") == 200
    assert await answer(app, BODY, name="alice") == 503
    for sender in senders:
        sender.leave()
    await asyncio.gather(*tasks)


@in_event_loop
async def test_a_stream_does_not_hold_its_body_to_its_end(app, bodies):
    streams = [Sender(app) for _ in range(2 * BODIES_AT_ONCE)]
    done = asyncio.Event()
    tasks = []
    for number, sender in enumerate(streams, 1):
        sender.scope["wait"] = done.wait()
        sender.send(BODY, more=False)
        tasks.append(asyncio.create_task(sender.run()))
        await until(lambda number=number: len(bodies) == number)
    assert app.held.num_held == 0
    done.set()
    await asyncio.gather(*tasks)
    assert {sender.status for sender in streams} == {200}


@in_event_loop
async def test_a_body_that_the_application_has_dropped_is_in_memory_no_longer():
    held = []

    async def inner(scope, receive, send):
        await receive()
        held.append(tracemalloc.get_traced_memory()[0])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    halves = BODY[: LIMIT // 2], BODY[: LIMIT // 2]
    tracemalloc.start()
    try:
        assert await answer(limited(inner), *halves) == 200
    finally:
        tracemalloc.stop()
    assert held[0] < LIMIT // 4


@in_event_loop
async def test_a_task_that_is_cancelled_gives_its_bytes_back(app):
    [_], [task] = await holding(app, "alice", 1)
    assert app.held.num_held == COUNTED
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert app.held.num_held == 0


@pytest.mark.parametrize("chunks", [[], [b"{"], [BODY, b"x"]], ids=["nothing", "a part", "too much"])
@in_event_loop
async def test_a_request_that_is_cut_off_is_none(app, bodies, chunks):
    sender = Sender(app)
    for chunk in chunks:
        sender.send(chunk)
    sender.leave()
    await sender.run()
    assert (bodies, sender.status) == ([], None)
    assert app.held.num_held == 0


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@in_event_loop
async def test_what_takes_no_body_reads_none(app, bodies, method):
    for declared, headers in ((1, []), (LIMIT, []), (None, [(b"transfer-encoding", b"chunked")])):
        sender = Sender(app, declared, method=method, headers=headers)
        await sender.run()  # though nothing is sent
        assert (sender.status, sender.headers[b"connection"], bodies) == (413, b"close", [])
    assert await answer(app, method=method) == 200
    assert await answer(app, method=method, declared=0) == 200


CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
CUT_OFF = {
    "head only": CHUNKED,
    "part of a chunk": CHUNKED + b"f\r\n{",
    "whole chunk": CHUNKED + b"2\r\n{}\r\n",
    "bad chunk": CHUNKED + b"2\r\n{}\r\nbad\r\n\r\n",
    "trailer": CHUNKED + b"2\r\n{}\r\n0\r\nx: y\r\n\r\n",
    "part of a length": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n{",
}


@pytest.mark.parametrize("does_client_leave", [True, False], ids=["left", "timeout"])
@pytest.mark.parametrize("sent", CUT_OFF.values(), ids=CUT_OFF.keys())
@in_event_loop
async def test_no_request_that_a_server_got_in_part_is_one(bodies, sent, does_client_leave):
    """Without a body an operator's request to drain means something else, and so it must be a whole one."""
    begun, ended = [], []

    async def inner(scope, receive, send):
        bodies.append(scope)

    app = limited(inner)

    async def noting(scope, receive, send):
        scope["baton.client"] = ApiClient("", "", 0, is_admin=True, may_read_status=True)
        begun.append(scope)
        try:
            await app(scope, receive, send)
        finally:
            ended.append(scope)

    limits = ConnectionLimits(max_connections=9, body_timeout_s=60 if does_client_leave else 0.2)
    async with raw_http.serving(limits, noting) as connect:
        client = await connect()
        await client.send(sent)
        await until(lambda: begun)
        if does_client_leave:
            client.writer.transport.abort()
        await until(lambda: ended)
    assert not bodies


@pytest.fixture
def taken():
    """Pieces of uploads, as the application got them."""
    return []


@pytest.fixture
def uploads(taken):
    async def inner(scope, receive, send):
        more = True
        while more:
            message = await receive()
            more = message.get("more_body", False)
            taken.append(message.get("body"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return limited(inner, file_bytes=3 * LIMIT)


@in_event_loop
async def test_an_upload_goes_on_while_it_comes(uploads, taken):
    sender = Sender(uploads, path="/v1/files")
    running = asyncio.create_task(sender.run())
    for number in range(3):
        sender.send(BODY)
        await until(lambda: sender.is_read and len(taken) == number + 1)  # noqa: B023
    assert 0 < uploads.held.num_held < 2**22, "a chunk or two count as held, not the file"
    sender.send(b"", more=False)
    await running
    assert sender.status == 200
    assert uploads.held.num_held == 0
    assert b"".join(taken) == 3 * BODY


@in_event_loop
async def test_an_upload_has_a_limit_of_its_own(uploads, taken):
    declared = Sender(uploads, path="/v1/files", declared=4 * LIMIT)
    await declared.run()
    assert (declared.status, declared.headers[b"connection"], taken) == (413, b"close", [])
    sender = Sender(uploads, path="/v1/files")
    for _ in range(5):
        sender.send(BODY)
    with pytest.raises(ApiError) as refused:  # which the application answers with
        await sender.run()
    assert refused.value.status == 413
    assert uploads.held.num_held == 0


@in_event_loop
async def test_uploads_take_no_more_memory_than_there_is(taken):
    async def inner(scope, receive, send):
        await receive()

    app = limited(inner, 2**20, 2**30)
    senders = [Sender(app, path="/v1/files", name=f"client {i}") for i in range(12)]
    running = [asyncio.create_task(sender.run()) for sender in senders]
    await until(lambda: any(sender.status for sender in senders))
    assert {sender.status for sender in senders if sender.status} == {503}
    assert app.held.num_held <= BODIES_AT_ONCE * 2**20
    for sender in senders:
        sender.leave()
    await asyncio.gather(*running)
    assert app.held.num_held == 0
