"""What a client deletes, or breaks off, leaves the disk and the quota at once, and without holding up others' calls."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.storing import sweeping
from scheduler_svc.frontend.storing.files import CHUNK_BYTES, FileStore
from scheduler_svc.frontend.storing.sweeping import Sweeper
from scheduler_svc.store import quotas
from scheduler_svc.store.store_thread import SERVICE, StoreThread
from scheduler_svc.store_options import StoreOptions
from tests.frontend.links import in_event_loop

LIMIT = 3 * CHUNK_BYTES


class Watched(StoreThread):
    """Notes for whom calls are made, and what."""

    def __init__(self, folder):
        super().__init__(folder)
        self.calls = []

    async def run(self, owner, function, /, *args, **kwargs):
        self.calls.append((owner, function))
        return await super().run(owner, function, *args, **kwargs)


@asynccontextmanager
async def file_store(folder):
    thread = Watched(folder)
    sweeper = Sweeper(thread, ApiKeys())
    task = asyncio.create_task(sweeper.run())
    try:
        yield FileStore(thread, StoreOptions(folder, limit_bytes=LIMIT), sweeper), thread
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert thread.close()


async def is_empty(thread):
    """Return once "ann" has nothing in the store; a sweep a minute later would be too late."""
    async with asyncio.timeout(30):
        while await thread.run("bob", quotas.used_bytes, "ann"):
            await asyncio.sleep(0)


@pytest.mark.parametrize("ending", ["deleted", "broken off"])
@in_event_loop
async def test_who_uploads_and_deletes_again_and_again_is_refused_until_it_is_swept(tmp_path, ending):
    async with file_store(tmp_path) as (files, thread):
        await is_empty(thread)
        for _ in range(3):
            upload = await files.begin("ann", "f")
            await upload.add(bytes(2 * CHUNK_BYTES))
            if ending == "deleted":
                await files.delete("ann", (await upload.finish("batch", None)).file_id)
            else:
                await upload.abandon()
            await is_empty(thread)
    assert {owner for owner, function in thread.calls if function is sweeping.sweep} == {SERVICE}
    assert {owner for owner, _ in thread.calls} == {"ann", "bob", SERVICE}


@in_event_loop
async def test_a_refusal_says_whether_to_try_again(tmp_path):
    thread = StoreThread(tmp_path)
    files = FileStore(
        thread, StoreOptions(tmp_path, limit_bytes=LIMIT), Sweeper(thread, ApiKeys())
    )  # which does not run
    first = await files.begin("ann", "f")
    await first.add(bytes(2 * CHUNK_BYTES))
    second = await files.begin("ann", "g")
    with pytest.raises(ApiError) as full:
        await second.add(bytes(CHUNK_BYTES))
    assert (full.value.status, full.value.code, full.value.headers) == (
        *(429, "insufficient_quota"),
        {"x-should-retry": "false"},
    )
    await first.abandon()
    with pytest.raises(ApiError, match="about to give room") as leaving:
        await second.add(bytes(CHUNK_BYTES))
    assert leaving.value.headers["x-should-retry"] == "true"
    assert thread.close()
