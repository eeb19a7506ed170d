"""One batch, from wherever it is to its end."""

import asyncio
import contextlib
from functools import partial

from common.logging import get_logger
from scheduler_svc.frontend.answers.batch_objects import EXPIRED, BatchError, LineFailure, errors_json, unanswered
from scheduler_svc.frontend.background.batch_input import input_lines
from scheduler_svc.frontend.background.batch_lines import BatchLines, CannotGoOn
from scheduler_svc.frontend.background.batch_tools import BatchTools
from scheduler_svc.frontend.requests.batches.input_check import InputCheck
from scheduler_svc.frontend.requests.batches.input_lines import InputLine, LineProblem, read_line
from scheduler_svc.frontend.storing.files import new_file_id
from scheduler_svc.store import batch_results, batches
from scheduler_svc.store.errors import Conflict, NotFound, QuotaExceeded
from scheduler_svc.store.records import OPEN_BATCH, BatchEnd, BatchResult, Progress, StoredBatch

START = Progress(0, 0)

log = get_logger(__name__)


class BatchRun:
    """Validates a batch, has its lines answered, and writes its files. All that it knows is in the store, so the next
    worker goes on where this one was."""

    def __init__(self, tools: BatchTools, owner: str, batch_id: str) -> None:
        self._tools = tools
        self._owner = owner
        self._name = owner, batch_id
        self._is_cancelled = asyncio.Event()

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._is_cancelled.is_set()

    def cancel(self) -> None:
        """Take no more lines, as the store has it."""
        self._is_cancelled.set()

    async def run(self) -> None:
        """Until the batch has ended, or is forgotten."""
        with contextlib.suppress(NotFound):
            while (batch := await self._batch()).status in OPEN_BATCH:
                with contextlib.suppress(Conflict):  # its state has changed meanwhile
                    await self._step(batch)
            self._log_end(batch)

    async def check(self) -> StoredBatch | None:
        """Until the batch is validated, or need not be. Returns it, or None if it is not open any more."""
        try:
            if (batch := await self._batch()).status == "validating":
                with contextlib.suppress(Conflict):  # its state has changed meanwhile
                    await self._validate(batch)
                batch = await self._batch()
        except NotFound:
            return None
        if batch.status not in OPEN_BATCH:
            self._log_end(batch)
            return None
        return batch

    def _log_end(self, batch: StoredBatch) -> None:
        facts = {"status": batch.status, "total": batch.total, "failed": batch.failed}
        log.info("batch ended", batch=batch.batch_id, **facts)

    async def _step(self, batch: StoredBatch) -> None:
        match batch.status:
            case "validating":
                await self._validate(batch)
            case "in_progress":
                await self._compute(batch)
            case _:
                await self._finalize()

    # --- validating ---

    async def _validate(self, batch: StoredBatch) -> None:
        check = InputCheck(batch.endpoint)
        try:
            async for lines in input_lines(self._tools.store, batch, START):
                if self._is_cancelled.is_set():
                    return
                await self._tools.reader.long_work(self._owner, _size(lines), partial(check.add, lines))
                if check.is_over:
                    break
            errors = check.end()
        except NotFound as error:
            if error.kind != "file":
                raise
            errors = [BatchError("file_not_found", "The input file is gone.", "input_file_id")]
        if errors:
            log.info("batch refused", batch=batch.batch_id, errors=len(errors), first=errors[0].message)
            await self._tools.store.ask(
                self._owner, batches.fail, *self._name, self._tools.store.now(), errors=errors_json(errors)
            )
        else:
            await self._tools.store.ask(
                self._owner, batches.start, *self._name, self._tools.store.now(), total=check.num_lines
            )

    # --- in progress ---

    async def _compute(self, batch: StoredBatch) -> None:
        """Have its lines answered, until all are, or until it is to end before."""
        if batch.due_at <= self._tools.store.now():
            await self._expire()
            return
        lines = BatchLines(self._tools, batch)
        running = asyncio.create_task(lines.run())
        cancelled = asyncio.create_task(self._is_cancelled.wait())
        try:
            await asyncio.wait(
                (running, cancelled),
                timeout=max(batch.due_at - self._tools.store.now(), 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if running.done():
                running.result()
                await self._end_as("completed")
            else:
                lines.cancel()
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                if not cancelled.done():
                    await self._expire()
        except CannotGoOn as reason:
            log.warning("batch cannot go on", batch=batch.batch_id, reason=reason.error.message)
            await self._end_as("failed", [reason.error])
        finally:
            for task in (running, cancelled):
                task.cancel()
            await asyncio.gather(running, cancelled, return_exceptions=True)

    async def _expire(self) -> None:
        """The completion window has ended: each line without a result gets an error that says so."""
        batch = await self._batch()
        progress = Progress(batch.next_offset, batch.next_line)
        with contextlib.suppress(NotFound, QuotaExceeded):  # without an input, or room, the lines are left out
            async for lines in input_lines(self._tools.store, batch, progress):
                if lines:
                    await self._expire_lines(batch, lines)
        await self._end_as("expired")

    async def _expire_lines(self, batch: StoredBatch, lines: list[InputLine]) -> None:
        """Lines that have a result keep it."""
        results = await self._tools.reader.long_work(self._owner, _size(lines), partial(_expired, batch, lines))
        await self._tools.store.ask(
            self._owner,
            batch_results.add_results,
            *self._name,
            self._tools.store.now(),
            results,
            progress=Progress(lines[-1].end, lines[-1].number + 1),
            limit_bytes=self._tools.limit_bytes,
        )

    async def _end_as(self, end: BatchEnd, errors: list[BatchError] | None = None) -> None:
        told = errors_json(errors) if errors else b""
        await self._tools.store.ask(
            self._owner, batches.begin_finalizing, *self._name, self._tools.store.now(), ends_as=end, errors=told
        )

    # --- finalizing, cancelling ---

    async def _finalize(self) -> None:
        """Results become files, some at a time."""
        is_more = True
        while is_more:
            is_more = await self._tools.store.ask(
                self._owner,
                batch_results.finalize,
                *self._name,
                self._tools.store.now(),
                output_file_id=new_file_id(),
                error_file_id=new_file_id(),
            )

    async def _batch(self) -> StoredBatch:
        return await self._tools.store.ask(self._owner, batches.get, *self._name, self._tools.store.now())


def _size(lines: list[InputLine]) -> int:
    return sum(line.end - line.start for line in lines)


def _expired(batch: StoredBatch, lines: list[InputLine]) -> list[BatchResult]:
    results = []
    for line in lines:
        with contextlib.suppress(LineProblem):  # the input was validated
            custom_id = read_line(line.data, batch.endpoint).custom_id
            results.append(unanswered(batch.batch_id, line.number, custom_id, LineFailure(*EXPIRED)))
    return results
