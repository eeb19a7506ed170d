"""HTTP answers that are not streamed: JSON of our structs, and errors."""

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import Response
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.errors import ApiError

REQUEST_ID_HEADER = "x-request-id"
MESSAGES_PATH = "/v1/messages"

# What is known of a request while it is served, in its ASGI scope:
ANSWER_ID = "baton.answer_id"  # of the answer that it asks for
ANSWER = "baton.answer"  # the Generation or PooledAnswer
IS_SUBMITTED = "baton.is_submitted"  # the core has it, and counts if it is refused
ERROR = "baton.error"  # the ApiError that it is answered with, or that ended its stream
REFUSAL = "baton.refusal"  # how its connection has answered it, while its application was at work
IS_CLIENT_GONE = "baton.is_client_gone"  # its stream ended because the client hung up
HELD = "baton.held"  # what it holds of its client's share of memory


class Refusal(NamedTuple):
    """An answer that did not come from the application.

    Attributes:
        request_id: that it has.
    """

    error: ApiError
    request_id: str


def new_request_id() -> str:
    """An id for a request that has none, neither its client's nor that of an answer."""
    return "req-" + secrets.token_hex(12)


def json_response(value: Struct, headers: dict[str, str] | None = None) -> Response:
    """An HTTP answer with a struct in it."""
    return Response(to_json(value), headers=headers, media_type="application/json")


def is_of_messages(scope: Mapping[str, Any]) -> bool:
    """Whether a request is for Anthropic's API."""
    path: str = scope["path"]
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


class PartsResponse(Response):
    """A whole answer of JSON that is sent part by part: to send a hundred megabytes in one go would hold up others.

    Args:
        parts: of its body; each is let go when it is sent.
    """

    def __init__(self, parts: Sequence[bytes], headers: Mapping[str, str]) -> None:
        self._length = sum(map(len, parts))
        super().__init__(headers={**headers, "content-length": str(self._length)}, media_type="application/json")
        self._parts = deque(parts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with scope[HELD].holding(self._length):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while self._parts:
                await send({"type": "http.response.body", "body": self._parts.popleft(), "more_body": True})
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class ErrorResponse(Response):
    """The HTTP answer that carries an error, in the shape of the API that the request is for."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.body(), error.status, error.headers, media_type="application/json")
        self._error = error

    def take_message_shape(self) -> None:
        """Carry the error in Anthropic's shape instead of OpenAI's."""
        self.body = to_json(self._error.message_answer())
        self.headers["content-length"] = str(len(self.body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and leave word of it for the log."""
        scope[ERROR] = self._error
        if is_of_messages(scope):
            self.take_message_shape()
        await super().__call__(scope, receive, send)
