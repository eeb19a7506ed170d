"""Traces the requests that generate, embed or score: of other requests OpenTelemetry gets to know nothing.

Plain ASGI, because Starlette's BaseHTTPMiddleware would hide a client's disconnect from its stream. It stands behind
the check of API keys, so that only clients can make spans.
"""

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_svc.frontend.errors import CLIENT_CLOSED_REQUEST, ApiError
from scheduler_svc.frontend.http.plain_answers import ERROR, IS_CLIENT_GONE, MESSAGES_PATH
from scheduler_svc.frontend.http.rerank_api import RERANK_PATHS, SCORE_PATHS
from scheduler_svc.frontend.tracing import names
from scheduler_svc.frontend.tracing.life_spans import Attributes
from scheduler_svc.frontend.tracing.request_trace import TRACE, Parent, RequestTrace
from scheduler_svc.frontend.tracing.tracing import Tracing

MAX_HEADER_CHARACTERS = 512
OPERATIONS = {  # of the GenAI conventions, where they have one
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    MESSAGES_PATH: "chat",
    "/v1/embeddings": "embeddings",
    **dict.fromkeys(RERANK_PATHS, "rerank"),
    **dict.fromkeys(SCORE_PATHS, "score"),
}
RESUME_ROUTE = "/v1/requests/{request_id}/events"
_RESUME_PATH = re.compile(r"/v1/requests/[^/]+/events", re.ASCII)


class TraceRequests:
    """Puts a `RequestTrace` into the scope of a request, and ends it with the answer."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        trace = self._trace(scope) if scope["type"] == "http" else None
        if trace is None:
            await self._app(scope, receive, send)
            return
        scope[TRACE] = trace
        status = CLIENT_CLOSED_REQUEST

        async def traced(message: Message) -> None:
            nonlocal status
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]
                trace.attributes[names.STATUS] = status
            else:
                trace.sent()

        failure = ""
        try:
            await self._app(scope, receive, traced)
        except Exception as error:
            failure = type(error).__qualname__
            trace.attributes.setdefault(names.STATUS, 500)  # which it will be answered with
            raise
        finally:
            _note_end(trace, scope, status, failure)
            self._tracing.end(trace)

    def _trace(self, scope: Scope) -> RequestTrace | None:
        """A trace for a request, if it is one of those that are traced."""
        method, path = scope["method"], scope["path"]
        route, operation = path, OPERATIONS.get(path) if method == "POST" else None
        if method == "GET" and _RESUME_PATH.fullmatch(path):
            route, operation = RESUME_ROUTE, "resume"
        if operation is None:
            return None
        attributes: Attributes = {
            names.METHOD: method,
            names.ROUTE: route,
            names.PATH: path,
            names.SCHEME: scope.get("scheme", "http"),
        }
        if client := scope["baton.client"].name:
            attributes[names.CLIENT] = client
        return RequestTrace(self._tracing.spans, operation, _parent(Headers(scope=scope)), attributes)


def _parent(headers: Headers) -> Parent:
    """The span that a client names; none if it names several, or in more words than the standard allows."""
    traceparents, tracestate = headers.getlist("traceparent"), ",".join(headers.getlist("tracestate"))
    if len(traceparents) != 1 or len(traceparents[0]) > MAX_HEADER_CHARACTERS:
        return Parent()
    return Parent(traceparents[0], tracestate if len(tracestate) <= MAX_HEADER_CHARACTERS else "")


def _note_end(trace: RequestTrace, scope: Scope, status: int, failure: str) -> None:
    error: ApiError | None = scope.get(ERROR)
    if failure:
        trace.failed(failure, is_ours=True)
    elif error is not None:
        trace.failed(error.code or str(error.status), is_ours=error.status >= 500)
    elif scope.get(IS_CLIENT_GONE) or status == CLIENT_CLOSED_REQUEST:
        trace.failed(names.CLIENT_GONE, is_ours=False)
    elif status >= 400:
        trace.failed(str(status), is_ours=status >= 500)
