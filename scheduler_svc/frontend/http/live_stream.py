"""The answer of /page/live: what the page is told, as long as it is open."""

import asyncio
from collections.abc import Callable

from fastapi import Response
from starlette.types import Receive, Scope, Send

from scheduler_svc.frontend.errors import ApiError, ClientGone
from scheduler_svc.frontend.http.accounts import Readers, account_name
from scheduler_svc.frontend.http.plain_answers import ErrorResponse
from scheduler_svc.frontend.http.streaming import COMMENT, unless_disconnected
from scheduler_svc.frontend.live.hub import LiveHub
from scheduler_svc.frontend.live.page_events import Reader

KEEP_ALIVE_S = 15.0


class LiveStream(Response):
    """Server-sent events for one page.

    Args:
        readers: live pages of each client.
        reader: who reads it.
        may_read: whether its key still is one; asked now and then, as the answer has no end.
    """

    media_type = "text/event-stream"

    def __init__(self, hub: LiveHub, readers: Readers, reader: Reader, may_read: Callable[[], bool]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._hub = hub
        self._readers = readers
        self._reader = reader
        self._may_read = may_read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer until the page is closed, its key is taken away, or the frontend ends."""
        try:
            with self._readers.one_more(account_name(scope), "the live feed with this API key"):
                await unless_disconnected(receive, self._stream(send))
        except ClientGone:
            pass
        except ApiError as error:
            await ErrorResponse(error)(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
        with self._hub.page(self._reader) as page:
            while not page.has_ended and self._may_read():
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        events = await page.next()
                except TimeoutError:
                    events = COMMENT
                if events:
                    await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
