"""What is checked before a request is read: its API key and the size of its body.

Plain ASGI, as Starlette's BaseHTTPMiddleware would stand between a stream and the disconnect of its client.
"""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_svc.frontend.errors import ApiError

OPEN_PATHS = ("/health", "/ready")  # what probes ask, and probes have no keys


class RequireApiKey:
    """Lets requests pass that carry one of the keys as `Authorization: Bearer KEY`; without keys, all of them."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or pass on."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_allowed(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        error = ApiError(401, "Incorrect API key, or none: send 'Authorization: Bearer KEY'.", code="invalid_api_key")
        await error.response()(scope, receive, send)

    def _is_allowed(self, headers: Headers) -> bool:
        if not self._digests:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        # Digests of equal length, all of them compared: the time it takes says nothing about any key.
        matches = [hmac.compare_digest(_digest(key.strip()), digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)


class LimitBody:
    """Answers 413 to a body over the limit, whether its length was declared or it comes in chunks."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_body_bytes
        # Somewhat more is read and thrown away: a client that is cut off while it sends may never read why.
        self._max_bytes_read = 2 * max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, so that the application starts with a request that is complete."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = int(Headers(scope=scope).get("content-length", "0"))
        body = await self._read(receive) if declared <= self._max_bytes_read else None
        if body is None:
            error = ApiError(413, f"The body is over the limit of {self._max_bytes} bytes.", code="body_too_large")
            await error.response()(scope, receive, send)
            return

        async def receive_body() -> Message:
            nonlocal body
            if body is None:
                return await receive()  # nothing but the disconnect can come now
            message: Message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        await self._app(scope, receive_body, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body, or None if it is too large."""
        chunks: list[bytes] = []
        num_bytes = 0
        while num_bytes <= self._max_bytes_read:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            chunk = message.get("body", b"")
            num_bytes += len(chunk)
            if num_bytes <= self._max_bytes:
                chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks) if num_bytes <= self._max_bytes else None
        return None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
