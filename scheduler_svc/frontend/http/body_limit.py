"""How many bytes of bodies there may be: in one request, and in all that are being read at once.

Plain ASGI, because Starlette's BaseHTTPMiddleware would hide a client's disconnect from its stream.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.plain_answers import ErrorResponse

UPLOAD = ("POST", "/v1/files")  # method and path
UPLOAD_BUFFER_BYTES = 2**21  # of an upload that are in memory at once: a chunk of the store, and what comes meanwhile
BODIES_AT_ONCE = 16  # of the largest size; of smaller ones there may be more
SMALL_BODY_BYTES = 64 * 1024  # of each body, which are not counted: uvicorn may hold as much of any connection
METHODS_WITHOUT_BODY = ("GET", "HEAD")


class HeldBodies:
    """Bytes of bodies that are in memory, without the first SMALL_BODY_BYTES of each.

    A client may hold as many bytes as it leaves free: half of all if it is alone, a quarter beside a client that holds
    half, and so on. So no client takes the room of those that come after it (Choudhury and Hahne, "Dynamic queue length
    thresholds", 1998), and a small body is taken always.

    Args:
        max_bytes: that may be.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes_of_client: Counter[str] = Counter()
        self.num_bytes = 0

    def take(self, client: str, num_bytes: int) -> bool:
        """Whether there is room for so many more bytes of a client, which are counted then."""
        free = self._max_bytes - self.num_bytes - num_bytes
        if self._bytes_of_client[client] + num_bytes > free:
            return False
        self._add(client, num_bytes)
        return True

    def release(self, client: str, num_bytes: int) -> None:
        """So many bytes are gone."""
        self._add(client, -num_bytes)

    def _add(self, client: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._bytes_of_client[client] += num_bytes
        if not self._bytes_of_client[client]:
            del self._bytes_of_client[client]


class HeldBody:
    """What one request holds of them; in the ASGI scope as `baton.body`. Who has read the body releases it."""

    def __init__(self, bodies: HeldBodies, client: str) -> None:
        self._bodies = bodies
        self._client = client
        self._num_counted = 0

    def grow_to(self, num_bytes: int) -> bool:
        """Whether there is room for a body that is so long by now."""
        num_new = max(num_bytes - SMALL_BODY_BYTES, 0) - self._num_counted
        if num_new and not self._bodies.take(self._client, num_new):
            return False
        self._num_counted += num_new
        return True

    def release(self) -> None:
        """The bytes are not needed any more."""
        self._bodies.release(self._client, self._num_counted)
        self._num_counted = 0


class LimitBody:
    """Answers 413 to a body over the limit, whether its length was declared or it comes in chunks, and 503 while too
    many bytes of other bodies are in memory. A GET request takes no body at all.

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
        self._bodies = HeldBodies(BODIES_AT_ONCE * max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, so that the application starts with a request that is complete."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held = scope["baton.body"] = HeldBody(self._bodies, _client_of(scope))
        if is_upload(scope):
            await self._upload(scope, receive, send, held)
            return
        try:
            body = self._refusal_of_head(scope) or await self._read(receive, held)
            if isinstance(body, ApiError):
                held.release()
                await ErrorResponse(body)(scope, receive, send)
            elif body is not None:
                given = _given(body, receive)
                del body  # the answer may take minutes
                await self._app(scope, given, send)
        finally:
            held.release()

    async def _upload(self, scope: Scope, receive: Receive, send: Send, held: HeldBody) -> None:
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

        try:
            if declared > limit:
                error = self._file_too_large()
                error.headers["connection"] = "close"
                await ErrorResponse(error)(scope, receive, send)
            elif not held.grow_to(SMALL_BODY_BYTES + UPLOAD_BUFFER_BYTES):
                await ErrorResponse(_busy())(scope, receive, send)
            else:
                await self._app(scope, counted, send)
        finally:
            held.release()

    def _refusal_of_head(self, scope: Scope) -> ApiError | None:
        """Why not to read the body that a request announces."""
        headers = Headers(scope=scope)
        declared = int(headers.get("content-length", "0"))
        if scope["method"] in METHODS_WITHOUT_BODY and (declared or "transfer-encoding" in headers):
            error = ApiError(413, f"A {scope['method']} request takes no body.", code="body_too_large")
            error.headers["connection"] = "close"
            return error
        return self._too_large() if declared > self._max_bytes_read else None

    async def _read(self, receive: Receive, held: HeldBody) -> bytes | ApiError | None:
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
            elif error is None and not held.grow_to(num_bytes):
                error = _busy()
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


def _busy() -> ApiError:
    return ApiError(503, "Too many long requests are being read.", code="unavailable", retry=True)


def _client_of(scope: Scope) -> str:
    """Who holds a body: the client that the key names, without keys the machine that sends it."""
    name: str = scope["baton.client"].name
    host, _ = scope.get("client") or ("", 0)
    return name or host


def _given(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with the whole body. It keeps the body only until then."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return waiting.pop() if waiting else await receive()  # after it only the disconnect can come

    return receive_body
