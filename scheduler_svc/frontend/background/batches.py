"""All batches that are open: some of them run, the others wait for their turn in the store."""

import asyncio
import contextlib
import time

from common.errors import RequestRejected
from common.logging import get_logger
from scheduler_svc.frontend.background.batch_run import BatchRun
from scheduler_svc.frontend.background.batch_tools import BatchTools
from scheduler_svc.frontend.background.line_share import LineShare
from scheduler_svc.store import batches
from scheduler_svc.store.records import StoredBatch

RUNS_OF_OWNER = 4  # at once
LOOK_S = 0.25  # between two looks at the core
RESCAN_S = 15.0  # between two looks at the store, for what a frontend could not tell
PAGE = 100

log = get_logger(__name__)

Name = tuple[str, str]  # owner and batch


class Batches:
    """Runs the batches that the store has open, and those that it is told of. An owner is the name of an API key, empty
    without keys."""

    def __init__(self, tools: BatchTools) -> None:
        self._tools = tools
        self._waiting: dict[Name, None] = {}  # in the order of their turns
        self._runs: dict[Name, BatchRun] = {}
        self._tasks: dict[Name, asyncio.Task[None]] = {}
        self._has_begun = asyncio.Event()  # a run, since the last look at the core
        self._is_over = False

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._take_up())
                tasks.create_task(self._watch_core())
        finally:
            self._is_over = True
            running = list(self._tasks.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def start(self, owner: str, batch_id: str) -> None:
        """Run a batch that is in the store; it may run already."""
        if (owner, batch_id) not in self._tasks:
            self._waiting[owner, batch_id] = None
            self._begin_some()

    def cancel(self, owner: str, batch_id: str) -> None:
        """The store has it that a batch is cancelled."""
        name = owner, batch_id
        if name not in self._runs:
            self._begin(name)  # it is only to be finalized, whatever else runs
        self._runs[name].cancel()

    def _begin_some(self) -> None:
        """Begin those for which it is their owner's turn."""
        for name in list(self._waiting):
            if sum(owner == name[0] for owner, _ in self._tasks) < RUNS_OF_OWNER:
                self._begin(name)

    def _begin(self, name: Name) -> None:
        self._waiting.pop(name, None)
        run = self._runs[name] = BatchRun(self._tools, *name)
        self._has_begun.set()
        task = self._tasks[name] = asyncio.create_task(self._run(name, run))
        task.add_done_callback(lambda _: self._over(name))

    async def _run(self, name: Name, run: BatchRun) -> None:
        try:
            await run.run()
        except Exception:
            log.exception("internal error", batch=name[1])  # it is looked at again with the next scan

    def _over(self, name: Name) -> None:
        del self._tasks[name]
        del self._runs[name]
        if not self._is_over:
            self._begin_some()

    async def _take_up(self) -> None:
        """Start all that is open in the store, now and then."""
        while True:
            page: list[StoredBatch] = []
            last: StoredBatch | None = None
            while last is None or len(page) == PAGE:
                page = await self._tools.store.ask(batches.open_batches, time.time(), after=last, limit=PAGE)
                for batch in page:
                    self._take(batch)
                if not page:
                    break
                last = page[-1]
            await asyncio.sleep(RESCAN_S)

    def _take(self, batch: StoredBatch) -> None:
        if batch.status == "cancelling":
            self.cancel(batch.owner, batch.batch_id)
        else:
            self.start(batch.owner, batch.batch_id)

    async def _watch_core(self) -> None:
        """Open as many lines as the core has room for."""
        gate, share = self._tools.gate, LineShare(time.monotonic())
        while True:
            if self._tasks:
                try:
                    report = await self._tools.link.status()
                    gate.set_limit(share.open_sequences(report, gate.num_open, gate.num_over, time.monotonic()))
                except RequestRejected as rejected:
                    log.debug("the core does not answer", reason=str(rejected))
            self._has_begun.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_begun.wait(), LOOK_S)
