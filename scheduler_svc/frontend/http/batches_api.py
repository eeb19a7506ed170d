"""OpenAI's Batch API: requests in a file, answered by the background worker."""

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from scheduler_svc.frontend.answers.batch_objects import Batch, BatchList
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.json_body import read_body
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.http.plain_answers import json_response
from scheduler_svc.frontend.link.worker_link import WorkerLink
from scheduler_svc.frontend.requests.batches.schemas import BATCH_ID, FILE_ID, PURPOSES, BatchRequest, window_s
from scheduler_svc.frontend.requests.body import parse_noting
from scheduler_svc.frontend.storing.batches import BatchStore
from scheduler_svc.frontend.storing.files import FileStore
from scheduler_svc.frontend.storing.storage import Storage
from scheduler_svc.frontend_options import FrontendOptions

BATCHES_PATH = "/v1/batches"
MAX_PAGE = 100
_BATCH_ID = re.compile(BATCH_ID, re.ASCII)
_FILE_ID = re.compile(FILE_ID, re.ASCII)


class BatchesApi:
    """POST and GET /v1/batches, and each batch.

    Args:
        storage: None where nothing is stored.
        options: say which parameters are ignored instead of refused.
    """

    def __init__(self, storage: Storage | None, options: FrontendOptions) -> None:
        self._parts: tuple[BatchStore, FileStore, WorkerLink] | None = None
        if storage is not None:
            parts = storage.thread, storage.options
            self._parts = BatchStore(*parts), FileStore(*parts, storage.sweeper), storage.worker
        self._options = options
        self.router = APIRouter()
        self.router.post(BATCHES_PATH, response_model=None)(self.create)
        self.router.get(BATCHES_PATH, response_model=None)(self.page)
        one = f"{BATCHES_PATH}/{{batch_id}}"
        self.router.get(one, response_model=None)(self.retrieve)
        self.router.post(f"{one}/cancel", response_model=None)(self.cancel)

    async def create(self, request: Request) -> Response:
        """Answer the requests of a file."""
        store, files, worker = self._stored
        async with read_body(request) as raw:
            body = parse_noting(raw, BatchRequest, self._options).body
        owner = client_of(request).id
        await _check_input(files, owner, body.input_file_id)
        expiry = body.output_expires_after
        batch = await store.add(
            owner,
            input_file_id=body.input_file_id,
            endpoint=body.endpoint,
            window=(body.completion_window, window_s(body.completion_window)),
            metadata=body.metadata,
            output_expires_after_s=None if expiry is None else float(expiry.seconds),
        )
        worker.run_batch(owner, batch.batch_id)
        return json_response(Batch.of(batch))

    async def page(
        self,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    ) -> Response:
        """Some of the client's batches, the youngest first."""
        store, _, _ = self._stored
        found = await store.page(client_of(request).id, after=after, limit=limit + 1)
        page = [Batch.of(batch) for batch in found[:limit]]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        return json_response(BatchList(page, first, last, has_more=len(found) > limit))

    async def retrieve(self, batch_id: str, request: Request) -> Response:
        """A batch."""
        _check_id(batch_id)
        store, _, _ = self._stored
        return json_response(Batch.of(await store.get(client_of(request).id, batch_id)))

    async def cancel(self, batch_id: str, request: Request) -> Response:
        """End a batch: what it has by now is in its files soon after."""
        _check_id(batch_id)
        store, _, worker = self._stored
        owner = client_of(request).id
        batch = await store.cancel(owner, batch_id)
        worker.cancel_batch(owner, batch_id)
        return json_response(Batch.of(batch))

    @property
    def _stored(self) -> tuple[BatchStore, FileStore, WorkerLink]:
        """Raises ApiError (404) where nothing is stored."""
        if self._parts is None:
            raise ApiError(404, "This server runs without a store.", code="store_not_found")
        return self._parts


async def _check_input(files: FileStore, owner: str, file_id: str) -> None:
    """Raise ApiError if a batch cannot read this file: (404) there is none, (400) it is not for batches."""
    if _FILE_ID.fullmatch(file_id) is None:
        message = f"There is no file '{file_id[:64]}' here, or none any more."
        raise ApiError(404, message, code="file_not_found", param="input_file_id")
    file = await files.get(owner, file_id, param="input_file_id")
    if file.purpose not in PURPOSES:
        message = f"The file '{file_id}' has the purpose '{file.purpose}', the input of a batch needs 'batch'."
        raise ApiError(400, message, code="invalid_value", param="input_file_id")


def _check_id(batch_id: str) -> None:
    """Raise ApiError (404) for what is no batch's id."""
    if _BATCH_ID.fullmatch(batch_id) is None:
        message = f"There is no batch '{batch_id[:64]}' here, or none any more."
        raise ApiError(404, message, code="batch_not_found", param="batch_id")
