"""Streams of responses in the background, from the worker's socket to the client: they begin at once, end at once, and
hold up nothing."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from common.socket_path import SocketPath
from scheduler_svc.frontend.answers.responses.events import Outcome
from scheduler_svc.frontend.background.app import create_worker_app
from scheduler_svc.frontend.background.worker import Worker
from scheduler_svc.frontend.http.accounts import Readers
from scheduler_svc.frontend.http.background_stream import BackgroundStream, Streaming
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.worker_link import WorkerLink
from scheduler_svc.frontend.storing.responses import ResponseStore
from scheduler_svc.store import responses
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import WORKER_SOCKET, StoreOptions
from tests.frontend.answers.responses.told import ID
from tests.frontend.background.working import CORE_ID, SOON, WORDS, ended, keep, working
from tests.frontend.links import in_event_loop, linked_core, until
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.fake_core import Prompter, refuse, say, silence

EVENT = TypeAdapter(ResponseStreamEvent)
OPENING = ["response.created", "response.queued", "response.in_progress"]
SECOND = "resp_ffffffffffffffffffffffff"
KEEP_ALIVE_S = 0.05


async def at_once(_owner: str, _size: int, work: Callable) -> object:
    return work()


class Client:
    """Stands in for a web server and its client: reads one stream, until it leaves. It sends no request's body."""

    def __init__(
        self,
        link: WorkerLink,
        store: StoreThread,
        after: int = -1,
        response_id: str = ID,
        readers: Readers | None = None,
        long_work: Callable = at_once,
        retry_s: float = 0.01,
    ) -> None:
        self.status = 0
        self.data = b""
        self.has_end = False
        stored = ResponseStore(store, StoreOptions())
        shared = Streaming(stored, link, TOKENIZER, long_work, readers or Readers(1000), retry_s)
        stream = BackgroundStream(shared, "", response_id, after)
        self._is_gone = asyncio.Event()
        self.task = asyncio.create_task(stream({"type": "http", "path": "/"}, self._receive, self._send))

    @property
    def events(self) -> list[dict]:
        """Those that have come."""
        blocks = [block for block in self.data.decode().split("\n\n")[:-1] if block.startswith("event:")]
        return [json.loads(block.partition("\ndata: ")[2]) for block in blocks]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    async def read(self) -> list[dict]:
        """All events; each is one of openai's, and they are numbered without a gap."""
        async with asyncio.timeout(60):
            await self.task
        assert self.has_end
        for event in self.events:
            EVENT.validate_python(event)
        return self.events

    async def leave(self) -> None:
        self._is_gone.set()
        await self.task

    async def _receive(self) -> dict:
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        assert not self.has_end
        self.data += message["body"]
        self.has_end = not message.get("more_body", False)


@asynccontextmanager
async def serving(made: Worker, folder: Path) -> AsyncIterator[None]:
    """The worker's socket."""
    listener, place = socket.socket(socket.AF_UNIX), SocketPath(folder / WORKER_SOCKET)
    (folder / "worker.sock").unlink(missing_ok=True)
    listener.bind(place.path)
    place.close()
    app = create_worker_app(made, KEEP_ALIVE_S)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=5))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        yield
    finally:
        made.stop()
        server.should_exit = True
        await task


@asynccontextmanager
async def streaming(link: CoreLink, folder: Path, **how: Any) -> AsyncIterator[tuple[Worker, StoreThread, WorkerLink]]:
    """A worker, and a frontend's side of its socket."""
    async with working(link, folder, **how) as (made, store), serving(made, folder / "store"):
        front = WorkerLink(folder / "store")
        try:
            yield made, store, front
        finally:
            front.stop()
            await front.close()


def numbers(events: list[dict]) -> list[int]:
    return [event["sequence_number"] for event in events]


@in_event_loop
async def test_a_hundred_streams_hold_up_neither_new_responses_nor_cancels(tmp_path: Path):
    tempo = replace(SOON, rescan_s=3600.0)
    async with linked_core(tmp_path, silence) as (core, link), streaming(link, tmp_path, tempo=tempo) as got:
        _, store, front = got
        await keep(store)
        clients = [Client(front, store) for _ in range(110)]
        await until(lambda: all(client.types == OPENING for client in clients))
        await keep(store, response_id=SECOND)
        front.run("", SECOND)
        await until(lambda: len(core.submits) == 2)
        await front.cancel("", ID)
        for client in clients:
            assert (await client.read())[-1]["type"] == "response.failed"


