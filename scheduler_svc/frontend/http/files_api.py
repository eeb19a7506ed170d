"""OpenAI's Files API: what batches read, and what they have written."""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from common.logging import get_logger
from scheduler_svc.frontend.answers.batch_objects import DeletedFile, FileList, FileObject
from scheduler_svc.frontend.errors import ApiError, ClientGone
from scheduler_svc.frontend.http.accounts import held_of
from scheduler_svc.frontend.http.body_limit import UPLOAD
from scheduler_svc.frontend.http.multipart import PartBegins, PartData, PartEnds, form_events
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.http.plain_answers import json_response
from scheduler_svc.frontend.requests.batches.schemas import FILE_ID, upload_expiry, upload_purpose
from scheduler_svc.frontend.storing.files import CHUNK_BYTES, FileStore, Upload
from scheduler_svc.frontend.storing.storage import Storage
from scheduler_svc.store.records import StoredFile

_, FILES_PATH = UPLOAD
MAX_LIMIT = 10_000  # that a client may ask for, as in OpenAI's API
PAGE = 500  # files that it gets, at most: to write 10,000 takes the event loop for 0.1 s
MAX_FIELDS = 16
MAX_FIELD_BYTES = 1024
BYTES = "application/octet-stream"
_FILE_ID = re.compile(FILE_ID, re.ASCII)

log = get_logger(__name__)


class FilesApi:
    """POST and GET /v1/files, and each file.

    Args:
        storage: None where nothing is stored.
    """

    def __init__(self, storage: Storage | None) -> None:
        self._files = None if storage is None else FileStore(storage.thread, storage.options, storage.sweeper)
        self.router = APIRouter()
        self.router.post(FILES_PATH, response_model=None)(self.upload)
        self.router.get(FILES_PATH, response_model=None)(self.page)
        one = f"{FILES_PATH}/{{file_id}}"
        self.router.get(one, response_model=None)(self.retrieve)
        self.router.delete(one, response_model=None)(self.delete)
        self.router.get(f"{one}/content", response_model=None)(self.content)

    async def upload(self, request: Request) -> Response:
        """Keep a file, whose bytes go on to the store as they come."""
        form = _Form(self._store, client_of(request).id)
        try:
            async for event in form_events(request):
                await form.take(event)
            stored = await form.finish()
        except ClientDisconnect as error:
            raise ClientGone from error
        finally:
            await form.close()
        return json_response(FileObject.of(stored))

    async def page(
        self,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = MAX_LIMIT,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> Response:
        """Some of the client's files. Fewer than were asked for if these are more than `PAGE`: `has_more` says so, and
        clients ask for the next page."""
        limit = min(limit, PAGE)
        owner = client_of(request).id
        found = await self._store.page(owner, after=after, limit=limit + 1, order=order, purpose=purpose)
        page = [FileObject.of(file) for file in found[:limit]]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        return json_response(FileList(page, first, last, has_more=len(found) > limit))

    async def retrieve(self, file_id: str, request: Request) -> Response:
        """A file, without its content."""
        return json_response(FileObject.of(await self._get(file_id, request)))

    async def delete(self, file_id: str, request: Request) -> Response:
        """Forget a file."""
        check_file_id(file_id)
        await self._store.delete(client_of(request).id, file_id)
        return json_response(DeletedFile(file_id))

    async def content(self, file_id: str, request: Request) -> Response:
        """A file's bytes."""
        file = await self._get(file_id, request)
        held_of(request).take(min(file.num_bytes, CHUNK_BYTES))
        headers = {"content-length": str(file.num_bytes)}
        return StreamingResponse(self._chunks(file), headers=headers, media_type=BYTES)

    async def _chunks(self, file: StoredFile) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._store.content(file):
                yield chunk
        except ApiError as error:  # its headers are sent: the connection ends before the length that they name
            log.warning("the rest of a file cannot be read", file=file.file_id, reason=error.message)
            raise

    async def _get(self, file_id: str, request: Request) -> StoredFile:
        check_file_id(file_id)
        return await self._store.get(client_of(request).id, file_id)

    @property
    def _store(self) -> FileStore:
        """Raises ApiError (404) where nothing is stored."""
        if self._files is None:
            raise ApiError(404, "This server runs without a store.", code="store_not_found")
        return self._files


class _Form:
    """The form of an upload: fields, and one file, in any order."""

    def __init__(self, store: FileStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._fields: dict[str, str] = {}
        self._name = ""
        self._value: bytes | None = None  # of the field that has begun
        self._upload: Upload | None = None
        self._is_kept = False

    async def take(self, event: PartBegins | PartData | PartEnds) -> None:
        """What has come of it."""
        match event:
            case PartBegins(name, filename) if name == "file":
                await self._begin_file(filename)
            case PartBegins(name, _):
                self._name, self._value = name, b""
            case PartData(data) if self._value is None:
                assert self._upload is not None, "a part has begun"
                await self._upload.add(data)
            case PartData(data) if self._value is not None:
                self._value += data
                if len(self._value) > MAX_FIELD_BYTES:
                    raise _refused(f"it is longer than {MAX_FIELD_BYTES} bytes", self._name)
            case PartEnds() if self._value is not None:
                self._end_field(self._value)

    async def finish(self) -> StoredFile:
        """It has come as a whole."""
        purpose, expires_after_s = upload_purpose(self._fields), upload_expiry(self._fields)
        if self._upload is None:
            raise ApiError(400, "Missing required parameter: 'file'.", code="missing_required_parameter", param="file")
        stored = await self._upload.finish(purpose, expires_after_s)
        self._is_kept = True
        return stored

    async def close(self) -> None:
        """Leave nothing of a file that is not whole."""
        if self._upload is not None and not self._is_kept:
            await self._upload.abandon()

    async def _begin_file(self, filename: str | None) -> None:
        if self._upload is not None:
            raise _refused("a form has one file", "file")
        if filename is None:
            raise _refused("it is no file: its part has no filename", "file")
        self._check_early()
        self._value = None
        self._upload = await self._store.begin(self._owner, filename)

    def _check_early(self) -> None:
        """Fields that came before the file are looked at before its bytes are taken."""
        if "purpose" in self._fields:
            upload_purpose(self._fields)

    def _end_field(self, value: bytes) -> None:
        if len(self._fields) == MAX_FIELDS:
            raise _refused(f"the form has more than {MAX_FIELDS} fields", self._name)
        self._fields[self._name] = value.decode(errors="replace")
        self._value = None


def check_file_id(file_id: str) -> None:
    """Raise ApiError (404) for what is no file's id."""
    if _FILE_ID.fullmatch(file_id) is None:
        message = f"There is no file '{file_id[:64]}' here, or none any more."
        raise ApiError(404, message, code="file_not_found", param="file_id")


def _refused(reason: str, param: str) -> ApiError:
    return ApiError(400, f"Invalid value for '{param[:64]}': {reason}.", code="invalid_value", param=param)
