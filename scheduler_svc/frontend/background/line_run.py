"""One line of a batch: with the core until it has an answer, whatever becomes of the core meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from common import messages as m
from common.errors import RequestRejected
from common.logging import get_logger
from scheduler_svc.frontend.answers.batch_objects import LineResponse
from scheduler_svc.frontend.background.turns import NO_ROOM
from scheduler_svc.frontend.errors import ApiError, internal_error
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.link.many_requests import give_up, open_in_turns
from scheduler_svc.frontend.link.queries import QUERY_TIMEOUT_S
from scheduler_svc.frontend.requests.batches.ready_line import ReadyLine

# What passes: the same request is asked for again. All that is answered by 429 or 503 belongs here.
PASSING = (
    *("unavailable", "no_executor", *NO_ROOM, "capacity_lost", "grammars_lost"),
    *("taken_over", "reader_too_slow"),
)
LONGEST_REST = 32  # times `retry_s`: rests grow to this while the core has no room
LOST = ("cancelled", "tokenizer_changed")  # the core has given it up: it is asked for anew, by another id
MAX_LOST = 8  # after so many times in a row its client does not want it: it is cancelled by its id
RETRY_S = 0.5

log = get_logger(__name__)


class LineRun:
    """Asks the core for a line's request. One that the core has already, from an earlier worker, is attached to.

    Args:
        rest: waits for so many seconds, outside of the gate, when the core has no room.
        retry_s: seconds after a refusal that passes.
    """

    def __init__(
        self, link: CoreLink, line: ReadyLine, rest: Callable[[float], Awaitable[None]], *, retry_s: float = RETRY_S
    ) -> None:
        self._link = link
        self._line = line
        self._rest = rest
        self._retry_s = retry_s
        self._queue: DeltaQueue | None = None
        self._attempt = 0
        self._num_lost = 0
        self._num_rests = 0
        self._is_cancelled = False

    def cancel(self) -> None:
        """Have the core end it. Its task is to be cancelled afterwards."""
        self._is_cancelled = True
        if self._queue is not None:
            self._queue.close()
        else:  # an earlier worker may have left it with the core, and no reader
            give_up(self._link, self._line.asked(self._attempt))

    async def response(self) -> LineResponse:
        """Its answer, which may be an error. When this is cancelled, a request goes on and waits for the next worker,
        unless `cancel` was called."""
        while True:
            try:
                return self._answered(200, await self._once())
            except RequestRejected as rejected:
                if rejected.code in NO_ROOM:
                    # What the core had taken of the line was cancelled by that, so that it may be lost the next time.
                    self._num_lost = 0
                    longest_s = self._retry_s * min(2**self._num_rests, LONGEST_REST)
                    await self._rest(min(rejected.retry_after_s or longest_s, longest_s))
                    self._num_rests += 1
                    continue
                if rejected.code in LOST and self._num_lost < MAX_LOST:
                    self._num_lost += 1
                    self._attempt += 1
                elif rejected.code not in PASSING:
                    error = ApiError.of_rejection(rejected)
                    return self._answered(error.status, error.body())
            except Exception:
                log.exception("internal error", request=self._line.request_id)
                error = internal_error()
                return self._answered(error.status, error.body())
            await asyncio.sleep(self._retry_s)

    def _answered(self, status: int, body: bytes) -> LineResponse:
        return LineResponse(status, self._line.request_id, msgspec.Raw(body))

    async def _once(self) -> bytes:
        submits = self._line.asked(self._attempt)
        try:
            queue = await open_in_turns(self._link, submits, is_resumable=self._line.is_resumable)
            return await self._read(queue)
        except RequestRejected as rejected:
            if rejected.code != "request_exists":
                raise
            if not self._line.is_resumable:  # it cannot be read from its beginning
                raise RequestRejected(str(rejected), "cancelled") from rejected
        return await self._read(await self._attach(submits))

    async def _read(self, queue: DeltaQueue) -> bytes:
        self._queue = queue
        try:
            return await self._line.answer(queue)
        finally:
            self._queue = None

    async def _attach(self, submits: list[m.Submit]) -> DeltaQueue:
        """All deltas of requests that the core has, from the first token on."""
        queue = self._link.attach_queue()
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                for prompt, submit in enumerate(submits):
                    answer = await self._link.attach(submit.request_id, prompt, queue)
                    if not answer.found:
                        raise RequestRejected("the scheduler does not know all of it any more", "cancelled")
        except TimeoutError:
            queue.detach()
            raise RequestRejected("the scheduler gave no answer", "unavailable") from None
        except BaseException as error:
            if self._is_cancelled or isinstance(error, RequestRejected):
                queue.close()
            else:
                queue.detach()
            raise
        return queue
