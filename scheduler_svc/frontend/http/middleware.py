"""What is checked before a request is read: its API key, or without API keys who sends it.

Plain ASGI, because Starlette's BaseHTTPMiddleware would hide a client's disconnect from its stream.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler_svc.frontend.api_keys import ApiClient, ApiKeys
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.callers import Callers, is_this_machine
from scheduler_svc.frontend.http.plain_answers import ErrorResponse

OPEN_PATHS = ("/health", "/ready")  # for probes, which have no keys
METRICS_PATH = "/metrics"
API_KEY_HEADER = "x-api-key"  # of Anthropic's clients
OPEN_METHODS = ("GET", "HEAD")  # those that take no body


class RequireApiKey:
    """Lets requests pass that carry one of the keys as `Authorization: Bearer KEY` or as `X-Api-Key: KEY`, as
    Anthropic's clients do; without keys, those that no foreign page sends (`callers.py`), and probes.

    A request that passes has its `ApiClient` in the scope, as `baton.client`. Any other is answered at once, its body
    is not read, and its connection is closed.

    Args:
        callers: tells senders apart where there are no keys.
        open_paths: those that need no key. If that of the metrics is one, what it tells of all clients is told to all.
    """

    def __init__(
        self, app: ASGIApp, api_keys: ApiKeys, callers: Callers, open_paths: Sequence[str] = OPEN_PATHS
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._keys = api_keys
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or 403, or pass on."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                scope["baton.client"] = (
                    self._client_by_key(scope, headers) if self._keys.are_required else self._caller(scope, headers)
                )
            except ApiError as error:
                error.headers["connection"] = "close"
                await ErrorResponse(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope, headers: Headers) -> ApiClient:
        is_probe = scope["path"] in OPEN_PATHS and scope["method"] in OPEN_METHODS
        if not is_probe:
            self._callers.check(scope, headers)
        is_admin, address = is_this_machine(scope, headers), self._callers.network_of(scope)
        return ApiClient("", "", 0, is_admin=is_admin, may_read_status=True, address=address)

    def _client_by_key(self, scope: Scope, headers: Headers) -> ApiClient:
        sent = _keys_in(headers)
        client = next(filter(None, map(self._keys.client_of, sent)), None)
        if scope["path"] in self._open_paths and scope["method"] in OPEN_METHODS:
            tells_of_all = scope["path"] == METRICS_PATH
            if client is None or (tells_of_all and not client.may_read_status):
                return ApiClient("", "", 0, is_admin=False, may_read_status=tells_of_all)
        if client is None:
            message = "Incorrect API key, or none: send 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'."
            if (expired := next(filter(None, map(self._keys.expired_client_of, sent)), None)) is not None:
                at = datetime.fromtimestamp(expired.expires_at, UTC).isoformat(timespec="seconds")
                message = f"The API key {expired.name!r} expired at {at}: ask this service's operator for another one."
            error = ApiError(401, message, code="invalid_api_key")
            error.headers["www-authenticate"] = "Bearer"
            raise error
        return client


def _keys_in(headers: Headers) -> list[str]:
    """The keys that a request carries."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    sent = [bearer] if scheme.lower() == "bearer" else []
    return [key.strip() for key in (*sent, *headers.getlist(API_KEY_HEADER)[:1])]
