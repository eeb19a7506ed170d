"""Answers as server-sent events, and what happens when the client hangs up."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from common.errors import RequestRejected
from common.logging import get_logger
from scheduler_svc.frontend.answers.events import Events
from scheduler_svc.frontend.answers.generation import Generation
from scheduler_svc.frontend.errors import ApiError, ClientGone, internal_error
from scheduler_svc.frontend.http.plain_answers import (
    ERROR,
    IS_CLIENT_GONE,
    IS_SUBMITTED,
    REQUEST_ID_HEADER,
    ErrorResponse,
)

log = get_logger(__name__)

COMMENT = b": keep-alive\n\n"

Result = TypeVar("Result")


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client goes.

    Args:
        receive: of a request whose body has been read, so that only its disconnect can come.

    Raises:
        ClientGone: the client closed the connection first.
    """
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientGone
        return worker.result()
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Runs a generation and streams it.

    The status line waits until the core has accepted the request, or for the first tokens: until then a refusal can
    have its proper status. A later error is an event of its own, and the stream then ends. A stream that is silent gets
    a comment now and then, so that no proxy takes it for dead.

    Args:
        events: how the answer is written.
        keep_alive_s: seconds of silence before a comment.
        is_new: False for the rest of a stream. Nothing says that its request was accepted long ago, or that it has
            failed; what there is comes at once, so the status line waits for a first silence.
        at_end: is awaited before the last events are sent: with None when the answer is complete, with the error when
            it has failed after it had begun.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        events: Events,
        *,
        keep_alive_s: float,
        is_new: bool = True,
        at_end: Callable[[ApiError | None], Awaitable[None]] | None = None,
    ) -> None:
        headers = {REQUEST_ID_HEADER: generation.spec.answer_id}
        # Proxies would buffer the events; X-Accel-Buffering tells nginx not to.
        super().__init__(headers=headers | {"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._is_new = is_new
        self._at_end = at_end
        self._is_client_gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        scope[IS_SUBMITTED] = True

        async def noticing() -> Message:
            message = await receive()
            self._is_client_gone = message["type"] == "http.disconnect"
            return message

        try:
            await unless_disconnected(noticing, self._stream(scope, receive, send))
        except ClientGone:
            scope[IS_CLIENT_GONE] = True

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        out = Out(send, self.raw_headers)
        error: ApiError | None = None
        keeper = asyncio.create_task(self._keep_alive(out))
        try:
            with self._generation:
                async for pieces in self._generation.pieces():
                    for events in self._events.of(pieces):
                        await out.send(events)
                if self._at_end is not None:
                    await self._at_end(None)
                await out.send(self._events.ended(self._generation.usage, self._generation.model))
        except RequestRejected as rejected:
            error = ApiError.of_rejection(rejected, self._generation.spec.answer_id)
        except Exception:
            log.exception("internal error")
            error = internal_error()
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        if error is None:
            await out.end()
            return
        scope[ERROR] = error
        if error.code == "reader_too_slow" and not self._is_client_gone:  # otherwise the connection guard has logged it
            log.warning("reader dropped", request=self._generation.spec.answer_id, reason=error.message)
        await self._fail(out, error, scope, receive, send)

    async def _fail(self, out: "Out", error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell the client of an error: by its status, or by an event if one was sent already. Where the client can read
        on, the connection breaks instead: an event with an error makes clients give up."""
        if out.has_started and self._generation.goes_on and error.code == "unavailable":
            return
        if not out.has_started:
            error.headers[REQUEST_ID_HEADER] = self._generation.spec.answer_id
            await ErrorResponse(error)(scope, receive, send)
            return
        if self._at_end is not None:
            await self._at_end(error)
        await out.end(self._events.failed(error))

    async def _keep_alive(self, out: "Out") -> None:
        """Start the answer when it may be, and send a comment whenever it has been silent."""
        if self._is_new:
            await self._generation.accepted()
        else:
            await asyncio.sleep(self._keep_alive_s)
        await out.send(self._events.begun())
        await out.keep_alive(self._keep_alive_s)


class Out:
    """The answer as two tasks send it: one has the events, the other the comments in between. What is sent in one go
    arrives in one piece."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self._turn = asyncio.Lock()
        self._sent_s = time.monotonic()
        self.has_started = False

    @property
    def silent_s(self) -> float:
        """Seconds since something was sent; 0 while something waits for the client to read."""
        return 0.0 if self._turn.locked() else time.monotonic() - self._sent_s

    async def send(self, events: bytes) -> None:
        """Send whole events, or comments; before the first ones, status and headers."""
        async with self._turn:
            await self._start()
            await self._send({"type": "http.response.body", "body": events, "more_body": True})
            self._sent_s = time.monotonic()

    async def keep_alive(self, silence_s: float) -> None:
        """Send a comment whenever the answer has been silent for so long; until cancelled."""
        while True:
            left_s = silence_s - self.silent_s
            if left_s > 0:
                await asyncio.sleep(left_s)
            else:
                await self.send(COMMENT)

    async def end(self, events: bytes = b"") -> None:
        """Send the last events; nothing may be sent after them."""
        await self._start()
        await self._send({"type": "http.response.body", "body": events, "more_body": False})

    async def _start(self) -> None:
        if not self.has_started:
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            self.has_started = True
