"""Answers as server-sent events, and what happens when the client hangs up."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from common.errors import RequestRejected
from common.logging import get_logger
from scheduler_svc.frontend.answers.event_ids import EventIds
from scheduler_svc.frontend.answers.formats import Format
from scheduler_svc.frontend.answers.generation import Generation
from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.errors import ApiError, ClientGone, internal_error
from scheduler_svc.frontend.http.responses import IS_SUBMITTED, REQUEST_ID_HEADER, ErrorResponse

log = get_logger(__name__)

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
MAX_BYTES_AT_ONCE = 2**16  # of events that came together, or one event: some have the log-probabilities of a prompt

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
    have its proper status. A later error is an event of its own, and the stream then ends without [DONE]. A stream that
    is silent gets a comment now and then, so that no proxy takes it for dead. With ids (`event_ids.py`) a client can
    ask for the rest if the stream breaks off.

    Args:
        keep_alive_s: seconds of silence before a comment.
        has_ids: False leaves the ids out.
        is_new: False for the rest of a stream. Nothing says that its request was accepted long ago, or that it has
            failed; what there is comes at once, so the status line waits for a first silence.
    """

    media_type = "text/event-stream"

    def __init__(
        self, generation: Generation, form: Format, *, keep_alive_s: float, has_ids: bool = True, is_new: bool = True
    ) -> None:
        headers = {REQUEST_ID_HEADER: generation.spec.answer_id}
        # Proxies would buffer the events; X-Accel-Buffering tells nginx not to.
        super().__init__(headers=headers | {"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._format = form
        self._keep_alive_s = keep_alive_s
        self._has_ids = has_ids
        self._is_new = is_new
        self._is_client_gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        scope[IS_SUBMITTED] = True

        async def noticing() -> Message:
            message = await receive()
            self._is_client_gone = message["type"] == "http.disconnect"
            return message

        with contextlib.suppress(ClientGone):
            await unless_disconnected(noticing, self._stream(scope, receive, send))

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        out = _Out(send, self.raw_headers)
        error: ApiError | None = None
        keeper = asyncio.create_task(self._keep_alive(out))
        try:
            with self._generation:
                async for events in self._events():
                    await out.send(events)
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
        if error.code == "reader_too_slow" and not self._is_client_gone:  # otherwise the connection guard has logged it
            log.warning("reader dropped", request=self._generation.spec.answer_id, reason=error.message)
        if out.has_started:
            await out.end(_event(error.body()))
        else:
            error.headers[REQUEST_ID_HEADER] = self._generation.spec.answer_id
            await ErrorResponse(error)(scope, receive, send)

    async def _keep_alive(self, out: "_Out") -> None:
        """Start the answer when it may be, and send a comment whenever it has been silent."""
        if self._is_new:
            await self._generation.accepted()
        else:
            await asyncio.sleep(self._keep_alive_s)
        await out.send(b"")
        while True:
            left_s = self._keep_alive_s - out.silent_s
            if left_s > 0:
                await asyncio.sleep(left_s)
            else:
                await out.send(COMMENT)

    async def _events(self) -> AsyncIterator[bytes]:
        """Events as bytes; those that came together are yielded together, if they are not long."""
        position = self._generation.spec.position
        ids = EventIds(position.choices, are_sent=self._has_ids)
        unopened = {number for number, delivered in enumerate(position.choices) if not delivered.has_opened}
        if not position.is_end:
            async for pieces in self._generation.pieces():
                events: list[bytes] = []
                num_bytes = 0
                for piece in pieces:
                    if piece.choice in unopened:
                        unopened.remove(piece.choice)
                        opening = self._format.opening(piece)
                        if opening is not None:
                            events.append(_event(to_json(opening), ids.opened(piece.choice)))
                    has_ended = piece.finish_reason is not None
                    event_id = ids.advanced(piece.choice, piece.num_tokens, has_ended=has_ended)
                    events.append(_event(to_json(self._format.chunk(piece)), event_id))
                    num_bytes += len(events[-1])
                    if num_bytes > MAX_BYTES_AT_ONCE:
                        yield b"".join(events)
                        events, num_bytes = [], 0
                if events:
                    yield b"".join(events)
            if self._format.include_usage:
                yield _event(to_json(self._format.ending(self._generation.usage, self._generation.model)), ids.end())
        yield DONE


def _event(data: bytes, event_id: str = "") -> bytes:
    """An event, its data first: some clients read no further."""
    return b"data: %b\nid: %b\n\n" % (data, event_id.encode()) if event_id else b"data: %b\n\n" % data


class _Out:
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
            if not self.has_started:
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
                self.has_started = True
            await self._send({"type": "http.response.body", "body": events, "more_body": True})
            self._sent_s = time.monotonic()

    async def end(self, events: bytes = b"") -> None:
        """Send the last events; nothing may be sent after them."""
        await self._send({"type": "http.response.body", "body": events, "more_body": False})
