"""The body of a request that has to be JSON."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.accounts import held_of


async def json_body(request: Request) -> bytes:
    """Its bytes, which nobody has looked at and Starlette does not keep. Raises ApiError (400) if its sender does not
    call it JSON, or (415) if it is compressed."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = f"The body is sent as '{encoding[:50]}'; this server takes bodies that are not compressed."
        raise ApiError(415, message, code="unsupported_encoding", param="Content-Encoding")
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise ApiError(400, "The body must be a JSON object, sent as application/json.", code="invalid_type")
    return b"".join([chunk async for chunk in request.stream()])


@asynccontextmanager
async def read_body(request: Request) -> AsyncIterator[bytes]:
    """`json_body` for a `with`, at whose end the body's bytes are not needed any more."""
    try:
        yield await json_body(request)
    finally:
        held_of(request).release()
