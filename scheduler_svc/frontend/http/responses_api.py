"""The Responses API."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from common.logging import get_logger
from scheduler_svc.frontend.answers.generation import Generation
from scheduler_svc.frontend.answers.responses.events import NEVER, Outcome, ResponseEvents, ResponseSpec
from scheduler_svc.frontend.answers.responses.objects import DeletedResponse, InputItems, response_json
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.accounts import Readers, held_of
from scheduler_svc.frontend.http.background_stream import BackgroundStream, Streaming
from scheduler_svc.frontend.http.json_body import read_body
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.http.plain_answers import ANSWER, ANSWER_ID, IS_SUBMITTED, REQUEST_ID_HEADER
from scheduler_svc.frontend.http.streaming import EventStream, unless_disconnected
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.generating import open_generation
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.requests.responses.background_work import WORK_VERSION, BackgroundWork
from scheduler_svc.frontend.requests.responses.prepare import ReadyResponse, ResponsePreparer
from scheduler_svc.frontend.requests.responses.schemas import RESPONSE_ID, ResponseRequest
from scheduler_svc.frontend.requests.responses.stored import page_of
from scheduler_svc.frontend.storing.responses import PIECE_BYTES, AskedToStore, ResponseStore, StoredAnswer
from scheduler_svc.frontend.storing.storage import Storage
from scheduler_svc.frontend.tracing.notes import answers, asked
from scheduler_svc.frontend_options import FrontendOptions

MAX_PAGE = 100
_RESPONSE_ID = re.compile(RESPONSE_ID, re.ASCII)

log = get_logger(__name__)


class ResponsesApi:
    """POST /v1/responses, and what is stored.

    Args:
        storage: None where nothing is stored.
        model: its name in answers.
    """

    def __init__(
        self,
        link: CoreLink,
        reader: RequestReader,
        style: ChatStyle,
        storage: Storage | None,
        *,
        model: str,
        options: FrontendOptions,
    ) -> None:
        self._link = link
        self._reader = reader
        self._stored = None if storage is None else ResponseStore(storage.thread, storage.options)
        self._worker = None if storage is None else storage.worker
        self._preparer = ResponsePreparer(reader, style, self._stored, model=model)
        self._keep_alive_s = options.keep_alive_s
        self._streaming: Streaming | None = None
        if storage is not None and self._stored is not None:
            readers = Readers(options.max_readers)
            self._streaming = Streaming(self._stored, storage.worker, reader.tokenizer, reader.long_work, readers)
        self.router = APIRouter()
        self.router.post("/v1/responses", response_model=None)(self.create)
        one = "/v1/responses/{response_id}"
        self.router.get(one, response_model=None)(self.retrieve)
        self.router.delete(one, response_model=None)(self.delete)
        self.router.post(f"{one}/cancel", response_model=None)(self.cancel)
        self.router.get(f"{one}/input_items", response_model=None)(self.input_items)

    async def create(self, request: Request) -> Response:
        """Answer a conversation."""
        client = client_of(request)
        ready = await self._read(request)
        request.scope[ANSWER_ID] = ready.spec.response_id
        is_stored = ready.is_stored and self._stored is not None
        if is_stored:
            await self._store.check_room(client.id)
        if ready.spec.is_background:
            return await self._in_background(ready, request, streams=ready.streams)
        generation = await open_generation(self._link, self._reader.tokenizer, ready.tokenized, ready.context, client)
        request.scope[ANSWER] = generation
        answers(request.scope, generation, client.id)
        answer = _Answer(generation, ready.spec, ready.asked, self._store if is_stored else None, client.id)
        if ready.streams:
            return EventStream(generation, answer.events, keep_alive_s=self._keep_alive_s, at_end=answer.keep)
        request.scope[IS_SUBMITTED] = True
        with generation:
            outcome = await unless_disconnected(request.receive, answer.whole())
        spec = ready.spec
        return _json(spec.response_id, response_json(spec.head, outcome.status, outcome.output, outcome.tail))

    async def retrieve(
        self,
        response_id: str,
        request: Request,
        stream: bool = False,
        starting_after: Annotated[int, Query(ge=-1, le=NEVER)] = -1,
    ) -> Response:
        """A response; with `stream`, its events after the one with the number `starting_after`."""
        answer = await self._get(response_id, request)
        if stream and not answer.sizes.is_background:
            message = "Only a response in the background can be streamed again."
            raise ApiError(400, message, code="invalid_value", param="stream")
        held_of(request).take(min(answer.num_bytes, PIECE_BYTES))
        return self._background_stream(request, response_id, starting_after) if stream else _stored(answer)

    async def delete(self, response_id: str, request: Request) -> Response:
        """Forget a response, which ends if it runs."""
        _check_id(response_id)
        owner = client_of(request).id
        await self._store.delete(owner, response_id)
        if self._worker is not None:
            await self._worker.cancel(owner, response_id)
        return _json(response_id, DeletedResponse(response_id))

    async def cancel(self, response_id: str, request: Request) -> Response:
        """End a response in the background. One that has ended stays as it is."""
        answer = await self._get(response_id, request)
        if not answer.sizes.is_background:
            message = "Only a response in the background can be cancelled; close the connection of another one."
            raise ApiError(400, message, code="invalid_value", param="response_id")
        owner = client_of(request).id
        if self._worker is not None:
            await self._worker.cancel(owner, response_id)
        await self._store.cancel(owner, response_id)  # if the worker does not have it, or is away
        answer = await self._get(response_id, request)
        held_of(request).take(min(answer.num_bytes, PIECE_BYTES))
        return _stored(answer)

    async def input_items(
        self,
        response_id: str,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """The items of a response's request, page by page."""
        answer = await self._get(response_id, request)
        held_of(request).take(2 * answer.sizes.input_items)  # as they are stored, and as they are read
        data = await answer.input_items()

        def work() -> bytes:
            ids, items, has_more = page_of(data, after=after, limit=limit, is_descending=order == "desc")
            first, last = (ids[0], ids[-1]) if ids else (None, None)
            return msgspec.json.encode(InputItems(items, first, last, has_more=has_more))

        return _json(response_id, msgspec.Raw(await self._reader.long_work(client_of(request).id, len(data), work)))

    async def _read(self, request: Request) -> ReadyResponse:
        """A request made ready. Its body ends here, long before the answer does."""
        client = client_of(request)
        async with read_body(request) as raw:
            body = await self._reader.parse(raw, ResponseRequest, client, scope=request.scope)
            ready = await self._preparer.ready(body, len(raw), client, held_of(request).take)
            # What of the request is needed until its answer ends.
            num_bytes = len(ready.spec.head) + len(ready.asked.input_items)
        held_of(request).add(num_bytes)
        return replace(ready, context=asked(request.scope, body, ready.tokenized, ready.context))

    @property
    def _store(self) -> ResponseStore:
        """Raises ApiError (404) where nothing is stored."""
        if self._stored is None:
            raise ApiError(404, "This server runs without a store.", code="response_not_found", param="response_id")
        return self._stored

    async def _get(self, response_id: str, request: Request) -> StoredAnswer:
        _check_id(response_id)
        return await self._store.answer(client_of(request).id, response_id)

    async def _in_background(self, ready: ReadyResponse, request: Request, *, streams: bool) -> Response:
        client = client_of(request)
        await self._store.check_open(client.id)
        [submit] = ready.tokenized.submits(client, ready.context.encode())
        # Its stream may be asked for at any time, and where it came from is not stored.
        submit = msgspec.structs.replace(submit, stream=True, address="")
        work = BackgroundWork(WORK_VERSION, ready.spec, submit)
        await self._store.queue(client.id, ready.asked, work.encode())
        response_id = ready.spec.response_id
        if self._worker is not None:
            self._worker.run(client.id, response_id)
        if streams:
            held_of(request).release()
            held_of(request).add(min(len(ready.spec.head), PIECE_BYTES))
            return self._background_stream(request, response_id, -1)
        return _json(response_id, response_json(ready.spec.head, "queued"))

    def _background_stream(self, request: Request, response_id: str, after: int) -> Response:
        assert self._streaming is not None, "a response in the background was found in the store"
        return BackgroundStream(self._streaming, client_of(request).id, response_id, after)


