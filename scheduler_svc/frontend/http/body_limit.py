"""How many bytes a request's body may have; what of it is in memory counts in the client's account.

Plain ASGI, because Starlette's BaseHTTPMiddleware would hide a client's disconnect from its stream.
"""

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.accounts import Held
from scheduler_svc.frontend.http.plain_answers import HELD, ErrorResponse

UPLOAD = ("POST", "/v1/files")  # method and path
UPLOAD_BUFFER_BYTES = 2**21  # of an upload that are in memory at once: a chunk of the store, and what comes meanwhile
SMALL_BODY_BYTES = 64 * 1024  # of each body, which are not counted: uvicorn may hold as much of any connection
METHODS_WITHOUT_BODY = ("GET", "HEAD")


class LimitBody:
    """Answers 413 to a body over the limit, whether its length was declared or it comes in chunks, and 503 to one for
    which the client's share has no room; a small one is taken always. A GET request takes no body at all.

    The application is called with whole requests only: a body that is cut off, by its sender or by a limit of the
    connection, could mean something else than its sender meant. Only an upload goes on while it comes, and has a limit
    of its own; the application sees to it that one that is cut off has no effect.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, max_file_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_body_bytes
        self._max_file_bytes = max_file_bytes
        # Somewhat more is read and discarded: a client that is cut off while it sends may never read the answer.
        self._max_bytes_read = 2 * max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, so that the application starts with a request that is complete."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held: Held = scope[HELD]
        if is_upload(scope):
            await self._upload(scope, receive, send, held)
            return
        body = self._refusal_of_head(scope) or await self._read(receive, held)
        if isinstance(body, ApiError):
            held.release()
            await ErrorResponse(body)(scope, receive, send)
        elif body is not None:
            given = _given(body, receive)
            del body  # the answer may take minutes
            await self._app(scope, given, send)

    async def _upload(self, scope: Scope, receive: Receive, send: Send, held: Held) -> None:
        """Let the application read the body while it comes."""
        limit = self._max_file_bytes + SMALL_BODY_BYTES  # what a form has beside its file
        declared = int(Headers(scope=scope).get("content-length", "0"))
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > limit:
                raise self._file_too_large()
            return message

        if declared > limit:
            error = self._file_too_large()
            error.headers["connection"] = "close"
            await ErrorResponse(error)(scope, receive, send)
            return
        try:
            held.take(UPLOAD_BUFFER_BYTES)
        except ApiError as error:
            await ErrorResponse(error)(scope, receive, send)
            return
        await self._app(scope, counted, send)

    def _refusal_of_head(self, scope: Scope) -> ApiError | None:
        """Why not to read the body that a request announces."""
        headers = Headers(scope=scope)
        declared = int(headers.get("content-length", "0"))
        if scope["method"] in METHODS_WITHOUT_BODY and (declared or "transfer-encoding" in headers):
            error = ApiError(413, f"A {scope['method']} request takes no body.", code="body_too_large")
            error.headers["connection"] = "close"
            return error
        return self._too_large() if declared > self._max_bytes_read else None

    async def _read(self, receive: Receive, held: Held) -> bytes | ApiError | None:
        """The body, or why it cannot be taken, and the rest of it is read and discarded then; None if its end does not
        come."""
        chunks: list[bytes] = []
        num_bytes = 0
        error: ApiError | None = None
        while num_bytes <= self._max_bytes_read:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                error = self._too_large()
            elif error is None:
                error = _counted(num_bytes, len(chunk), held)
            if error is None:
                chunks.append(chunk)
            else:
                chunks.clear()
                held.release()
            if not message.get("more_body", False):
                return error or b"".join(chunks)
        return self._too_large()

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body is over the limit of {self._max_bytes} bytes.", code="body_too_large")

    def _file_too_large(self) -> ApiError:
        message = f"The file is over the limit of {self._max_file_bytes} bytes."
        return ApiError(413, message, code="body_too_large", param="file")


def is_upload(scope: Mapping[str, Any]) -> bool:
    """Whether a request's body is a file, which may be far longer than other bodies."""
    return (scope["method"], scope["path"]) == UPLOAD


def _counted(num_bytes: int, num_new: int, held: Held) -> ApiError | None:
    """Count what has come of a body, which is so long by now; why it cannot be taken, if there is no room."""
    try:
        held.take(min(num_new, max(num_bytes - SMALL_BODY_BYTES, 0)))
    except ApiError as error:
        return error
    return None


def _given(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with the whole body. It keeps the body only until then."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return waiting.pop() if waiting else await receive()  # after it only the disconnect can come

    return receive_body
