"""Turns every error that a request can end in into an HTTP answer in OpenAI's shape."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from common.errors import RequestRejected
from scheduler_svc.frontend.errors import CLIENT_CLOSED_REQUEST, ApiError, ClientGone, internal_error
from scheduler_svc.frontend.http.responses import error_response

_CODE_OF_PYDANTIC_TYPE = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported_parameter": "unsupported_parameter",
    "json_invalid": "invalid_json",
}


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` answer in OpenAI's shape."""

    async def on_api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error_response(error)

    async def on_rejection(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRejected)
        return error_response(ApiError.of_rejection(error))

    async def on_validation_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(describe_validation(error.errors()))

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = error_response(_describe_http(request, error))
        response.headers.update(error.headers or {})
        return response

    async def on_client_gone(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def on_anything_else(_: Request, __: Exception) -> Response:
        return error_response(internal_error())  # uvicorn logs the traceback; the client gets none

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(RequestRejected, on_rejection)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientGone, on_client_gone)
    app.add_exception_handler(Exception, on_anything_else)


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