class _Answer:
    """A response that its client waits for."""

    def __init__(
        self,
        generation: Generation,
        spec: ResponseSpec,
        asked: AskedToStore,
        store: ResponseStore | None,
        owner: str,
    ) -> None:
        self.events = ResponseEvents(spec)
        self._generation = generation
        self._spec = spec
        self._asked = asked
        self._store = store
        self._owner = owner

    async def whole(self) -> Outcome:
        """The response, when it has ended. Raises RequestRejected if it fails."""
        self.events = ResponseEvents(self._spec, after=NEVER)
        async for pieces in self._generation.pieces():
            for _ in self.events.of(pieces):
                pass
        await self.keep(None)
        return self.events.outcome(self._generation.usage)

    async def keep(self, error: ApiError | None) -> None:
        """Store what it has come to. An answer is not lost because that fails."""
        usage = self._generation.usage
        outcome = self.events.outcome(usage) if error is None else self.events.failure(error, usage)
        if self._store is None:
            return
        try:
            await self._store.keep(self._owner, self._asked, outcome)
        except ApiError as failed:
            log.error("a response is not stored", response=self._spec.response_id, reason=failed.message)


def _stored(answer: StoredAnswer) -> Response:
    """A response that is read from the store while it is sent."""

    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in answer.json():
                yield piece
        except ApiError as error:  # its headers are sent: the connection ends before the length that they name
            log.warning("the rest of a response cannot be read", response=answer.response_id, reason=error.message)
            raise

    headers = {REQUEST_ID_HEADER: answer.response_id, "content-length": str(answer.num_bytes)}
    return StreamingResponse(pieces(), headers=headers, media_type="application/json")


def _json(response_id: str, value: Any) -> Response:
    headers = {REQUEST_ID_HEADER: response_id}
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")


def _check_id(response_id: str) -> None:
    """Raise ApiError (404) for what is no response's id."""
    if _RESPONSE_ID.fullmatch(response_id) is None:
        message = f"There is no response '{response_id[:64]}' here, or none any more."
        raise ApiError(404, message, code="response_not_found", param="response_id")
