"""Every error a client sees: in OpenAI's shape, {"error": {"message", "type", "param", "code"}}, or in Anthropic's,
{"type": "error", "error": {"type", "message", "details"}}."""

import random

import msgspec
from msgspec import Struct

from common.errors import RequestRejected

CLIENT_CLOSED_REQUEST = 499  # nginx's number for a client that hung up; no reader is left
RETRY_AFTER_S = 1
SHOULD_RETRY_HEADER = "x-should-retry"  # openai's clients follow it; by themselves they would try 409 and 504 again
MAX_MESSAGE_CHARACTERS, MAX_PARAM_CHARACTERS = 1000, 200  # they quote what clients sent

_STATUS_OF_CODE = {
    "invalid_value": 400,
    "context_length_exceeded": 400,
    "request_not_found": 404,
    "reader_too_slow": 408,
    "request_exists": 409,
    "taken_over": 409,
    "tokenizer_changed": 409,
    "queue_full": 429,
    "too_many_requests": 429,
    "rate_limit_exceeded": 429,
    "cancelled": CLIENT_CLOSED_REQUEST,
    "internal_error": 500,
    "unavailable": 503,
    "no_executor": 503,
    "task_not_served": 400,
    "capacity_lost": 503,
    "grammars_lost": 503,
    "no_token": 422,  # to try again would end the same
    "grammar_too_complex": 422,  # likewise
    "deadline_exceeded": 504,
}
_MESSAGE_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessageErrorDetails(Struct, frozen=True):
    """What Anthropic's shape has no place for of its own."""

    error_code: str | None
    param: str | None


class MessageError(Struct, frozen=True):
    """What went wrong, in Anthropic's shape."""

    type: str
    message: str
    details: MessageErrorDetails


class MessageErrorAnswer(Struct, frozen=True, tag_field="type", tag="error"):
    """The answer of every request of Anthropic's API that is refused or fails."""

    error: MessageError


class ApiError(Exception):
    """An error answer. `param` names the parameter of the request that is at fault, if there is one.

    Args:
        retry: whether the same request may succeed a little later.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:MAX_MESSAGE_CHARACTERS]
        self.code = code
        self.param = None if param is None else param[:MAX_PARAM_CHARACTERS]
        self.headers = {SHOULD_RETRY_HEADER: "true" if retry else "false"}
        if retry:
            self.headers["retry-after"] = _spread(RETRY_AFTER_S)

    @classmethod
    def of_rejection(cls, rejected: RequestRejected, request_id: str = "") -> "ApiError":
        """The answer for a request that the core, or the link to it, refused or failed.

        Args:
            request_id: as the client knows it; the core's name for it is not shown.
        """
        status = _STATUS_OF_CODE.get(rejected.code, 500)
        message = str(rejected)
        if rejected.code == "request_exists" and request_id:
            message = f"There is a request {request_id!r} already: its 'request_id' is in use."
        error = cls(status, message, code=rejected.code, retry=status in (429, 503))
        if rejected.code == "rate_limit_exceeded":  # of one client, for whom this number is exact
            error.headers["retry-after"] = str(rejected.retry_after_s)
        elif rejected.retry_after_s:
            error.headers["retry-after"] = _spread(rejected.retry_after_s)
        return error

    def body(self) -> bytes:
        """The JSON body of the answer, in OpenAI's shape."""
        error = {"message": self._text, "type": _type_of(self.status), "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def message_answer(self) -> MessageErrorAnswer:
        """The answer in Anthropic's shape."""
        details = MessageErrorDetails(self.code, self.param)
        return MessageErrorAnswer(MessageError(_message_type_of(self.status), self._text, details))

    @property
    def _text(self) -> str:
        # Messages quote what clients sent, which may be text that UTF-8 cannot encode (lone surrogates).
        return self.message.encode(errors="replace").decode()


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def internal_error() -> ApiError:
    """What a client is told about a fault of the server."""
    return ApiError(500, "The server had an error; its log says more.", code="internal_error")


def _spread(least_s: int) -> str:
    """Return so many seconds, or up to a quarter more: clients that are refused together are not to return together."""
    return str(random.randint(least_s, least_s + max(least_s // 4, 1)))  # noqa: S311 (no secret)


def _type_of(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case _ if status >= 500:
            return "server_error"
        case _:
            return "invalid_request_error"


def _message_type_of(status: int) -> str:
    return _MESSAGE_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
