"""A background worker, and responses that wait for it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from common import messages as m
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.background.__main__ import make_batches
from scheduler_svc.frontend.background.pace import Rests
from scheduler_svc.frontend.background.worker import Tempo, Worker
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.responses.background_work import WORK_VERSION, BackgroundWork
from scheduler_svc.frontend.tracing.tracing import Tracing
from scheduler_svc.frontend_options import FrontendOptions
from scheduler_svc.store import responses
from scheduler_svc.store.records import StoredResponse
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions
from tests.frontend.answers.responses.told import ID, context_of, spec_of
from tests.frontend.keys import Keys
from tests.frontend.links import linked_core
from tests.store.rows import get_response
from tests.support.demo_tokenizer import TOKENIZER, ids
from tests.support.fake_core import FakeCore, Script, echo, int32

WORDS = ids("one two three four five six seven")
CORE_ID = f"{ID}-0"
CLIENT = {"max_open_requests": 9, "tokens_per_minute": 7, "weight": 2.5}  # whose keys are there
SOON = Tempo(rests=Rests(first_s=0.01, longest_s=0.05), turn_s=0.01, retry_s=0.01, rescan_s=0.02)


@asynccontextmanager
async def working(
    link: CoreLink,
    folder: Path,
    tracing: Tracing | None = None,
    keys: ApiKeys | None = None,
    tempo: Tempo = SOON,
    store_thread: type[StoreThread] = StoreThread,
) -> AsyncIterator[tuple[Worker, StoreThread]]:
    """A worker that runs, and its store."""
    store = store_thread(folder / "store")
    options = FrontendOptions(("m",))
    keys = keys or Keys(**CLIENT)
    batches = make_batches(link, TOKENIZER, options, store, StoreOptions(folder / "store"), keys)
    made = Worker(link, TOKENIZER, store, batches, keys, tracing, tempo)
    task = asyncio.create_task(made.run())
    try:
        yield made, store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        store.close()


@asynccontextmanager
async def worker_beside(
    folder: Path, script: Script = echo, **how: Any
) -> AsyncIterator[tuple[FakeCore, Worker, StoreThread]]:
    """A fake core, and a worker that runs beside it, as `working` takes it."""
    async with linked_core(folder, script) as (core, link), working(link, folder, **how) as (made, store):
        yield core, made, store


async def keep(
    store: StoreThread,
    work: bytes | None = None,
    *,
    owner: str = "",
    response_id: str = ID,
    stop: tuple[str, ...] = (),
    context: bytes | None = None,
) -> None:
    """A response that waits for the worker."""
    submit = m.Submit(
        request_id=f"{response_id}-0",
        prompt=int32([1, 2, 3]),
        params=m.SamplingParams(max_tokens=50),
        context=context_of(stop=stop).encode() if context is None else context,
        stream=True,
        is_resumable=True,
    )
    spec = replace(spec_of(), response_id=response_id)
    work = BackgroundWork(WORK_VERSION, spec, submit).encode() if work is None else work
    facts = {"is_background": True, "previous_id": None, "head": spec.head, "input_items": b"[]", "work": work}
    await store.run(owner, responses.add, StoredResponse(owner, response_id, "queued", time.time(), None, **facts))


async def stored(store: StoreThread, owner: str = "", response_id: str = ID) -> StoredResponse:
    """The response as the store has it."""
    return await store.run(owner, get_response, owner, response_id, time.time())


async def ended(store: StoreThread, owner: str = "", response_id: str = ID) -> StoredResponse:
    """The response, once it has."""
    async with asyncio.timeout(60):
        while (record := await stored(store, owner, response_id)).status in ("queued", "in_progress"):
            await asyncio.sleep(0.01)
    return record
