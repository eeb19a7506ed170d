"""The stream of a response in the background, for one client: from the worker, and from the store when it has ended."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from common.logging import get_logger
from scheduler_svc.frontend.answers.responses.events import Outcome, ResponseEvents, ResponseSpec
from scheduler_svc.frontend.answers.responses.token_record import TokenRecord, replay
from scheduler_svc.frontend.errors import ApiError, ClientGone, internal_error
from scheduler_svc.frontend.http.plain_answers import ERROR, IS_CLIENT_GONE, REQUEST_ID_HEADER
from scheduler_svc.frontend.http.streaming import COMMENT, unless_disconnected
from scheduler_svc.frontend.link.worker_link import WorkerGone, WorkerLink
from scheduler_svc.frontend.storing.responses import ResponseStore
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.store.records import StoredResponse

RETRY_S = 0.25
END_OF_EVENT = b"\n\n"
LAST_EVENTS = tuple(b"event: response.%b\n" % name for name in (b"completed", b"incomplete", b"failed"))

log = get_logger(__name__)


class BackgroundStream(Response):
    """Reads on wherever the response is, until its last event: the worker may be killed meanwhile. Where the frontend
    stops before, an error says so, and the client can ask for the rest.

    Args:
        after: number of the last event that the client has; -1 for none.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        store: ResponseStore,
        worker: WorkerLink,
        tokenizer: Tokenizer,
        owner: str,
        response_id: str,
        after: int,
    ) -> None:
        headers = {REQUEST_ID_HEADER: response_id, "cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._store = store
        self._worker = worker
        self._tokenizer = tokenizer
        self._name = owner, response_id
        self._after = after
        self._has_last = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            await unless_disconnected(receive, self._stream(scope, send))
        except ClientGone:
            scope[IS_CLIENT_GONE] = True

    async def _stream(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        last = b""
        try:
            await self._unless_stopped(self._pass_on(send))
        except ApiError as error:  # the response was deleted, the store fails, or this frontend stops
            scope[ERROR] = error
            last = _error_event(error, self._after)
        except Exception:
            log.exception("internal error")
            scope[ERROR] = failed = internal_error()
            last = _error_event(failed, self._after)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry out `work`. Raises ApiError (503) if the frontend stops before it is done."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self._worker.stopped())
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
            if not part:
                continue
            await send({"type": "http.response.body", "body": part, "more_body": True})
            self._after += sum(block.startswith(b"event:") for block in part.split(END_OF_EVENT))

    async def _parts(self) -> AsyncIterator[bytes]:
        """Whole events, and comments. What is yielded is sent before the next part is asked for."""
        has_begun = False
        while not self._has_last:
            record = await self._store.get(*self._name)
            if record.status not in ("queued", "in_progress"):
                async for part in self._stored(record):
                    yield part
                return
            if not has_begun:
                has_begun = True
                yield self._events(record).waiting()  # at once: the client knows the response by them
            try:
                async with self._worker.events(*self._name, self._after) as stream:
                    if stream is not None:
                        async for part in self._whole_events(stream):
                            yield part
            except WorkerGone as gone:
                log.warning("the background worker is gone", response=self._name[1], reason=str(gone))
            if not self._has_last:
                yield COMMENT
                await asyncio.sleep(RETRY_S)

    async def _stored(self, record: StoredResponse) -> AsyncIterator[bytes]:
        """The events of a response that has ended. Raises ApiError (404) for tokens that cannot be read."""
        outcome = Outcome(record.status, record.output_items, record.tail)
        if record.tokens or record.status not in ("failed", "cancelled"):
            async for part in replay(_tokens(record), outcome, self._tokenizer, self._after):
                yield part
            return
        events = self._events(record)  # it ended before it had begun
        events.settle(outcome)
        yield events.failed(internal_error())  # as it was settled

    def _events(self, record: StoredResponse) -> ResponseEvents:
        """Of a response without tokens."""
        spec = ResponseSpec(record.response_id, record.head, in_summary=False, is_sealed=False, is_background=True)
        return ResponseEvents(spec, after=self._after)

    async def _whole_events(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What comes, without an event that breaks off; notices the last one."""
        rest = b""
        async for data in stream:
            whole, end, rest = (rest + data).rpartition(END_OF_EVENT)
            if end:
                self._has_last = whole.rpartition(END_OF_EVENT)[2].startswith(LAST_EVENTS)
                yield whole + end


def _tokens(record: StoredResponse) -> TokenRecord:
    """The tokens of a response that has ended. Raises ApiError (404) for one that has none."""
    try:
        return TokenRecord.decode(record.tokens, record.head)
    except msgspec.MsgspecError as error:
        message = "The events of this response are not there, or are another version's."
        raise ApiError(404, message, code="events_not_found", param="stream") from error


def _error_event(error: ApiError, number: int) -> bytes:
    """An error that is no event of the response: it has the number of the one before, so that a client that asks for
    what comes after it lacks nothing."""
    fields = {"type": "error", "sequence_number": number, "code": error.code, "message": error.message}
    fields["param"] = error.param
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode(fields)
