"""Says which requests are noted in detail, those that generate, embed or score, and begins their traces.

Plain ASGI, because Starlette's BaseHTTPMiddleware would hide a client's disconnect from its stream. It stands after
the check of API keys, so that only clients can make spans. `traces.py` ends what begins here.
"""

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler_svc.frontend.http.plain_answers import MESSAGES_PATH
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
    """Puts a `RequestTrace` into the scope of a request."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and (trace := self._trace(scope)) is not None:
            scope[TRACE] = trace
        await self._app(scope, receive, send)

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