@in_event_loop
async def test_a_stream_begins_at_once_whatever_the_response_waits_for(tmp_path: Path):
    """No worker is there; then one is, and its core has no room."""
    store = StoreThread(tmp_path / "store")
    await keep(store)
    front = WorkerLink(tmp_path / "store")
    client = Client(front, store)
    await until(lambda: client.types == OPENING[:2])
    assert {event["response"]["id"] for event in client.events} == {ID}
    async with linked_core(tmp_path) as (core, link), working(link, tmp_path) as (made, _):

        def full(submit):
            yield from refuse("too many", "too_many_requests")(submit)
            del core.stories[submit.request_id]  # as the core keeps nothing of what it refuses

        core.script = full
        async with serving(made, tmp_path / "store"):
            await until(lambda: len(core.submits) > 2)
            assert client.types == OPENING[: len(client.types)]
            assert not client.has_end
            core.script = say(WORDS)
            events = await client.read()
            assert numbers(events) == list(range(len(events)))
            assert events[-1]["type"] == "response.incomplete"
            again = await Client(front, store).read()
            assert [event["type"] for event in again] == client.types
    await front.close()
    store.close()


@in_event_loop
async def test_a_stream_ends_with_its_last_event(tmp_path: Path):
    """Nothing is written again of what the store has, nor is a pause made."""

    async def never(*_: object) -> None:
        pytest.fail("written again")

    prompter = Prompter()
    async with linked_core(tmp_path, prompter) as (core, link), streaming(link, tmp_path) as (made, store, front):
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits)
        client = Client(front, store, long_work=never, retry_s=3600.0)
        await until(lambda: client.types == OPENING)
        prompter.say(WORDS, "length")
        events = await client.read()
        assert events[-1]["type"] == "response.incomplete"
        assert numbers(events) == list(range(len(events)))


@pytest.mark.parametrize("after", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("how", ["cancelled", "failed"])
@in_event_loop
async def test_a_response_that_never_ran_has_a_stream(tmp_path: Path, how: str, after: int):
    store = StoreThread(tmp_path / "store")
    await keep(store)
    if how == "cancelled":
        await store.run("", responses.cancel, "", ID, time.time())
    else:
        failed = Outcome.failed("server_error", "it cannot be run")
        parts = {"status": "failed", "output_items": failed.output, "tail": failed.tail, "tokens": b""}
        await store.run("", responses.finish, "", ID, time.time(), **parts)
    front = WorkerLink(tmp_path / "store")
    events = await Client(front, store, after).read()
    assert [event["type"] for event in events] == [*OPENING, "response.failed"][after + 1 :]
    assert numbers(events) == list(range(after + 1, 4))
    if events:
        assert events[-1]["response"]["status"] == how
    await front.close()
    store.close()


@in_event_loop
async def test_a_frontend_that_stops_breaks_its_streams_off_and_the_rest_is_asked_for(tmp_path: Path):
    async with linked_core(tmp_path, say(WORDS, pause_s=0.02)) as (core, link), streaming(link, tmp_path) as got:
        _, store, front = got
        await keep(store)
        client = Client(front, store)
        await until(lambda: "response.output_text.delta" in client.types)
        front.stop()
        await client.task
        assert not client.has_end, "an error would make the client give up"
        events = client.events
        another = WorkerLink(tmp_path / "store")
        rest = await Client(another, store, events[-1]["sequence_number"]).read()
        assert numbers(events + rest) == list(range(len(events + rest)))
        assert not core.cancels
        await another.close()


@in_event_loop
async def test_a_worker_that_stops_hands_its_streams_on(tmp_path: Path):
    async with linked_core(tmp_path, say(WORDS, pause_s=0.02)) as (core, link):
        async with working(link, tmp_path) as (made, store):
            async with serving(made, tmp_path / "store"):
                await keep(store)
                front = WorkerLink(tmp_path / "store")
                mine = StoreThread(tmp_path / "store")
                client = Client(front, mine)
                await until(lambda: "response.output_text.delta" in client.types)
            assert not client.has_end
        async with working(link, tmp_path) as (made, store), serving(made, tmp_path / "store"):
            events = await client.read()
            record = await ended(store)
        await front.close()
        mine.close()
    assert numbers(events) == list(range(len(events)))
    assert (events[-1]["type"], record.status) == ("response.incomplete", "incomplete")
    assert [submit.request_id for submit in core.submits] == [CORE_ID]


@in_event_loop
async def test_a_response_that_is_deleted_ends_its_stream_with_a_numbered_error(tmp_path: Path):
    store = StoreThread(tmp_path / "store")
    await keep(store)
    front = WorkerLink(tmp_path / "store")
    client = Client(front, store)
    await until(lambda: client.types == OPENING[:2])
    await store.run("", responses.delete, "", ID, time.time())
    *_, error = await client.read()
    assert (error["type"], error["code"], error["sequence_number"]) == ("error", "response_not_found", 1)
    await front.close()
    store.close()


@in_event_loop
async def test_one_response_has_so_many_readers(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (_, link), streaming(link, tmp_path) as (_, store, front):
        await keep(store)
        readers = Readers(2)
        clients = [Client(front, store, readers=readers) for _ in range(2)]
        await until(lambda: all(client.types == OPENING for client in clients))
        refused = Client(front, store, readers=readers)
        await refused.task
        assert refused.status == 429
        assert json.loads(refused.data)["error"]["code"] == "too_many_requests"
        await clients[0].leave()
        again = Client(front, store, readers=readers)
        await until(lambda: again.types == OPENING)
        for client in (clients[1], again):
            await client.leave()
