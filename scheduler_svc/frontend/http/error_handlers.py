"""Turns every error that a request can end in into an HTTP answer, in the shape of the API that the request is for."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from common.errors import RequestRejected
from scheduler_svc.frontend.errors import CLIENT_CLOSED_REQUEST, ApiError, ClientGone, internal_error
from scheduler_svc.frontend.http.plain_answers import ANSWER_ID, ErrorResponse


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` an `ErrorResponse`."""

    async def on_api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return ErrorResponse(error)

    async def on_rejection(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRejected)
        return ErrorResponse(ApiError.of_rejection(error, request.scope.get(ANSWER_ID, "")))

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = ErrorResponse(_describe_http(request, error))
        response.headers.update(error.headers or {})
        return response

    async def on_invalid_query(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        param = str(first["loc"][-1])
        return ErrorResponse(
            ApiError(400, f"Invalid value for '{param}': {first['msg']}.", code="invalid_value", param=param)
        )

    async def on_client_gone(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def on_anything_else(_: Request, __: Exception) -> Response:
        return ErrorResponse(internal_error())  # uvicorn logs the traceback; the client gets none

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(RequestRejected, on_rejection)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_invalid_query)
    app.add_exception_handler(ClientGone, on_client_gone)
    app.add_exception_handler(Exception, on_anything_else)


def _describe_http(request: Request, error: HTTPException) -> ApiError:
    match error.status_code:
        case 404:
            return ApiError(404, f"There is no {request.url.path} here.", code="unknown_url")
        case 405:
            return ApiError(405, f"{request.method} is not allowed on {request.url.path}.", code="method_not_allowed")
        case _:
            return ApiError(error.status_code, str(error.detail))
