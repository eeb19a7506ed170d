"""How many bytes of bodies there may be: in one request, and in all that are being read at once.

Plain ASGI, because Starlette's BaseHTTPMiddleware would hide a client's disconnect from its stream.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.responses import error_response

BODIES_AT_ONCE = 16  # of the largest size; of smaller ones there may be more


class HeldBodies:
    """Bytes of bodies that are in memory.

    Args:
        max_bytes: that may be.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Whether there is room for so many more bytes, which are counted then."""
        if self._num_bytes + num_bytes > self._max_bytes:
            return False
        self._num_bytes += num_bytes
        return True

    def release(self, num_bytes: int) -> None:
        """So many bytes are gone."""
        self._num_bytes -= num_bytes


class HeldBody:
    """What one request holds of them; in the ASGI scope as `baton.body`. Who has read the body releases it."""

    def __init__(self, bodies: HeldBodies) -> None:
        self._bodies = bodies
        self._num_bytes = 0

    def grow(self, num_bytes: int) -> bool:
        """Whether there is room for so many more bytes."""
        if not self._bodies.take(num_bytes):
            return False
        self._num_bytes += num_bytes
        return True

    def release(self) -> None:
        """The bytes are not needed any more."""
        self._bodies.release(self._num_bytes)
        self._num_bytes = 0


class LimitBody:
    """Answers 413 to a body over the limit, whether its length was declared or it comes in chunks, and 503 while too
    many bytes of other bodies are in memory."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_body_bytes
        # Somewhat more is read and discarded: a client that is cut off while it sends may never read the answer.
        self._max_bytes_read = 2 * max_body_bytes
        self._bodies = HeldBodies(BODIES_AT_ONCE * max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, so that the application starts with a request that is complete."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held = scope["baton.body"] = HeldBody(self._bodies)
        try:
            declared = int(Headers(scope=scope).get("content-length", "0"))
            body = await self._read(receive, held) if declared <= self._max_bytes_read else self._too_large()
            if isinstance(body, ApiError):
                held.release()
                await error_response(body)(scope, receive, send)
                return
            await self._app(scope, _given(body, receive), send)
        finally:
            held.release()

    async def _read(self, receive: Receive, held: HeldBody) -> bytes | ApiError:
        """The body, or why it cannot be taken; the rest of it is read and discarded then."""
        chunks: list[bytes] = []
        num_bytes = 0
        error: ApiError | None = None
        while num_bytes <= self._max_bytes_read:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            chunk = message.get("body", b"")
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                error = self._too_large()
            elif error is None and not held.grow(len(chunk)):
                error = ApiError(503, "Too many long requests are being read.", code="unavailable", retry=True)
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


def _given(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with the whole body. It keeps the body only until then."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return waiting.pop() if waiting else await receive()  # after it only the disconnect can come

    return receive_body
