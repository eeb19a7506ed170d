"""What a frontend does when a key is revoked, beside a core that is away and a store that is busy."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from common.errors import RequestRejected
from scheduler_svc.frontend import revocations
from scheduler_svc.frontend.api_keys import ApiClient, ApiKeys
from scheduler_svc.frontend.revocations import Revocations, watched
from scheduler_svc.frontend.storing.storage import Storage
from scheduler_svc.store import responses
from scheduler_svc.store.errors import StoreBusy
from scheduler_svc.store_options import StoreOptions
from tests.frontend.links import in_event_loop, until
from tests.store.rows import response

ANN = ApiClient("ann-id", "ann", 0, is_admin=False, may_read_status=False)


class Keys(ApiKeys):
    """Tells of revoked clients as a test wants."""

    def __init__(self):
        super().__init__()
        self.revoked = []

        self.present = set()

    def newly_revoked(self):
        revoked, self.revoked = self.revoked, []
        return revoked

    def of_id(self, client_id):
        return ANN if client_id in self.present else None


class Link:
    """A core that is away for some calls."""

    def __init__(self, away):
        self.away = away
        self.told = []

    def revoke(self, client):
        self.away -= 1
        if self.away >= 0:
            raise RequestRejected("the scheduler cannot be reached", "unavailable")
        self.told.append(client)


class Worker:
    """Notes what the store had when the worker was told to look."""

    def __init__(self, storage):
        self.storage = storage
        self.saw = []

    async def look(self):
        self.saw.append(await self.storage.thread.run("", responses.get_status, "ann-id", "r", time.time()))


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(revocations, "INTERVAL_S", 0.01)


@asynccontextmanager
async def stored(folder):
    storage = Storage.open(StoreOptions(folder), Keys(), makes=True)
    try:
        yield storage
    finally:
        await storage.worker.close()
        await asyncio.to_thread(storage.thread.close)


@in_event_loop
async def test_the_store_ends_first_and_the_core_is_told_when_it_is_there(tmp_path, capsys):
    """Or the worker would ask the core again for what the store has as open."""
    keys, link = Keys(), Link(away=3)
    async with stored(tmp_path) as storage:
        await storage.thread.run("", responses.add, response("r", "ann-id", created_at=time.time(), expires_at=None))
        worker = Worker(storage)
        async with watched(Revocations(keys, link, replace(storage, worker=worker))):
            keys.revoked = [ANN]
            await until(lambda: link.told)
            await asyncio.sleep(0.05)
    assert (worker.saw, link.told) == (["cancelled"], ["ann-id"]), "each once"
    said = capsys.readouterr().out
    assert said.count("API key revoked, ending what it has open") == 1
    assert said.count("responses and batches ended: key revoked") == 1


@in_event_loop
async def test_a_store_that_is_busy_is_asked_again_and_the_core_is_told_meanwhile(tmp_path, monkeypatch):
    keys, link, fails = Keys(), Link(away=0), [1, 2]
    async with stored(tmp_path) as storage:
        run = storage.thread.run

        async def busy(*args, **kwargs):
            if fails:
                fails.pop()
                raise StoreBusy("the store has too much to do")
            return await run(*args, **kwargs)

        monkeypatch.setattr(storage.thread, "run", busy)
        async with watched(Revocations(keys, link, storage)):
            keys.revoked = [ANN]
            await until(lambda: len(link.told) == 3)
    assert not fails


@in_event_loop
async def test_a_service_that_keeps_nothing_tells_the_core():
    keys, link = Keys(), Link(away=0)
    async with watched(Revocations(keys, link, None)):
        keys.revoked = [ANN]
        await until(lambda: link.told)
    assert link.told == ["ann-id"]


@in_event_loop
async def test_a_client_whose_key_is_back_keeps_what_it_has_opened_meanwhile():
    keys, link = Keys(), Link(away=1000)
    async with watched(Revocations(keys, link, None)):
        keys.revoked = [ANN]
        await until(lambda: link.away < 995)
        keys.present.add("ann-id")
        await asyncio.sleep(0.05)
        link.away = 0
        await asyncio.sleep(0.05)
    assert link.told == []


@in_event_loop
async def test_what_began_with_the_key_and_came_later_is_ended_as_well(monkeypatch):
    """Such as a request whose body was still on its way."""
    monkeypatch.setattr(revocations, "AGAIN_S", 0.2)
    keys, link = Keys(), Link(away=0)
    async with watched(Revocations(keys, link, None)):
        keys.revoked = [ANN]
        await until(lambda: len(link.told) == 2)
        await asyncio.sleep(0.05)
    assert link.told == ["ann-id", "ann-id"]


@in_event_loop
async def test_a_fault_of_ours_is_logged_and_revocations_go_on(capsys):
    keys, link = Keys(), Link(away=0)
    revoke, faults = link.revoke, [KeyError("a fault")]

    def broken(client):
        if faults:
            raise faults.pop()
        revoke(client)

    link.revoke = broken
    async with watched(Revocations(keys, link, None)):
        keys.revoked = [ANN]
        await until(lambda: link.told)
    assert "internal error" in capsys.readouterr().out
