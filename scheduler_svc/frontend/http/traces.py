"""What is left of each HTTP request: the id in its answer, a count, a log line if it was refused (or in any case, with
`--access-log`), and the end of its trace.

Plain ASGI, because Starlette's BaseHTTPMiddleware would hide a client's disconnect from its stream. It stands before
everything else, so that it sees every answer.
"""

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.logging import QuietLog, get_logger
from scheduler_svc.frontend.errors import CLIENT_CLOSED_REQUEST, ApiError
from scheduler_svc.frontend.http.callers import client_address
from scheduler_svc.frontend.http.middleware import OPEN_PATHS
from scheduler_svc.frontend.http.plain_answers import (
    ANSWER,
    ANSWER_ID,
    ERROR,
    IS_CLIENT_GONE,
    IS_SUBMITTED,
    REFUSAL,
    REQUEST_ID_HEADER,
    is_of_messages,
    new_request_id,
)
from scheduler_svc.frontend.http.rate_limit_headers import rate_limit_headers
from scheduler_svc.frontend.link.request_counts import OTHER, RequestCounts
from scheduler_svc.frontend.requests.reader import LEFT_OUT
from scheduler_svc.frontend.tracing import access_log, names
from scheduler_svc.frontend.tracing.request_trace import TRACE, RequestTrace
from scheduler_svc.frontend.tracing.tracing import Tracing
from scheduler_svc.frontend_options import Network

MAX_LOGGED_CHARACTERS = 300
MAX_METHOD_CHARACTERS = 16
NAMED = ("request_id", "response_id")  # in paths
MESSAGE_REQUEST_ID_HEADER = "request-id"  # Anthropic's clients read it
LEFT_OUT_HEADER = "x-baton-left-out"
FAILED_WITHOUT_TOKEN = ("no_token", "grammar_too_complex")  # after it was accepted, although the status is a refusal's
_REQUEST_ID = re.compile(r"[!-~]{1,128}", re.ASCII)  # printable, and no longer: it is sent back and logged

log = get_logger(__name__)


class Traces:
    """Names, counts and logs the requests to an application.

    Args:
        tracing: ends the traces that `TraceRequests` has begun, and says whether each answer has a line; None for
            neither.
        trusted_proxies: networks of proxies that are believed whom they ask for.

    Attributes:
        routes: of the application. Their paths are what requests are counted by.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[BaseRoute],
        counts: RequestCounts,
        tracing: Tracing | None = None,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        self._app = app
        self.routes = routes
        self._counts = counts
        self._tracing = tracing
        self._trusted = trusted_proxies
        self._logs: dict[str, QuietLog] = {}  # by event and code, of which there are few

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and trace its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s = time.monotonic()
        own = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = own_id = own if _REQUEST_ID.fullmatch(own) else ""
        status = 0

        async def traced(message: Message) -> None:
            nonlocal request_id, status
            is_start = message["type"] == "http.response.start"
            if is_start:
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
                status = message["status"]
                if (refusal := scope.get(REFUSAL)) is not None:
                    status, request_id = refusal.error.status, refusal.request_id
                if (trace := scope.get(TRACE)) is not None:
                    trace.attributes[names.STATUS] = status
                self._answered(scope, status, request_id)
                message = {**message, "headers": headers.raw}
            await send(message)
            if not is_start and (trace := scope.get(TRACE)) is not None:
                trace.sent()

        failure = ""
        try:
            await self._app(scope, receive, traced)
        except Exception as error:
            failure = type(error).__qualname__
            raise
        finally:
            if not status:
                status = CLIENT_CLOSED_REQUEST
                if (refusal := scope.get(REFUSAL)) is not None:
                    status, request_id = refusal.error.status, refusal.request_id
                self._answered(scope, status, request_id)
            if self._tracing is not None:
                self._ended(self._tracing, scope, {"request": request_id, "status": status}, failure, begun_s)

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
        trace: RequestTrace | None = scope.get(TRACE)
        facts = {
            "request": request_id,
            "client": getattr(scope.get("baton.client"), "name", "") or client_address(scope, self._trusted) or "?",
            "method": scope["method"][:MAX_LOGGED_CHARACTERS],
            "path": scope["path"][:MAX_LOGGED_CHARACTERS],
            "status": status,
            "param": error.param if error else None,
            "reason": error.message[:MAX_LOGGED_CHARACTERS] if error else "",
        }
        if trace is not None and trace.trace_id:
            facts["trace_id"] = trace.trace_id
        quiet = self._logs.setdefault(f"{event} {code}", QuietLog(log, event, code=code))
        quiet.happened(**facts)

    def _ended(self, tracing: Tracing, scope: Scope, facts: dict[str, Any], failure: str, begun_s: float) -> None:
        """End what was noted of a request, whatever has ended it."""
        error, is_ours = _failure(scope, facts["status"], failure)
        trace: RequestTrace | None = scope.get(TRACE)
        if trace is not None:
            if facts["request"]:
                trace.attributes[names.REQUEST_ID] = (facts["request"],)
            if error:
                trace.failed(error, is_ours=is_ours)
        if not tracing.access_log:
            if trace is not None:
                tracing.end(trace)
            return
        facts |= {
            "id": scope.get(ANSWER_ID) or _named(scope),
            "key": getattr(scope.get("baton.client"), "name", ""),
            "address": client_address(scope, self._trusted),
            "method": scope["method"][:MAX_METHOD_CHARACTERS],
            "endpoint": self._endpoint(scope),
            "error": error,
            "total_s": round(time.monotonic() - begun_s, 4),
        }
        if trace is not None:
            tracing.end(trace, facts)
        else:
            access_log.write(facts)

    def _endpoint(self, scope: Scope) -> str:
        """The path of the route that takes the request: not the path that was asked for, of which there is no end."""
        route = scope.get("route")
        if route is None:  # it was answered before any was looked for
            route = next((route for route in self.routes if route.matches(scope)[0] is not Match.NONE), None)
        return getattr(route, "path_format", OTHER)


def _failure(scope: Scope, status: int, failure: str) -> tuple[str, bool]:
    """Return the type of the error that a request has ended in, empty without one, and whether that is our fault."""
    error: ApiError | None = scope.get(ERROR)
    if failure:
        return failure, True
    if error is not None:
        return error.code or str(error.status), error.status >= 500
    if scope.get(IS_CLIENT_GONE) or status == CLIENT_CLOSED_REQUEST:
        return names.CLIENT_GONE, False
    return (str(status), status >= 500) if status >= 400 else ("", False)


def _named(scope: Scope) -> str:
    """Return the id of the request or the response that a path names; empty if it names none."""
    named: str = next((value for name, value in scope.get("path_params", {}).items() if name in NAMED), "")
    return named[:MAX_LOGGED_CHARACTERS]
