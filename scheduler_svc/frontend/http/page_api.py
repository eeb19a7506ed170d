"""The page for people: its files, and what it reads beside the API (docs/page.md)."""

import time

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Struct

from common import messages as m
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.accounts import Readers
from scheduler_svc.frontend.http.live_stream import LiveStream
from scheduler_svc.frontend.http.page_about import About, parameters
from scheduler_svc.frontend.http.page_files import INDEX, PAGE_HEADERS, PageFile, read_page_files
from scheduler_svc.frontend.http.permissions import client_of, require_status_reader
from scheduler_svc.frontend.http.plain_answers import json_response
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.live.hub import LiveHub
from scheduler_svc.frontend.live.page_events import Reader, core_names, shown_name
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.text.tokenizer import Tokenizer

MAX_REQUEST_ID = 192  # as in `common.messages.RequestId`
ROOT = "/"
PREFIX = "/page"
GET = ["GET", "HEAD"]
NO_STORE = {"cache-control": "no-store"}


class RequestLife(Struct, frozen=True):
    """Answer of /page/requests/ID. Times are Unix seconds."""

    request: str
    now: float
    sequences: list[m.SequenceLife]


class Holders(Struct, frozen=True):
    """Answer of /page/executors/EPOCH/blocks/BLOCK."""

    holders: list[m.BlockHolder]


class PageApi:
    """GET / and what is under /page.

    Args:
        link: to the core.
        hub: of the pages that are open.
        api_keys: those of the service.
        model: its name in answers.
        max_readers: of the live feed, of one client.

    Attributes:
        open_paths: those that need no key, as they tell nothing of the service.
    """

    def __init__(
        self,
        link: CoreLink,
        hub: LiveHub,
        api_keys: ApiKeys,
        tokenizer: Tokenizer,
        style: ChatStyle,
        *,
        model: str,
        max_readers: int,
    ) -> None:
        self._files = read_page_files()
        self._link = link
        self._hub = hub
        self._readers = Readers(max_readers)
        self._api_keys = api_keys
        self._model = model
        self._needs_key = api_keys.are_required
        self._style = style
        self._parameters = parameters(tokenizer, style)
        self.open_paths = (ROOT, f"{PREFIX}/about", *(f"{PREFIX}/{path}" for path in self._files))
        self.router = APIRouter()
        self.router.get(f"{PREFIX}/live", response_model=None)(self.live)  # not HEAD: its answer has no end
        for path, endpoint in (
            (ROOT, self.index),
            (f"{PREFIX}/about", self.about),
            (PREFIX + "/requests/{request_id:path}", self.life),
            (PREFIX + "/executors/{epoch}/blocks/{block}", self.block),
            (PREFIX + "/{path:path}", self.file),  # the last one: it takes every path
        ):
            self.router.add_api_route(path, endpoint, methods=GET, response_model=None)

    async def index(self, request: Request) -> Response:
        """The page."""
        return _answer(request, self._files[INDEX])

    async def file(self, path: str, request: Request) -> Response:
        """One of the page's files."""
        found = self._files.get(path)
        if found is None:
            raise ApiError(404, f"There is no {request.url.path} here.", code="unknown_url")
        return _answer(request, found)

    async def about(self, request: Request) -> Response:
        """What the page has to know first."""
        client = client_of(request)
        is_known = bool(client.id) or not self._needs_key
        about = About(
            model=self._model,
            needs_key=self._needs_key,
            client=client.name if is_known else None,
            may_read_status=is_known and client.may_read_status,
            is_admin=client.is_admin,
            thinks=self._style.thinks,
            calls_tools=self._style.calls != "none",
            parameters=self._parameters,
        )
        return json_response(about, NO_STORE)

    async def live(self, request: Request) -> Response:
        """The service as it is, and then what changes."""
        client = client_of(request)
        return LiveStream(
            self._hub, self._readers, Reader(client.id, client.may_read_status), lambda: self._api_keys.has(client)
        )

    async def life(self, request_id: str, request: Request) -> Response:
        """What became of a request."""
        client = client_of(request)
        sees_all = client.may_read_status
        for name in core_names(request_id, client.id, sees_all=sees_all):
            if request_id and len(name) <= MAX_REQUEST_ID and (life := await self._link.life(name)).sequences:
                offset_s = time.time() - life.at
                sequences = [_moved(sequence, offset_s) for sequence in life.sequences]
                return json_response(RequestLife(request_id, life.at + offset_s, sequences), NO_STORE)
        message = f"There is no request '{request_id[:64]}', or none any more."
        raise ApiError(404, message, code="request_not_found", param="request_id")

    async def block(self, epoch: str, block: str, request: Request) -> Response:
        """Which sequences have a block of an executor."""
        require_status_reader(request)
        client = client_of(request)
        if not (_is_number(epoch, 2**53) and int(epoch) and _is_number(block, 2**31)):
            raise ApiError(404, f"There is no {request.url.path} here.", code="unknown_url")
        holders = await self._link.block_holders(int(epoch), int(block))
        shown = [msgspec.structs.replace(holder, request=shown_name(holder.request, client.id)) for holder in holders]
        return json_response(Holders(shown), NO_STORE)


def _moved(life: m.SequenceLife, offset_s: float) -> m.SequenceLife:
    marks = [msgspec.structs.replace(mark, at=mark.at + offset_s) for mark in life.marks]
    return msgspec.structs.replace(life, marks=marks)


def _is_number(text: str, limit: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) < limit


def _answer(request: Request, file: PageFile) -> Response:
    headers = PAGE_HEADERS | {"etag": file.tag}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.gzipped, headers=headers | {"content-encoding": "gzip"}, media_type=file.media_type)
    return Response(file.content, headers=headers, media_type=file.media_type)
