"""The lines of one batch that is in progress: taken in the order of the input, answered at once, kept in groups."""

import asyncio
import contextlib

import msgspec

from common.errors import RequestRejected
from scheduler_svc.frontend.answers.batch_objects import BatchError, LineResponse, answered
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.background.batch_input import input_lines
from scheduler_svc.frontend.background.batch_tools import BatchTools
from scheduler_svc.frontend.background.line_gate import Entrant, Seat
from scheduler_svc.frontend.background.line_results import LineResults
from scheduler_svc.frontend.background.line_run import PASSING, LineRun
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.batches.input_lines import InputLine, LineRequest, read_line
from scheduler_svc.frontend.requests.batches.ready_line import LineName, ReadyLine
from scheduler_svc.store import batch_results
from scheduler_svc.store.errors import NotFound, QuotaExceeded
from scheduler_svc.store.records import BatchResult, Progress, StoredBatch

LAST_WRITE_S = 5.0
MOST_RESTING = 8  # lines for which the core had no room: then no other line of the batch begins
LINES_AT_ONCE = 16  # then others have a turn


class CannotGoOn(Exception):
    """A batch has to end as failed.

    Args:
        error: that its `errors` have.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.error = BatchError(code, message)


class BatchLines:
    """Runs the lines of a batch that have no result yet.

    Their requests are sent in the order of the input, so that lines with a common beginning find it in the prefix
    cache.
    """

    def __init__(self, tools: BatchTools, batch: StoredBatch) -> None:
        self._tools = tools
        self._batch = batch
        self._start = Progress(batch.next_offset, batch.next_line)
        self._results = LineResults(self._start)
        self._has_written = asyncio.Event()
        self._no_more = asyncio.Event()  # results will come
        self._runs: dict[asyncio.Task[None], LineRun] = {}
        self._num_resting = 0
        self._has_rested = asyncio.Event()  # one of them

    async def run(self) -> None:
        """Return when the store has a result of each line. When this is cancelled, open requests go on, and wait for
        the next worker, unless `cancel` was called.

        Raises:
            CannotGoOn: what it needs is gone.
            NotFound, Conflict: the batch is not in progress any more.
        """
        keeping = asyncio.create_task(self._keep())
        taking = asyncio.create_task(self._take())
        try:
            await asyncio.wait((keeping, taking), return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                taking.result()
                self._no_more.set()
            await keeping
        except CannotGoOn:
            self.cancel()
            raise
        finally:
            await self._stop(keeping, taking)

    def cancel(self) -> None:
        """Have the core end what is open. The task of `run` is to be cancelled afterwards."""
        for run in self._runs.values():
            run.cancel()

    async def _stop(self, keeping: "asyncio.Task[None]", taking: "asyncio.Task[None]") -> None:
        """End all tasks; results that are there already are written, unless the store does not work."""
        tasks = [taking, *self._runs]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._no_more.set()
        await asyncio.wait((keeping,), timeout=LAST_WRITE_S)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    async def _take(self) -> None:
        """Begin one line after the other; return when the last one has a result."""
        try:
            async for lines in input_lines(self._tools.store, self._batch, self._start):
                if not lines:
                    continue
                done = await self._done(lines[0].number, lines[-1].number + 1)
                for line in lines:
                    if line.number % LINES_AT_ONCE == 0:
                        await asyncio.sleep(0)
                    self._results.begin(line.number, line.start, line.end)
                    if line.number in done:
                        self._results.skip(line.number)
                    else:
                        await self._begin(line)
        except NotFound as error:
            if error.kind == "file":
                raise CannotGoOn("file_not_found", "The input file is gone.") from error
            raise
        while self._runs:
            await asyncio.wait(list(self._runs), return_when=asyncio.FIRST_COMPLETED)

    async def _done(self, first: int, last: int) -> set[int]:
        batch = self._batch
        asked = {"first": first, "last": last}
        return set(
            await self._tools.store.ask(
                batch.owner, batch_results.lines_done, batch.owner, batch.batch_id, self._tools.store.now(), **asked
            )
        )

    async def _begin(self, line: InputLine) -> None:
        """Start a line's task when it is its turn; a line that is refused has its result at once."""
        while not self._results.has_room:
            self._has_written.clear()
            await self._has_written.wait()
        while self._num_resting >= MOST_RESTING:
            self._has_rested.clear()
            await self._has_rested.wait()
        size = len(line.data or b"")
        request = await self._tools.reader.long_work(
            self._batch.owner, size, lambda: read_line(line.data, self._batch.endpoint)
        )
        ready = await self._ready(line.number, request)
        if isinstance(ready, LineResponse):
            self._add(answered(self._batch.batch_id, line.number, request.custom_id, ready))
            return
        limit = ready.client.max_open_requests
        entrant = Entrant(
            self._batch.owner,
            self._batch.batch_id,
            ready.num_sequences,
            max(limit // 2, 1) if limit else 0,  # the other half is for requests that somebody waits for
        )
        seat = Seat(self._tools.gate, entrant)
        await seat.take()
        run = LineRun(self._tools.link, ready, lambda rest_s: self._rest(seat, rest_s), retry_s=self._tools.retry_s)
        task = asyncio.create_task(self._answer(run, line.number, request.custom_id))
        self._runs[task] = run
        task.add_done_callback(lambda task: self._over(task, seat))

    async def _ready(self, number: int, request: LineRequest) -> ReadyLine | LineResponse:
        """A line's request for the core, or the error that a single request would be answered with."""
        prepare = self._tools.endpoints[self._batch.endpoint]
        while True:
            try:
                return await prepare(await self._client(), LineName(self._batch.batch_id, number), bytes(request.body))
            except RequestRejected as rejected:
                error = ApiError.of_rejection(rejected)
                passes = rejected.code in PASSING
            except ApiError as refused:
                error, passes = refused, refused.status in (429, 503)
            if not passes:
                name = LineName(self._batch.batch_id, number).request_id("req")
                return LineResponse(error.status, name, msgspec.Raw(error.body()))
            await asyncio.sleep(self._tools.retry_s)

    async def _client(self) -> ApiClient:
        """Return the client that lines are sent for. Wait while the owner has no key: if that was revoked, the batch
        ends in the store soon."""
        while (client := self._tools.keys.of_id(self._batch.owner)) is None:
            await asyncio.sleep(self._tools.retry_s)
        return client

    async def _answer(self, run: LineRun, number: int, custom_id: str) -> None:
        response = await run.response()
        self._add(answered(self._batch.batch_id, number, custom_id, response))

    async def _rest(self, seat: Seat, rest_s: float) -> None:
        """The core has no room for a line: others have its place at the gate until it asks again."""
        seat.give_up()
        self._num_resting += 1
        try:
            await asyncio.sleep(rest_s)
            await seat.take()
        finally:
            self._num_resting -= 1
            self._has_rested.set()

    def _over(self, task: "asyncio.Task[None]", seat: Seat) -> None:
        del self._runs[task]
        seat.give_up()

    def _add(self, result: BatchResult) -> None:
        self._results.add(result)

    async def _keep(self) -> None:
        """Write results as they come, in groups, until no more come."""
        while not (self._no_more.is_set() and self._results.is_empty):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._no_more.wait(), self._tools.flush_s)
            if not self._results.is_empty:
                await self._write()

    async def _write(self) -> None:
        results, progress = self._results.take()
        batch = self._batch
        while True:
            try:
                await self._tools.store.ask(
                    batch.owner,
                    batch_results.add_results,
                    batch.owner,
                    batch.batch_id,
                    self._tools.store.now(),
                    results,
                    progress=progress,
                    limit_bytes=self._tools.limit_bytes,
                )
                break
            except QuotaExceeded as error:
                if not error.is_passing:
                    message = f"{error}. What is deleted gives room for another batch."
                    raise CannotGoOn("insufficient_quota", message) from error
            await asyncio.sleep(self._tools.retry_s)
        self._has_written.set()
