"""One response in the background: from the core to its readers, until it has ended."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import partial

import msgspec

from common import messages as m
from common.errors import RequestRejected
from common.logging import get_logger
from scheduler_svc.frontend.answers.responses.events import BEGINNING, Outcome, ResponseEvents
from scheduler_svc.frontend.answers.responses.token_record import RECORD_VERSION, TokenRecord, follow, written
from scheduler_svc.frontend.background.event_feed import EventFeed
from scheduler_svc.frontend.background.token_log import TokenLog
from scheduler_svc.frontend.background.turns import NO_ROOM
from scheduler_svc.frontend.errors import ApiError, internal_error
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.link.queries import QUERY_TIMEOUT_S
from scheduler_svc.frontend.requests.responses.background_work import BackgroundWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer

# What passes: the response was accepted, and waits until the core can take it.
PASSING = ("unavailable", "no_executor", "taken_over", "reader_too_slow", *NO_ROOM)
RETRY_S = 0.5

log = get_logger(__name__)


class ResponseRun:
    """Runs a response, whatever becomes of the core: one that comes back is asked for the request, and gets the request
    anew if it does not know it.

    Args:
        on_taken: is called once the core has the request.
        retry_s: from one connection to the core to the next.

    Raises:
        RequestRejected: another version of Baton asked for the answer.

    Attributes:
        is_kept: set when the store has the outcome, or wants none.
        outcome: what it has come to; None before.
        refusal: the code with which the core said that it has no room; empty if it did not.
        generation: that `run` reads.
    """

    def __init__(
        self,
        link: CoreLink,
        tokenizer: Tokenizer,
        work: BackgroundWork,
        on_taken: Callable[[], None] = lambda: None,
        retry_s: float = RETRY_S,
    ) -> None:
        self.spec = work.spec
        self.is_kept = asyncio.Event()
        self.outcome: Outcome | None = None
        self.refusal = ""
        self._link = link
        self._follow = partial(follow, work.spec, work.submit.context, len(work.submit.prompt) // 4, tokenizer)
        queue, self.generation = self._follow(tell=self._hear)
        self._tokens = TokenLog(work.spec.response_id, queue)
        self._feed = EventFeed(work.spec)
        self._catching_up = asyncio.Lock()
        self._submit = work.submit
        self._on_taken: Callable[[], None] | None = on_taken
        self._retry_s = retry_s
        self._attempt = 0
        self._source: DeltaQueue | None = None
        self._is_unwanted = asyncio.Event()  # the rest of it: it was cancelled, or its stop string was found
        self._is_cancelled = False
        self._is_left = False  # as nothing more of it is wanted

    @property
    def record(self) -> bytes:
        """Its tokens, for the store."""
        submit = self._submit
        record = TokenRecord(RECORD_VERSION, self.spec, submit.context, len(submit.prompt) // 4, self._tokens.deltas)
        return record.encode()

    @property
    def core_id(self) -> str:
        """The core's id for it; another one where the core has given up the request before."""
        name, _, number = self._submit.request_id.rpartition("-")
        return f"{name}-{int(number) + self._attempt}"

    @property
    def is_broken_off(self) -> bool:
        """Whether it goes on, and not here."""
        return self._tokens.is_broken_off

    async def events(self, after: int) -> AsyncGenerator[bytes, None]:
        """The events after this number, without those of the whole response, for one reader: what was written before is
        written again for it, what comes now it shares with the others. An empty one at the end says that it has all;
        without that one, it has to ask again.
        """
        _, generation = self._follow()
        events = ResponseEvents(self.spec, after=max(after, len(BEGINNING) - 1))
        num_read = 0
        while not self._feed.is_closed:
            num_live = self.generation.num_tokens
            if num_read < num_live:
                steps = written(self._tokens.between(num_read, num_live), generation, events)
                num_read = num_live
                async for part in self._one_at_a_time(steps):
                    yield part
            elif max(events.number, len(BEGINNING)) <= after:
                await self._feed.grown()  # its client has more, of another worker
            else:
                with self._feed.reader() as reader:
                    while part := await reader.next():
                        yield part
                    if reader.is_whole:
                        yield b""
                return

    def cancel(self) -> None:
        """End it: its readers hear that it was cancelled, when the core has said so or is away."""
        self._is_cancelled = True
        self._is_unwanted.set()
        if self._source is not None:
            self._source.cancel()  # the core says the last word

    def break_off(self) -> None:
        """End it here, and not in the core: its readers are to ask again."""
        self._tokens.break_off()

    async def run(self) -> Outcome | None:
        """Until it has ended; None if it was broken off, or the core has no room for it (`refusal`). When this is
        cancelled, the request goes on, and waits for the next worker."""
        events, generation = self._feed.events, self.generation
        pump = asyncio.create_task(self._pump())
        try:
            with generation:
                async for pieces in generation.pieces():
                    self._feed.write(pieces)
            self.outcome = events.outcome(generation.usage)
            if not self._tokens.has_ended and self._source is None:
                await asyncio.wait([pump], timeout=QUERY_TIMEOUT_S)  # it has the core end what is not wanted
        except RequestRejected as rejected:
            if not self.is_broken_off:
                self.outcome = events.failure(ApiError.of_rejection(rejected), generation.usage)
        except Exception:
            log.exception("internal error", request=self.spec.response_id)
            self.outcome = events.failure(internal_error(), generation.usage)
        finally:
            self._feed.close(is_whole=self.outcome is not None)
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
        return self.outcome

    @property
    def _is_over(self) -> bool:
        """Whether nothing is to come from the core."""
        return self._tokens.has_ended or self.is_broken_off or self._is_left

    async def _one_at_a_time(self, steps: Iterator[list[bytes]]) -> AsyncIterator[bytes]:
        """What is written again for one reader, in turn with the other readers."""
        while True:
            async with self._catching_up:
                part = next(steps, None)
                await asyncio.sleep(0)
            if part is None:
                return
            if events := b"".join(part):
                yield events

    def _hear(self, message: m.Cancel | m.Detach) -> None:
        if isinstance(message, m.Cancel):  # a stop string was found
            self._is_unwanted.set()
            if self._source is not None:
                self._source.end(0)

    async def _pump(self) -> None:
        """Pass on what the core says, by one connection after the other."""
        try:
            while True:
                is_last = self._is_unwanted.is_set()  # the core is told so, if it can be reached
                try:
                    await self._read_once()
                except RequestRejected as rejected:
                    self._failed(rejected, is_last=is_last)
                if is_last or self._is_over:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_unwanted.wait(), self._retry_s)
        except Exception:
            log.exception("internal error", request=self.spec.response_id)
            self._tokens.fail(RequestRejected(internal_error().message, "internal_error"))

    async def _read_once(self) -> None:
        """Connect, and pass deltas on to the end of the request, or to what passes."""
        queue = await self._connect()
        if queue is None or (self._is_unwanted.is_set() and not self._is_cancelled):
            if queue is not None:
                queue.close()  # its stop string was found meanwhile
            self._end_unwanted()
            return
        self._source = queue
        taking = asyncio.create_task(self._wait_until_taken(queue))
        try:
            if self._is_cancelled:
                queue.cancel()  # meanwhile; the core says the last word
            await self._read(queue)
        finally:
            self._source = None
            queue.leave()
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def _connect(self) -> DeltaQueue | None:
        """The request's deltas from its first token on: of the request that the core has, or of a new one; None if it
        has none, and none is wanted."""
        submit = msgspec.structs.replace(self._submit, request_id=self.core_id)
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
        self._tokens.begin_anew()
        if answer.found:
            self._taken()
            return queue
        queue.close()
        return None if self._is_unwanted.is_set() else self._link.open([submit], is_resumable=True)

    async def _read(self, source: DeltaQueue) -> None:
        while not self._is_over:
            for _, delta in await source.get():
                if delta.finish_reason == "error" and delta.code in PASSING:
                    raise RequestRejected(delta.error, delta.code)
                if delta.code == "request_exists":
                    return  # it came to the core by another connection: attach to it
                if delta.finish_reason == "cancelled" and not self._is_unwanted.is_set():
                    self._attempt += 1  # the worker was away for longer than the core keeps what nobody reads
                    return
                self._tokens.put(delta)

    def _failed(self, rejected: RequestRejected, *, is_last: bool) -> None:
        """The core refused it, failed it or is away."""
        if rejected.code not in PASSING:
            self._tokens.fail(rejected)
        elif is_last:
            self._end_unwanted()
        elif rejected.code in NO_ROOM and not self._is_unwanted.is_set():
            self.refusal = rejected.code
            self._tokens.break_off()

    def _end_unwanted(self) -> None:
        """Without a word from the core, which does not have it, or is away."""
        self._is_left = True
        if not self._is_cancelled:
            return  # its readers have its end
        ending = m.TokenDelta(request_id=self.spec.response_id, index=0, token_ids=b"", finish_reason="cancelled")
        self._tokens.put(ending)

    async def _wait_until_taken(self, source: DeltaQueue) -> None:
        await source.accepted()
        self._taken()

    def _taken(self) -> None:
        if self._on_taken is not None:
            self._on_taken()
            self._on_taken = None
