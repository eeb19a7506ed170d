"""What the background worker does: it runs the responses and batches that the store has open, or it is told of."""

import asyncio
import contextlib
import time

from common.errors import BatonError
from common.logging import get_logger
from scheduler_svc.frontend.answers.responses.events import Outcome
from scheduler_svc.frontend.background.batches import Batches
from scheduler_svc.frontend.background.patient_store import PatientStore
from scheduler_svc.frontend.background.response_run import ResponseRun
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.responses.background_work import BackgroundWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.store import responses
from scheduler_svc.store.errors import NotFound
from scheduler_svc.store.records import OpenResponse
from scheduler_svc.store.store_thread import StoreThread

MAX_RUNS = 1024  # at once; the others wait in the store
PAGE = 100
CANCEL_TIMEOUT_S = 5.0
BEGIN_TIMEOUT_S = 1.0

log = get_logger(__name__)


class Worker:
    """Runs responses in the background, and batches. An owner is the name of an API key, empty without keys.

    Attributes:
        batches: that are open.
    """

    def __init__(self, link: CoreLink, tokenizer: Tokenizer, store: StoreThread, batches: Batches) -> None:
        self.batches = batches
        self._link = link
        self._tokenizer = tokenizer
        self._patient = PatientStore(store)
        self._runs: dict[tuple[str, str], ResponseRun] = {}
        self._has_begun = asyncio.Condition()  # one more of them
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._unwanted: set[tuple[str, str]] = set()  # cancelled, maybe before they began
        self._room = asyncio.Semaphore(MAX_RUNS)

    async def run(self) -> None:
        """Take up what is open, and run what comes, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._take_up())
                tasks.create_task(self.batches.run())
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def start(self, owner: str, response_id: str) -> None:
        """Run a response that is in the store; it may run already."""
        key = owner, response_id
        if key not in self._tasks:
            task = self._tasks[key] = asyncio.create_task(self._run(owner, response_id))
            task.add_done_callback(lambda _: self._forget(key))

    async def cancel(self, owner: str, response_id: str) -> None:
        """End a response, if it runs or is about to. Returns when the store has its end, unless that takes long."""
        name = owner, response_id
        if (task := self._tasks.get(name)) is None:
            return
        self._unwanted.add(name)
        if (run := self._runs.get(name)) is not None:
            run.cancel()
        await asyncio.wait({task}, timeout=CANCEL_TIMEOUT_S)

    def _forget(self, name: tuple[str, str]) -> None:
        del self._tasks[name]
        self._unwanted.discard(name)

    async def running(self, owner: str, response_id: str) -> ResponseRun | None:
        """A response that runs, or is about to; None if it does not for `BEGIN_TIMEOUT_S`."""
        name = owner, response_id
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_TIMEOUT_S), self._has_begun:
                await self._has_begun.wait_for(lambda: name in self._runs or name not in self._tasks)
        return self._runs.get(name)

    async def _take_up(self) -> None:
        """Start all that an earlier worker has left."""
        page: list[OpenResponse] = []
        num = 0
        while not num or len(page) == PAGE:
            last = page[-1] if page else None
            page = await self._patient.ask(responses.open_background, time.time(), after=last, limit=PAGE)
            for record in page:
                self.start(record.owner, record.response_id)
            num += len(page)
            if not page:
                break
        if num:
            log.info("going on with responses in the background", responses=num)

    async def _run(self, owner: str, response_id: str) -> None:
        async with self._room:
            name = owner, response_id
            try:
                record = await self._patient.ask(responses.get, *name, time.time())
            except NotFound:
                return
            if not record.work or not await self._patient.ask(responses.begin, *name, time.time()):
                return
            try:
                run = ResponseRun(self._link, self._tokenizer, BackgroundWork.decode(record.work, record.head))
            except BatonError as error:
                log.error("response cannot be run", response=response_id, reason=str(error))
                await self._keep(name, Outcome.failed("server_error", str(error)), b"")
                return
            self._runs[name] = run
            if name in self._unwanted:
                run.cancel()
            async with self._has_begun:
                self._has_begun.notify_all()
            try:
                await self._keep(name, await run.run(), run.record)
            finally:
                run.is_kept.set()
                del self._runs[name]

    async def _keep(self, name: tuple[str, str], outcome: Outcome, tokens: bytes) -> None:
        """Write what a response has come to."""
        await self._patient.ask(
            responses.finish,
            *name,
            time.time(),
            status=outcome.status,
            output_items=outcome.output,
            tail=outcome.tail,
            tokens=tokens,
        )
