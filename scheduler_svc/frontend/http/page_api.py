"""The page for people: its files, and what it reads beside the API (docs/page.md)."""

from fastapi import APIRouter, Request, Response

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.page_about import About, parameters
from scheduler_svc.frontend.http.page_files import INDEX, PAGE_HEADERS, PageFile, read_page_files
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.http.plain_answers import json_response
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.text.tokenizer import Tokenizer

ROOT = "/"
PREFIX = "/page"
GET = ["GET", "HEAD"]


class PageApi:
    """GET / and what is under /page.

    Args:
        model: its name in answers.
        needs_key: whether the service has API keys.

    Attributes:
        open_paths: those that need no key, as they tell nothing of the service.
    """

    def __init__(self, tokenizer: Tokenizer, style: ChatStyle, *, model: str, needs_key: bool) -> None:
        self._files = read_page_files()
        self._model = model
        self._needs_key = needs_key
        self._style = style
        self._parameters = parameters(tokenizer, style)
        self.open_paths = (ROOT, f"{PREFIX}/about", *(f"{PREFIX}/{path}" for path in self._files))
        self.router = APIRouter()
        for path, endpoint in (
            (ROOT, self.index),
            (f"{PREFIX}/about", self.about),
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
        is_known = bool(client.name) or not self._needs_key
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
        return json_response(about, {"cache-control": "no-store"})


def _answer(request: Request, file: PageFile) -> Response:
    headers = PAGE_HEADERS | {"etag": file.tag}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
