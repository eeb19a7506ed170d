"""All batches that are open: each is validated soon; then some of them run, and the others wait for their turn."""

import asyncio
import contextlib
import time
from collections import Counter

from common.errors import RequestRejected
from common.logging import get_logger
from scheduler_svc.frontend.background.batch_run import BatchRun
from scheduler_svc.frontend.background.batch_tools import BatchTools
from scheduler_svc.frontend.background.line_share import LineShare
from scheduler_svc.store import batches
from scheduler_svc.store.records import StoredBatch
from scheduler_svc.store.store_thread import SERVICE

RUNS_OF_OWNER = 4  # at once
CHECKS_OF_OWNER = 1  # at once, of batches that have not run: one of 50,000 lines takes some MB meanwhile
PAGE = 100

log = get_logger(__name__)

Name = tuple[str, str]  # owner and batch


class Batches:
    """Runs the batches that the store has open, and those that it is told of. An owner is the id of an API key, empty
    without keys."""

    def __init__(self, tools: BatchTools) -> None:
        self._tools = tools
        self._unchecked: dict[Name, None] = {}  # in their order, as those that wait
        self._checks: dict[Name, tuple[BatchRun, asyncio.Task[StoredBatch | None]]] = {}
        self._waiting: dict[Name, None] = {}
        self._runs: dict[Name, BatchRun] = {}
        self._tasks: dict[Name, asyncio.Task[None]] = {}
        self._has_begun = asyncio.Event()  # a run, since the last look at the core
        self._has_news = asyncio.Event()  # the store has
        self._is_over = False

    @property
    def num_waiting(self) -> int:
        """How many are validated, and wait until others of their owner have ended."""
        return len(self._waiting)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._take_up())
                tasks.create_task(self._watch_core())
        finally:
            self._is_over = True
            running = [*self._tasks.values(), *(task for _, task in self._checks.values())]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def look(self) -> None:
        """Look at the store now: the key of somebody was revoked."""
        self._has_news.set()

    def start(self, owner: str, batch_id: str) -> None:
        """Run a batch that is in the store; it may run already."""
        name = owner, batch_id
        if not (name in self._tasks or name in self._checks or name in self._waiting):
            self._unchecked[name] = None
            self._begin_some()

    def cancel(self, owner: str, batch_id: str) -> None:
        """Let a batch take no more lines, as the store has it."""
        name = owner, batch_id
        if name in self._checks:
            self._checks[name][0].cancel()  # it runs when the check has ended
            return
        if name not in self._runs:
            self._begin(name)  # it is only to be finalized, whatever else runs
        self._runs[name].cancel()

    def _begin_some(self) -> None:
        """Begin those for which it is their owner's turn."""
        checks, runs = (Counter(owner for owner, _ in names) for names in (self._checks, self._tasks))
        for name in list(self._unchecked):
            if checks[name[0]] < CHECKS_OF_OWNER:
                checks[name[0]] += 1
                self._check(name)
        for name in list(self._waiting):
            if runs[name[0]] < RUNS_OF_OWNER:
                runs[name[0]] += 1
                self._begin(name)

    def _check(self, name: Name) -> None:
        """Have its input validated, if that has not been done."""
        del self._unchecked[name]
        run = BatchRun(self._tools, *name)
        task = asyncio.create_task(self._checked(name, run))
        self._checks[name] = run, task
        task.add_done_callback(lambda task: self._check_over(name, task))

    async def _checked(self, name: Name, run: BatchRun) -> StoredBatch | None:
        try:
            return await run.check()
        except Exception:
            log.exception("internal error", batch=name[1])  # it is looked at again with the next scan
            return None

    def _check_over(self, name: Name, task: "asyncio.Task[StoredBatch | None]") -> None:
        run, _ = self._checks.pop(name)
        if self._is_over or task.cancelled():
            return
        batch = task.result()
        if batch is not None and (run.is_cancelled or batch.due_at <= self._tools.store.now()):
            self._begin(name)
        elif batch is not None:
            self._waiting[name] = None
        self._begin_some()

    def _begin(self, name: Name) -> None:
        self._unchecked.pop(name, None)
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
                page = await self._tools.store.ask(
                    SERVICE, batches.open_batches, self._tools.store.now(), after=last, limit=PAGE
                )
                for batch in page:
                    self._take(batch)
                if not page:
                    break
                last = page[-1]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_news.wait(), self._tools.rescan_s)
            self._has_news.clear()

    def _take(self, batch: StoredBatch) -> None:
        name = batch.owner, batch.batch_id
        if batch.status in ("cancelling", "finalizing"):
            self.cancel(*name)
        elif batch.due_at <= self._tools.store.now() and not (name in self._runs or name in self._checks):
            self._begin(name)  # it is only to be expired
        else:
            self.start(*name)

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
                await asyncio.wait_for(self._has_begun.wait(), self._tools.look_s)
