"""Answers as server-sent events, and what happens when the client hangs up."""

import asyncio
import contextlib
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
from scheduler_svc.frontend.http.responses import REQUEST_ID_HEADER, error_response

log = get_logger(__name__)

DONE = b"data: [DONE]\n\n"
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

    The status line waits for the first tokens: until then a refusal can have its proper status. A later error is an
    event of its own, and the stream then ends without [DONE]. Every other event carries an id
    (`event_ids.py`), with which the client can ask for the rest if the stream breaks off.

    Args:
        has_ids: False leaves the ids out.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, form: Format, *, has_ids: bool = True) -> None:
        headers = {REQUEST_ID_HEADER: generation.spec.answer_id}
        # Proxies would buffer the events; X-Accel-Buffering tells nginx not to.
        super().__init__(headers=headers | {"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._format = form
        self._has_ids = has_ids
        self._is_client_gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""

        async def noticing() -> Message:
            message = await receive()
            self._is_client_gone = message["type"] == "http.disconnect"
            return message

        with contextlib.suppress(ClientGone):
            await unless_disconnected(noticing, self._stream(scope, receive, send))

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False
        try:
            with self._generation:
                async for events in self._events():
                    if not has_started:
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                        has_started = True
                    await send({"type": "http.response.body", "body": events, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except RequestRejected as rejected:
            error = ApiError.of_rejection(rejected)
        except Exception:
            log.exception("internal error")
            error = internal_error()
        else:
            return
        if error.code == "reader_too_slow" and not self._is_client_gone:  # otherwise the connection guard has logged it
            log.warning("reader dropped", request=self._generation.spec.answer_id, reason=error.message)
        if has_started:
            await send({"type": "http.response.body", "body": _event(error.body()), "more_body": False})
        else:
            error.headers[REQUEST_ID_HEADER] = self._generation.spec.answer_id
            await error_response(error)(scope, receive, send)

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
    return b"id: %b\ndata: %b\n\n" % (event_id.encode(), data) if event_id else b"data: %b\n\n" % data
