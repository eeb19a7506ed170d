"""Bytes of bodies: in one request, and in all that are being read."""

import asyncio

import pytest

from scheduler_svc.frontend.http.body_limit import BODIES_AT_ONCE, LimitBody
from tests.frontend.links import in_event_loop

LIMIT = 1000


class Sender:
    """A client that sends its body when the test says so, and what it is answered."""

    def __init__(self, app, declared=None):
        self._app = app
        self._parts = asyncio.Queue()
        self.status = None
        self.seen = b""
        headers = [] if declared is None else [(b"content-length", str(declared).encode())]
        self.scope = {"type": "http", "headers": headers}

    def send(self, chunk, *, more=True):
        self._parts.put_nowait({"type": "http.request", "body": chunk, "more_body": more})

    async def run(self):
        async def sent(message):
            if message["type"] == "http.response.start":
                self.status = message["status"]

        await self._app(self.scope, self._parts.get, sent)


@pytest.fixture
def app():
    async def inner(scope, receive, send):
        body = (await receive())["body"]
        if not scope.get("keeps"):
            scope["baton.body"].release()
        if "wait" in scope:
            await scope["wait"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return LimitBody(inner, LIMIT)


@in_event_loop
async def test_a_body_over_the_limit(app):
    for declared, chunks in ((2 * LIMIT + 1, []), (None, [b"x" * LIMIT, b"x"]), (None, [b"x" * LIMIT] * 4)):
        sender = Sender(app, declared)
        for chunk in chunks:
            sender.send(chunk)
        sender.send(b"", more=False)
        await sender.run()
        assert sender.status == 413
    assert app._bodies._num_bytes == 0


@in_event_loop
async def test_all_bodies_together_have_a_limit_too(app):
    senders = [Sender(app) for _ in range(BODIES_AT_ONCE)]
    for sender in senders:
        sender.send(b"x" * LIMIT)
    tasks = [asyncio.create_task(sender.run()) for sender in senders]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    one_more = Sender(app)
    one_more.send(b"x")
    one_more.send(b"", more=False)
    await one_more.run()
    assert one_more.status == 503
    for sender in senders:
        sender.send(b"", more=False)
    await asyncio.gather(*tasks)
    assert {sender.status for sender in senders} == {200}
    assert app._bodies._num_bytes == 0


@in_event_loop
async def test_a_stream_does_not_hold_its_body_to_its_end(app):
    streams = [Sender(app) for _ in range(2 * BODIES_AT_ONCE)]
    done = asyncio.Event()
    tasks = []
    for sender in streams:
        sender.scope["wait"] = done.wait()
        sender.send(b"x" * LIMIT, more=False)
        tasks.append(asyncio.create_task(sender.run()))
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert app._bodies._num_bytes == 0
    done.set()
    await asyncio.gather(*tasks)
    assert {sender.status for sender in streams} == {200}


@in_event_loop
async def test_a_client_that_goes_gives_its_bytes_back(app):
    sender = Sender(app)
    sender.send(b"x" * LIMIT)
    task = asyncio.create_task(sender.run())
    await asyncio.sleep(0.01)
    assert app._bodies._num_bytes == LIMIT
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert app._bodies._num_bytes == 0
