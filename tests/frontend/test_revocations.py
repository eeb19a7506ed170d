"""What a frontend does when a key is revoked, beside a core that is away and a store that is busy."""

import asyncio
import time
from contextlib import asynccontextmanager, closing
from dataclasses import replace

from common import messages as m
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.revocations import Revocations, watched
from scheduler_svc.frontend.storing.storage import Storage
from scheduler_svc.store import responses
from scheduler_svc.store.errors import StoreBusy
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions
from tests.frontend.keys import Keys
from tests.frontend.links import in_event_loop, until
from tests.store.rows import response
from tests.support.link import Link

SOON = {"interval_s": 0.01}
REVOKED = m.Revoke(client="ann-id")


class Worker:
    """Notes what the store had when the worker was told to look."""

    def __init__(self, storage):
        self.storage = storage
        self.saw = []

    async def look(self):
        self.saw.append(await self.storage.thread.run("", responses.get_status, "ann-id", "r", time.time()))


@asynccontextmanager
async def stored(folder):
    storage = Storage.open(StoreOptions(folder), ApiKeys(), makes=True)
    try:
        yield storage
    finally:
        await storage.worker.close()
        await asyncio.to_thread(storage.thread.close)


@in_event_loop
async def test_the_store_ends_first_and_the_core_is_told_when_it_is_there(tmp_path, capsys):
    """Or the worker would ask the core again for what the store has as open."""
    keys, link = Keys("ann-id"), Link(is_up=False)
    async with stored(tmp_path) as storage:
        await storage.thread.run("", responses.add, response("r", "ann-id", created_at=time.time(), expires_at=None))
        worker = Worker(storage)
        async with watched(Revocations(keys, link, replace(storage, worker=worker), **SOON)):
            keys.revoked = [keys.client("ann-id")]
            await until(lambda: link.num_tries > 2)
            link.is_up = True
            await until(lambda: link.told)
            await asyncio.sleep(0.05)
    assert (worker.saw, link.told) == (["cancelled"], [REVOKED]), "each once"
    said = capsys.readouterr().out
    assert said.count("API key revoked, ending what it has open") == 1
    assert said.count("responses and batches ended: key revoked") == 1


@in_event_loop
async def test_a_store_that_is_busy_is_asked_again_and_the_core_is_told_meanwhile(tmp_path):
    keys, link, fails = Keys("ann-id"), Link(), [1, 2]

    class Busy(StoreThread):
        async def run(self, *args, **kwargs):
            if fails:
                fails.pop()
                raise StoreBusy("the store has too much to do")
            return await super().run(*args, **kwargs)

    async with stored(tmp_path) as storage:
        with closing(Busy(tmp_path)) as busy:
            async with watched(Revocations(keys, link, replace(storage, thread=busy), **SOON)):
                keys.revoked = [keys.client("ann-id")]
                await until(lambda: len(link.told) == 3)
    assert not fails


@in_event_loop
async def test_a_service_that_keeps_nothing_tells_the_core():
    keys, link = Keys("ann-id"), Link()
    async with watched(Revocations(keys, link, None, **SOON)):
        keys.revoked = [keys.client("ann-id")]
        await until(lambda: link.told)
    assert link.told == [REVOKED]


@in_event_loop
async def test_a_client_whose_key_is_back_keeps_what_it_has_opened_meanwhile():
    keys, link = Keys("ann-id"), Link(is_up=False)
    async with watched(Revocations(keys, link, None, **SOON)):
        keys.revoked = [keys.client("ann-id")]
        await until(lambda: link.num_tries > 4)
        keys.taken.clear()
        await asyncio.sleep(0.05)
        link.is_up = True
        await asyncio.sleep(0.05)
    assert link.told == []


@in_event_loop
async def test_what_began_with_the_key_and_came_later_is_ended_as_well():
    """Such as a request whose body was still on its way."""
    keys, link = Keys("ann-id"), Link()
    async with watched(Revocations(keys, link, None, **SOON, again_s=0.2)):
        keys.revoked = [keys.client("ann-id")]
        await until(lambda: len(link.told) == 2)
        await asyncio.sleep(0.05)
    assert link.told == [REVOKED, REVOKED]


@in_event_loop
async def test_a_fault_of_ours_is_logged_and_revocations_go_on(capsys):
    faults = [KeyError("a fault")]

    class Faulty(Link):
        def revoke(self, client):
            if faults:
                raise faults.pop()
            super().revoke(client)

    keys, link = Keys("ann-id"), Faulty()
    async with watched(Revocations(keys, link, None, **SOON)):
        keys.revoked = [keys.client("ann-id")]
        await until(lambda: link.told)
    assert "internal error" in capsys.readouterr().out
