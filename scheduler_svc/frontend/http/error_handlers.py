"""Turns every error that a request can end in into an HTTP answer, in the shape of the API that the request is for."""

from collections.abc import Sequence

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from common.errors import RequestRejected
from scheduler_svc.frontend.errors import CLIENT_CLOSED_REQUEST, ApiError, ClientGone, internal_error
from scheduler_svc.frontend.http.plain_answers import ANSWER_ID, ErrorResponse
from scheduler_svc.frontend.requests.validation import nearest

_OF_OLLAMA = {
    "/api/chat": "/v1/chat/completions",
    "/api/generate": "/v1/completions",
    "/api/embed": "/v1/embeddings",
    "/api/embeddings": "/v1/embeddings",
    "/api/tags": "/v1/models",
    "/api/ps": "/v1/models",
    "/api/show": "/v1/models",
    "/api/version": "/version",
}
_OPENAPI_PATHS = ("/docs", "/redoc", "/openapi.json")
_MAIN_PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank"),
    *("/v1/models", "/v1/files", "/v1/batches"),
)


def install_error_handlers(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Make every error of `app` an `ErrorResponse`.

    Args:
        routes: of the app.
    """
    paths = _Paths(routes)

    async def on_api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return ErrorResponse(error)

    async def on_rejection(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRejected)
        return ErrorResponse(ApiError.of_rejection(error, request.scope.get(ANSWER_ID, "")))

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = ErrorResponse(paths.describe(request, error))
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


class _Paths:
    """Say what is there, to a client that asks for a path that is not."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._methods: dict[str, list[str]] = {}
        for route in routes:
            if isinstance(route, APIRoute) and not route.path.startswith("/page"):
                self._methods.setdefault(route.path, []).extend(sorted(route.methods or ()))

    def describe(self, request: Request, error: HTTPException) -> ApiError:
        """Return what a client is told instead of Starlette's words."""
        path = request.url.path
        match error.status_code:
            case 404:
                return ApiError(
                    404, f"There is no {path} here. {self._advice(path, request.method)}", code="unknown_url"
                )
            case 405:
                return ApiError(405, f"{request.method} is not allowed on {path}.", code="method_not_allowed")
            case _:
                return ApiError(error.status_code, str(error.detail))

    def _advice(self, path: str, method: str) -> str:
        if path in _OF_OLLAMA:
            return f"This is OpenAI's API, not Ollama's: use {self._named(_OF_OLLAMA[path], method)}."
        if path in _OPENAPI_PATHS:
            return "With --openapi the service describes its API at /docs and /openapi.json."
        if meant := nearest(path, self._methods):
            return f"Did you mean {self._named(meant, method)}?"
        return f"The API is at {', '.join(each for each in _MAIN_PATHS if each in self._methods)}."

    def _named(self, path: str, method: str) -> str:
        methods = self._methods[path]
        return f"{method if method in methods else methods[0]} {path}"
