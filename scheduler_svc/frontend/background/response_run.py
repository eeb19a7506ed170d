"""One response in the background: from the core to its readers, until it has ended."""

import asyncio
from typing import Any

import msgspec

from common import messages as m
from common.errors import RequestRejected
from common.logging import get_logger
from scheduler_svc.frontend.answers.generation import Generation
from scheduler_svc.frontend.answers.responses.events import NEVER, Outcome, ResponseEvents
from scheduler_svc.frontend.answers.responses.token_record import RECORD_VERSION, TokenRecord, follow
from scheduler_svc.frontend.background.broadcast import Broadcast
from scheduler_svc.frontend.errors import ApiError, internal_error
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.link.queries import QUERY_TIMEOUT_S
from scheduler_svc.frontend.requests.responses.background_work import BackgroundWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer

# What passes: the response was accepted, and waits until the core can take it.
PASSING = ("unavailable", "queue_full", "too_many_requests", "taken_over", "reader_too_slow")
RETRY_S = 0.5

log = get_logger(__name__)


class ResponseRun:
    """Runs a response, whatever becomes of the core: one that comes back is asked for the request, and gets the request
    anew if it does not know it.

    Attributes:
        is_kept: set when the store has the outcome, or wants none.
    """

    def __init__(self, link: CoreLink, tokenizer: Tokenizer, work: BackgroundWork) -> None:
        self.spec = work.spec
        self.is_kept = asyncio.Event()
        self.outcome: Outcome | None = None
        self._link = link
        self._tokenizer = tokenizer
        self._submit = work.submit
        self._attempt = 0
        self._broadcast = Broadcast(work.spec.response_id)
        self._source: DeltaQueue | None = None
        self._is_cancelled = False

    @property
    def record(self) -> bytes:
        """Its tokens, for the store."""
        submit = self._submit
        record = TokenRecord(RECORD_VERSION, self.spec, submit.context, len(submit.prompt) // 4, self._broadcast.deltas)
        return record.encode()

    def reader(self, after: int) -> tuple[DeltaQueue, Generation, ResponseEvents]:
        """One more reader of the stream, after the event with this number; see `leave`."""
        queue, generation = self._follow()
        return queue, generation, ResponseEvents(self.spec, after=after)

    def leave(self, queue: DeltaQueue) -> None:
        """A reader is gone."""
        self._broadcast.leave(queue)

    def cancel(self) -> None:
        """End it: its readers hear that it was cancelled."""
        self._is_cancelled = True
        if self._source is not None:
            self._source.cancel()  # the core says the last word
        else:
            self._end_cancelled()

    async def run(self) -> Outcome:
        """Until it has ended. When this is cancelled, the request goes on, and waits for the next worker."""
        _, generation = self._follow(stops=True)
        events = ResponseEvents(self.spec, after=NEVER)
        pump = asyncio.create_task(self._pump())
        try:
            with generation:
                async for pieces in generation.pieces():
                    for _ in events.of(pieces):
                        pass
            self.outcome = events.outcome(generation.usage)
        except RequestRejected as rejected:
            self.outcome = events.failure(ApiError.of_rejection(rejected), generation.usage)
        except Exception:
            log.exception("internal error", request=self.spec.response_id)
            self.outcome = events.failure(internal_error(), generation.usage)
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
        return self.outcome

    def _follow(self, *, stops: bool = False) -> tuple[DeltaQueue, Generation]:
        def tell(message: m.Cancel | m.Detach) -> None:
            if stops and isinstance(message, m.Cancel) and self._source is not None:
                self._source.end(0)  # a stop string was found

        facts: tuple[Any, ...] = (self.spec, self._submit.context, len(self._submit.prompt) // 4, self._tokenizer)
        queue, generation = follow(*facts, tell=tell)
        self._broadcast.read_by(queue)
        return queue, generation

    async def _pump(self) -> None:
        """Pass on what the core says, by one connection after the other."""
        while not self._broadcast.has_ended:
            try:
                self._source = await self._connect()
                await self._read(self._source)
            except RequestRejected as rejected:
                if rejected.code not in PASSING:
                    self._broadcast.fail(rejected)
                    return
                if self._is_cancelled:
                    self._end_cancelled()
            finally:
                if self._source is not None:
                    self._source.leave()
                    self._source = None
            if not self._broadcast.has_ended:
                await asyncio.sleep(RETRY_S)

    async def _connect(self) -> DeltaQueue:
        """The request's deltas from its first token on: of the request that the core has, or of a new one."""
        submit = msgspec.structs.replace(self._submit, request_id=self._core_id())
        queue = self._link.attach_queue()
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                answer = await self._link.attach(submit.request_id, 0, queue)
        except TimeoutError:
            queue.detach()
            raise RequestRejected("the scheduler gave no answer", "unavailable") from None
        except BaseException:
            queue.detach()
            raise
        self._broadcast.begin_anew()
        if answer.found:
            return queue
        queue.close()
        return self._link.open([submit], is_resumable=True)

    async def _read(self, source: DeltaQueue) -> None:
        """Pass deltas on to the end of the request, or to what passes."""
        while not self._broadcast.has_ended:
            for _, delta in await source.get():
                if delta.finish_reason == "error" and delta.code in PASSING:
                    raise RequestRejected(delta.error, delta.code)
                if delta.code == "request_exists":
                    return  # it came to the core by another connection: attach to it
                if delta.finish_reason == "cancelled" and not self._is_cancelled:
                    self._attempt += 1  # the worker was away for longer than the core keeps what nobody reads
                    return
                self._broadcast.put(delta)

    def _end_cancelled(self) -> None:
        """Without a word from the core, which is away."""
        ending = m.TokenDelta(request_id=self.spec.response_id, index=0, token_ids=b"", finish_reason="cancelled")
        self._broadcast.put(ending)

    def _core_id(self) -> str:
        """The core's id for it; another one where the core has given up the request before."""
        name, _, number = self._submit.request_id.rpartition("-")
        return f"{name}-{int(number) + self._attempt}"
