"""The stream of a response in the background, for one client: from the worker, and from the store when it has ended."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from common.logging import get_logger
from scheduler_svc.frontend.answers.responses.events import Outcome
from scheduler_svc.frontend.answers.responses.token_record import TokenRecord, replay
from scheduler_svc.frontend.errors import ApiError, ClientGone, internal_error
from scheduler_svc.frontend.http.responses import REQUEST_ID_HEADER
from scheduler_svc.frontend.http.streaming import COMMENT, unless_disconnected
from scheduler_svc.frontend.link.worker_link import WorkerGone, WorkerLink
from scheduler_svc.frontend.storing.responses import ResponseStore
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.store.records import StoredResponse

RETRY_S = 0.25
END_OF_EVENT = b"\n\n"

log = get_logger(__name__)


class BackgroundStream(Response):
    """Reads on wherever the response is, until its last event: the worker may be killed meanwhile.

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        with contextlib.suppress(ClientGone):
            await unless_disconnected(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for part in self._parts():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except ApiError as error:  # the response was deleted, or the store fails
            await send({"type": "http.response.body", "body": _error_event(error), "more_body": True})
        except Exception:
            log.exception("internal error")
            await send({"type": "http.response.body", "body": _error_event(internal_error()), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _parts(self) -> AsyncIterator[bytes]:
        while True:
            record = await self._store.get(*self._name)
            if record.status not in ("queued", "in_progress"):
                outcome = Outcome(record.status, record.output_items, record.tail)
                async for part in replay(_tokens(record), outcome, self._tokenizer, self._after):
                    yield part
                return
            self._worker.run(*self._name)  # it may have been started anew, and not have come to this one
            try:
                async with self._worker.events(*self._name, self._after) as stream:
                    if stream is not None:
                        async for part in self._whole_events(stream):
                            yield part
            except WorkerGone as gone:
                log.warning("the background worker is gone", response=self._name[1], reason=str(gone))
            yield COMMENT
            await asyncio.sleep(RETRY_S)

    async def _whole_events(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What comes, without an event that breaks off; counts the events."""
        rest = b""
        async for data in stream:
            whole, end, rest = (rest + data).rpartition(END_OF_EVENT)
            if end:
                blocks = whole.split(END_OF_EVENT)
                self._after += sum(block.startswith(b"event:") for block in blocks)
                yield whole + end


def _tokens(record: StoredResponse) -> TokenRecord:
    """The tokens of a response that has ended. Raises ApiError (404) for one that has none."""
    try:
        return TokenRecord.decode(record.tokens, record.head)
    except msgspec.MsgspecError as error:
        message = "The events of this response are not there, or are another version's."
        raise ApiError(404, message, code="events_not_found", param="stream") from error


def _error_event(error: ApiError) -> bytes:
    fields = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode(fields)
