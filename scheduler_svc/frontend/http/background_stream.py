"""The stream of a response in the background, for one client: from the worker, and from the store when it has ended."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from fastapi import Response
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from common.logging import get_logger
from scheduler_svc.frontend.answers.responses.events import BEGINNING, ResponseEvents, event_around, last_event
from scheduler_svc.frontend.answers.responses.objects import ResponseStatus
from scheduler_svc.frontend.answers.responses.token_record import TokenRecord, follow, written
from scheduler_svc.frontend.errors import ApiError, ClientGone, internal_error
from scheduler_svc.frontend.http.accounts import Readers
from scheduler_svc.frontend.http.plain_answers import ERROR, IS_CLIENT_GONE, REQUEST_ID_HEADER, ErrorResponse
from scheduler_svc.frontend.http.streaming import COMMENT, unless_disconnected
from scheduler_svc.frontend.link.worker_link import ENDED, WorkerGone, WorkerLink
from scheduler_svc.frontend.storing.responses import ResponseStore, StoredAnswer
from scheduler_svc.frontend.text.tokenizer import Tokenizer

RETRY_S = 0.25
EVENT, END_OF_EVENT = b"event:", b"\n\n"

log = get_logger(__name__)


class Streaming(NamedTuple):
    """What a frontend's streams of responses in the background have in common.

    Attributes:
        long_work: does an owner's work of some size where it holds nothing up.
        readers: those of each response.
        retry_s: from a stream that broke off to the next try.
    """

    store: ResponseStore
    worker: WorkerLink
    tokenizer: Tokenizer
    long_work: Callable[[str, int, Callable[[], list[bytes] | None]], Awaitable[list[bytes] | None]]
    readers: Readers
    retry_s: float = RETRY_S


class BackgroundStream(Response):
    """Reads on wherever the response is, until its last event: the worker may be killed meanwhile. Where the frontend
    stops before, the connection breaks, and the client can ask for the rest.

    Args:
        after: number of the last event that the client has; -1 for none.
    """

    media_type = "text/event-stream"

    def __init__(self, shared: Streaming, owner: str, response_id: str, after: int) -> None:
        headers = {REQUEST_ID_HEADER: response_id, "cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._shared = shared
        self._name = owner, response_id
        self._after = after
        self._has_all = False  # but for the last event
        self._is_inside = False  # of an event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            with self._shared.readers.one_more(self._name, "this response"):
                await unless_disconnected(receive, self._stream(scope, send))
        except ClientGone:
            scope[IS_CLIENT_GONE] = True
        except ApiError as error:
            await ErrorResponse(error)(scope, receive, send)

    async def _stream(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        last = b""
        try:
            await self._unless_stopped(self._pass_on(send))
        except ApiError as error:  # the response was deleted, the store fails, or this frontend stops
            scope[ERROR] = error
            # Nothing can be said inside of an event. And where the client can read on, an error would make it give up:
            # the connection breaks.
            if self._is_inside or error.code == "unavailable":
                return
            last = _error_event(error, self._after)
        except Exception:
            log.exception("internal error")
            scope[ERROR] = failed = internal_error()
            last = _error_event(failed, self._after)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry out `work`. Raises ApiError (503) if the frontend stops before it is done."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self._shared.worker.stopped())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ApiError(
                    503, "The server is shutting down; the response goes on.", code="unavailable", retry=True
                )
            working.result()
        finally:
            working.cancel()
            stopped.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)

    async def _pass_on(self, send: Send) -> None:
        async for part in self._parts():
            await send({"type": "http.response.body", "body": part, "more_body": True})

    async def _parts(self) -> AsyncIterator[bytes]:
        """Parts of events, and comments. What is yielded is sent before the next part is asked for."""
        while True:
            answer = await self._shared.store.answer(*self._name)
            if not answer.is_open:
                break
            async for part in self._beginning(answer, BEGINNING[:-1]):  # at once: the client knows the response by them
                yield part
            try:
                async with self._shared.worker.events(*self._name, self._after) as stream:
                    if stream is not None:
                        async for part in self._running(answer, stream):
                            yield part
            except WorkerGone as gone:
                log.warning("the background worker is gone", response=self._name[1], reason=str(gone))
            if not self._has_all:
                yield COMMENT
                await asyncio.sleep(self._shared.retry_s)
        async for part in self._beginning(answer, BEGINNING):
            yield part
        async for part in self._rest(answer):
            yield part

    async def _running(self, answer: StoredAnswer, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What the worker says, without an event that breaks off; notices whether that is all."""
        async for part in self._beginning(answer, BEGINNING):
            yield part
        rest = bytearray()
        async for data in stream:
            rest += data
            end = rest.rfind(END_OF_EVENT, max(0, len(rest) - len(data) - 1)) + len(END_OF_EVENT)
            if end < len(END_OF_EVENT):
                continue
            whole = bytes(rest[:end])
            del rest[:end]
            self._has_all = whole.endswith(ENDED)
            yield whole.removesuffix(ENDED)
            self._after += whole.startswith(EVENT) + whole.count(END_OF_EVENT + EVENT)

    async def _rest(self, answer: StoredAnswer) -> AsyncIterator[bytes]:
        """What is left of a response that has ended. Raises ApiError (404) for tokens that cannot be read."""
        number = self._after + 1
        if not self._has_all:
            number = len(BEGINNING)
            if answer.sizes.tokens or not answer.has_failed:
                record = _tokens(await answer.tokens())
                deltas = [replace(delta, finish_reason=None) for delta in record.deltas]
                _, generation = follow(record.spec, record.context, record.num_prompt_tokens, self._shared.tokenizer)
                events = ResponseEvents(record.spec, after=self._after)
                steps = written(deltas if answer.has_failed else record.deltas, generation, events)
                while (step := await self._next(steps, answer.sizes.tokens)) is not None:
                    for part in step:
                        yield part
                number = max(number, events.number)
        if number > self._after:
            async for part in self._whole_event(answer, last_event(answer.status), number):
                yield part

    async def _beginning(
        self, answer: StoredAnswer, events: Sequence[tuple[str, ResponseStatus]]
    ) -> AsyncIterator[bytes]:
        """The first events, as far as the client does not have them."""
        for number, (name, status) in enumerate(events):
            if number > self._after:
                async for part in self._whole_event(answer, name, number, status):
                    yield part

    async def _whole_event(
        self, answer: StoredAnswer, name: str, number: int, status: ResponseStatus | None = None
    ) -> AsyncIterator[bytes]:
        """An event with the whole response, which is read from the store piece by piece."""
        before, after = event_around(name, number)
        self._is_inside = True
        async for piece in answer.json(status):
            yield before + piece
            before = b""
        yield after
        self._is_inside = False
        self._after = number

    async def _next(self, steps: Iterator[list[bytes]], size: int) -> list[bytes] | None:
        """The next step, where it holds up nothing; None after the last one."""
        return await self._shared.long_work(self._name[0], size, lambda: next(steps, None))


def _tokens(data: bytes) -> TokenRecord:
    """The tokens of a response that has ended. Raises ApiError (404) for one that has none."""
    try:
        return TokenRecord.decode(data)
    except msgspec.MsgspecError as error:
        message = "The events of this response are not there, or are another version's."
        raise ApiError(404, message, code="events_not_found", param="stream") from error


def _error_event(error: ApiError, number: int) -> bytes:
    """An error that is no event of the response: it has the number of the one before, so that a client that asks for
    what comes after it lacks nothing."""
    fields = {"type": "error", "sequence_number": number, "code": error.code, "message": error.message}
    fields["param"] = error.param
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode(fields)
