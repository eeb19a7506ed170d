"""The background worker beside a core that refuses, forgets, goes and comes back: each response ends once, as it was
asked for, and the store has it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from common import messages as m
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.background import response_run
from scheduler_svc.frontend.background.__main__ import make_batches
from scheduler_svc.frontend.background.worker import Worker
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.responses.background_work import WORK_VERSION, BackgroundWork
from scheduler_svc.frontend_options import FrontendOptions
from scheduler_svc.store import responses
from scheduler_svc.store.records import StoredResponse
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions
from tests.frontend.fake_core import FakeCore, int32, refuse, say, silence
from tests.frontend.links import in_event_loop, linked_core, until
from tests.frontend.responses.test_events import ID, context_of, spec_of
from tests.frontend.test_message_text import TOKENIZER, ids

WORDS = ids("one two three four five six seven")
CORE_ID = f"{ID}-0"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """What is tried again is tried soon."""
    monkeypatch.setattr(response_run, "RETRY_S", 0.01)


@asynccontextmanager
async def working(link: CoreLink, folder: Path) -> AsyncIterator[tuple[Worker, StoreThread]]:
    store = StoreThread(folder / "store")
    options = FrontendOptions(("m",))
    batches = make_batches(link, TOKENIZER, options, store, StoreOptions(folder / "store"), ApiKeys())
    made = Worker(link, TOKENIZER, store, batches)
    task = asyncio.create_task(made.run())
    try:
        yield made, store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        store.close()


async def keep(store: StoreThread, work: bytes | None = None) -> None:
    """A response that waits for the worker."""
    context = context_of().encode()
    params = m.SamplingParams(max_tokens=50)
    submit = m.Submit(request_id=CORE_ID, prompt=int32([1, 2, 3]), params=params, context=context, is_resumable=True)
    spec = spec_of()
    work = BackgroundWork(WORK_VERSION, spec, submit).encode() if work is None else work
    facts = {"is_background": True, "previous_id": None, "head": spec.head, "input_items": b"[]", "work": work}
    await store.run(responses.add, StoredResponse("", ID, "queued", time.time(), None, **facts))


async def stored(store: StoreThread) -> StoredResponse:
    return await store.run(responses.get, "", ID, time.time())


async def ended(store: StoreThread) -> StoredResponse:
    """The response, once it has."""
    async with asyncio.timeout(10):
        while (record := await stored(store)).status in ("queued", "in_progress"):
            await asyncio.sleep(0.01)
    return record


def text_of(record: StoredResponse) -> str:
    return msgspec.json.decode(record.output_items)[0]["content"][0]["text"]


@in_event_loop
async def test_what_an_earlier_worker_left_is_taken_up(tmp_path: Path):
    async with linked_core(tmp_path, say(WORDS)) as (core, link):
        store = StoreThread(tmp_path / "store")
        await keep(store)
        store.close()
        async with working(link, tmp_path) as (_, again):
            record = await ended(again)
    assert (record.status, text_of(record), record.work) == ("incomplete", "one two three four five six seven", b"")
    assert len(core.submits) == 1


@in_event_loop
async def test_what_is_cancelled_before_it_has_begun_is_not_run(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (core, link), working(link, tmp_path) as (made, store):
        await keep(store)
        made.start("", ID)
        await asyncio.sleep(0)  # its task reads the store
        await made.cancel("", ID)
        assert (await stored(store)).status == "cancelled"
        assert not core.submits


@in_event_loop
async def test_a_core_that_is_full_is_asked_again(tmp_path: Path):
    async with linked_core(tmp_path) as (core, link), working(link, tmp_path) as (made, store):
        core.script = refuse("full", "queue_full")
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits)
        core.stories.clear()
        core.script = say(WORDS)
        assert text_of(await ended(store)).startswith("one two")


@in_event_loop
async def test_a_core_that_comes_back_goes_on(tmp_path: Path):
    async with (
        linked_core(tmp_path, say(WORDS, pause_s=0.02)) as (core, link),
        working(link, tmp_path) as (made, store),
    ):
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits and len(core.stories[CORE_ID].told[0].token_ids) >= 3)
        await asyncio.to_thread(core.close)
        told = core.stories[CORE_ID].told[0].token_ids
        rest = say(WORDS[len(told) :])
        again = FakeCore(tmp_path, script=rest, stories=core.stories)
        try:
            record = await ended(store)
        finally:
            again.close()
        assert text_of(record) == "one two three four five six seven", "each token once"
        assert not again.submits, "it was attached to"


@in_event_loop
async def test_a_core_that_has_forgotten_gets_the_request_anew(tmp_path: Path):
    async with (
        linked_core(tmp_path, say(WORDS, pause_s=0.02)) as (core, link),
        working(link, tmp_path) as (made, store),
    ):
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits and len(core.stories[CORE_ID].told[0].token_ids) >= 3)
        await asyncio.to_thread(core.close)
        again = FakeCore(tmp_path, script=say(WORDS))
        try:
            record = await ended(store)
        finally:
            again.close()
        assert text_of(record) == "one two three four five six seven"
        assert [submit.request_id for submit in again.submits] == [CORE_ID]


@in_event_loop
async def test_a_request_that_the_core_gave_up_is_sent_under_another_id(tmp_path: Path):
    """The worker was away for longer than the core keeps what is not read."""
    async with linked_core(tmp_path, silence) as (core, link), working(link, tmp_path) as (made, store):
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits)
        core.script = say(WORDS)
        link._send(m.Cancel(request_id=CORE_ID))
        assert text_of(await ended(store)).startswith("one two")
        assert [submit.request_id for submit in core.submits] == [CORE_ID, f"{ID}-1"]


@in_event_loop
async def test_cancelled_while_it_runs_and_while_the_core_is_away(tmp_path: Path):
    async with (
        linked_core(tmp_path, say(WORDS, pause_s=0.05)) as (core, link),
        working(link, tmp_path) as (made, store),
    ):
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits and core.stories[CORE_ID].told[0].token_ids)
        await made.cancel("", ID)
        record = await stored(store)
        assert record.status == "cancelled"
        assert text_of(record).startswith("one"), "what it has said is kept"
        assert core.cancels
        await store.run(responses.delete, "", ID, time.time())
        await keep(store)
        core.stories.clear()
        core.script = silence
        made.start("", ID)
        await until(lambda: len(core.submits) == 2)
        await asyncio.to_thread(core.close)
        await until(lambda: not link.is_up)
        await made.cancel("", ID)
        assert (await stored(store)).status == "cancelled"


@in_event_loop
async def test_a_failure_is_stored(tmp_path: Path):
    script = refuse("no executor can", "capacity_lost")
    async with linked_core(tmp_path, script) as (_, link), working(link, tmp_path) as (made, store):
        await keep(store)
        made.start("", ID)
        record = await ended(store)
    assert record.status == "failed"
    assert msgspec.json.decode(record.tail)["error"] == {"code": "server_error", "message": "no executor can"}


@in_event_loop
async def test_work_of_another_version_fails_and_says_so(tmp_path: Path):
    async with linked_core(tmp_path) as (core, link), working(link, tmp_path) as (made, store):
        await keep(store, msgspec.msgpack.encode([99]))
        made.start("", ID)
        record = await ended(store)
        assert record.status == "failed"
        assert "version" in msgspec.json.decode(record.tail)["error"]["message"]
        assert not core.submits


@in_event_loop
async def test_a_worker_that_ends_lets_the_request_go_on(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (core, link):
        async with working(link, tmp_path) as (made, store):
            await keep(store)
            made.start("", ID)
            await until(lambda: core.submits)
        await until(lambda: core.detaches)
        assert not core.cancels
        async with working(link, tmp_path) as (_, store):
            core.script = say(WORDS)
            await until(lambda: len(core.attaches) == 2)
            assert (await stored(store)).status == "in_progress"
    assert len(core.submits) == 1
