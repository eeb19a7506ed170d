"""Every error a client sees, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from common.errors import RequestRejected

CLIENT_CLOSED_REQUEST = 499  # nginx's number for a client that hung up; nobody is left to read it
RETRY_AFTER_S = 1
REQUEST_ID_HEADER = "x-request-id"

_STATUS_OF_CODE = {
    "invalid_value": 400,
    "context_length_exceeded": 400,
    "request_not_found": 404,
    "reader_too_slow": 408,
    "request_exists": 409,
    "taken_over": 409,
    "queue_full": 429,
    "too_many_requests": 429,
    "cancelled": CLIENT_CLOSED_REQUEST,
    "internal_error": 500,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
_CODE_OF_PYDANTIC_TYPE = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported_parameter": "unsupported_parameter",
    "json_invalid": "invalid_json",
}


class ApiError(Exception):
    """An error answer. `param` names the request's parameter that is at fault, if one is."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = {"retry-after": str(RETRY_AFTER_S)} if retry else {}

    @classmethod
    def of_rejection(cls, rejected: RequestRejected) -> "ApiError":
        """The answer for a request that the core, or the link to it, refused or failed."""
        status = _STATUS_OF_CODE.get(rejected.code, 500)
        return cls(status, str(rejected), code=rejected.code, retry=status in (429, 503))

    def body(self) -> bytes:
        """The JSON that describes it."""
        # What clients sent stands in messages, and may be text that UTF-8 cannot say (lone surrogates).
        message = self.message.encode(errors="replace").decode()
        error = {"message": message, "type": _type_of(self.status), "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        """The HTTP answer that says it."""
        return Response(self.body(), self.status, self.headers, media_type="application/json")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` answer in OpenAI's shape."""

    async def on_api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response()

    async def on_rejection(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRejected)
        return ApiError.of_rejection(error).response()

    async def on_validation_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return describe_validation(error.errors()).response()

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = _describe_http(request, error).response()
        response.headers.update(error.headers or {})
        return response

    async def on_client_gone(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def on_anything_else(_: Request, __: Exception) -> Response:
        return internal_error().response()  # uvicorn logs the traceback; the client gets none

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(RequestRejected, on_rejection)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientGone, on_client_gone)
    app.add_exception_handler(Exception, on_anything_else)


def internal_error() -> ApiError:
    """What a client is told about a fault of ours."""
    return ApiError(500, "The server had an error; its log says more.", code="internal_error")


def describe_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """One readable sentence from pydantic's list of errors."""
    first = errors[0]
    path = [part for part in first["loc"] if part != "body"]
    kind = first["type"]
    if kind == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"The body is not valid JSON: {reason} at byte {path[-1]}.", code="invalid_json")
    if not path:
        return ApiError(400, "The body must be a JSON object, sent as application/json.", code="invalid_type")
    param = _path(path)
    code = _CODE_OF_PYDANTIC_TYPE.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    match kind:
        case "missing":
            message = f"Missing required parameter: '{param}'."
        case "extra_forbidden":
            message = f"Unknown parameter: '{param}'."
        case _:
            message = f"Invalid value for '{param}': {first['msg']}."
    if len(errors) > 1:
        message += f" And {len(errors) - 1} more like it."
    return ApiError(400, message, code=code, param=param)


def _path(parts: Sequence[str | int]) -> str:
    """`messages[0].content`"""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def _describe_http(request: Request, error: HTTPException) -> ApiError:
    match error.status_code:
        case 404:
            return ApiError(404, f"There is no {request.url.path} here.", code="unknown_url")
        case 405:
            return ApiError(405, f"{request.method} is not allowed on {request.url.path}.", code="method_not_allowed")
        case _:
            return ApiError(error.status_code, str(error.detail))


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
