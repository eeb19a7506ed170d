"""What is left of each HTTP request: the id in its answer, a count, and a log line if it was refused.

Plain ASGI, because Starlette's BaseHTTPMiddleware would hide a client's disconnect from its stream. It stands before
everything else, so that it sees every answer.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.logging import QuietLog, get_logger
from scheduler_svc.frontend.errors import CLIENT_CLOSED_REQUEST, ApiError
from scheduler_svc.frontend.http.middleware import OPEN_PATHS
from scheduler_svc.frontend.http.plain_answers import (
    ANSWER,
    ANSWER_ID,
    ERROR,
    IS_SUBMITTED,
    REQUEST_ID_HEADER,
    is_of_messages,
    new_request_id,
)
from scheduler_svc.frontend.http.rate_limit_headers import rate_limit_headers
from scheduler_svc.frontend.link.request_counts import OTHER, RequestCounts
from scheduler_svc.frontend.requests.reader import LEFT_OUT

MAX_LOGGED_CHARACTERS = 300
MESSAGE_REQUEST_ID_HEADER = "request-id"  # Anthropic's clients read it
LEFT_OUT_HEADER = "x-baton-left-out"
FAILED_WITHOUT_TOKEN = ("no_token", "grammar_too_complex")  # after it was accepted, although the status is a refusal's
_REQUEST_ID = re.compile(r"[!-~]{1,128}", re.ASCII)  # printable, and no longer: it is sent back and logged

log = get_logger(__name__)


class Traces:
    """Names, counts and logs the requests to an application.

    Attributes:
        routes: of the application. Their paths are what requests are counted by.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute], counts: RequestCounts) -> None:
        self._app = app
        self.routes = routes
        self._counts = counts
        self._logs: dict[str, QuietLog] = {}  # by event and code, of which there are few

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and trace its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        own_id = own if _REQUEST_ID.fullmatch(own) else ""
        is_answered = False

        async def traced(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                headers = MutableHeaders(raw=list(message["headers"]))
                headers[REQUEST_ID_HEADER] = request_id = (
                    own_id or headers.get(REQUEST_ID_HEADER) or scope.get(ANSWER_ID) or new_request_id()
                )
                if is_of_messages(scope):
                    headers[MESSAGE_REQUEST_ID_HEADER] = request_id
                if LEFT_OUT in scope:
                    headers[LEFT_OUT_HEADER] = ", ".join(scope[LEFT_OUT])
                if (answer := scope.get(ANSWER)) is not None and answer.rate_limits is not None:
                    now, is_of = datetime.now(UTC), is_of_messages(scope)
                    headers.update(rate_limit_headers(answer.rate_limits, now, is_of_messages=is_of))
                self._answered(scope, message["status"], request_id)
                message = {**message, "headers": headers.raw}
            await send(message)

        try:
            await self._app(scope, receive, traced)
        finally:
            if not is_answered:
                self._counts.answered(self._endpoint(scope), CLIENT_CLOSED_REQUEST)

    def _answered(self, scope: Scope, status: int, request_id: str) -> None:
        self._counts.answered(self._endpoint(scope), status)
        if status < 400 or status == CLIENT_CLOSED_REQUEST or scope["path"] in OPEN_PATHS:
            return
        error: ApiError | None = scope.get(ERROR)
        code = (error.code if error else None) or f"status_{status}"
        is_refusal = status == 503 or (status < 500 and code not in FAILED_WITHOUT_TOKEN)
        event = "request refused" if is_refusal else "request failed"
        if not scope.get(IS_SUBMITTED):  # else the core refused or failed it, and counts that
            self._counts.refused(code)
        client = getattr(scope.get("baton.client"), "name", "") or (scope.get("client") or ("?",))[0]
        facts = {
            "request": request_id,
            "client": client,
            "method": scope["method"][:MAX_LOGGED_CHARACTERS],
            "path": scope["path"][:MAX_LOGGED_CHARACTERS],
            "status": status,
            "param": error.param if error else None,
            "reason": error.message[:MAX_LOGGED_CHARACTERS] if error else "",
        }
        quiet = self._logs.setdefault(f"{event} {code}", QuietLog(log, event, code=code))
        quiet.happened(**facts)

    def _endpoint(self, scope: Scope) -> str:
        """The path of the route that takes the request: not the path that was asked for, of which there is no end."""
        route = scope.get("route")
        if route is None:  # it was answered before any was looked for
            route = next((route for route in self.routes if route.matches(scope)[0] is not Match.NONE), None)
        return getattr(route, "path_format", OTHER)
