"""Answers as server-sent events, and what happens when the client hangs up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import Response
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from common.errors import RequestRejected
from common.logging import get_logger
from scheduler_svc.frontend.errors import ApiError, ClientGone, internal_error
from scheduler_svc.frontend.formats import Format
from scheduler_svc.frontend.generation import Generation
from scheduler_svc.frontend.responses import to_json

log = get_logger(__name__)

DONE = b"data: [DONE]\n\n"

Result = TypeVar("Result")


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client goes.

    Args:
        receive: of a request whose body has been read, so that nothing but its disconnect can come.

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

    The status line waits for the first tokens: until then a refusal can still be said with its proper status.
    After that an error is an event of its own, and the stream ends without [DONE].
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, form: Format, headers: dict[str, str]) -> None:
        # Proxies would gather the events; X-Accel-Buffering is nginx's way to be told.
        super().__init__(headers=headers | {"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._format = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        with contextlib.suppress(ClientGone):
            await unless_disconnected(receive, self._stream(scope, receive, send))

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
        if has_started:
            await send({"type": "http.response.body", "body": _event(error.body()), "more_body": False})
        else:
            await error.response()(scope, receive, send)

    async def _events(self) -> AsyncIterator[bytes]:
        """Events as bytes, all that came at once in one go."""
        opened = set[int]()
        async for pieces in self._generation.pieces():
            chunks: list[Struct | None] = []
            for piece in pieces:
                if piece.choice not in opened:
                    opened.add(piece.choice)
                    chunks.append(self._format.opening(piece.choice))
                chunks.append(self._format.chunk(piece))
            yield b"".join([_event(to_json(chunk)) for chunk in chunks if chunk is not None])
        if self._format.include_usage:
            yield _event(to_json(self._format.ending(self._generation.usage)))
        yield DONE


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
