"""What is checked before a request is read: its API key.

Plain ASGI, because Starlette's BaseHTTPMiddleware would hide a client's disconnect from its stream.
"""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler_svc.frontend.api_keys import ApiClient, ApiKeys
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.plain_answers import ErrorResponse

OPEN_PATHS = ("/health", "/ready")  # for probes, which have no keys
METRICS_PATH = "/metrics"
API_KEY_HEADER = "x-api-key"  # of Anthropic's clients
OPEN_METHODS = ("GET", "HEAD")  # those that take no body
ON_BEHALF_HEADERS = ("forwarded", "x-forwarded-for")  # a proxy sends these


class RequireApiKey:
    """Lets requests pass that carry one of the keys as `Authorization: Bearer KEY` or as `X-Api-Key: KEY`, as
    Anthropic's clients do; without keys, all of them.

    A request that passes has its `ApiClient` in the scope, as `baton.client`. Any other is answered at once, its body
    is not read, and its connection is closed.

    Args:
        open_paths: those that need no key. If that of the metrics is one, what it tells of all clients is told to all.
    """

    def __init__(self, app: ASGIApp, api_keys: ApiKeys, open_paths: Sequence[str] = OPEN_PATHS) -> None:
        self._app = app
        self._open_paths = open_paths
        self._keys = api_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or pass on."""
        if scope["type"] == "http":
            client = self._client(scope)
            if client is None:
                await _refuse(scope, receive, send)
                return
            scope["baton.client"] = client
        await self._app(scope, receive, send)

    def _client(self, scope: Scope) -> ApiClient | None:
        headers = Headers(scope=scope)
        if not self._keys.are_required:
            return ApiClient("", "", 0, is_admin=_is_this_machine(scope, headers), may_read_status=True)
        client = self._client_with_key(headers)
        if scope["path"] in self._open_paths and scope["method"] in OPEN_METHODS:
            tells_of_all = scope["path"] == METRICS_PATH
            if client is None or (tells_of_all and not client.may_read_status):
                return ApiClient("", "", 0, is_admin=False, may_read_status=tells_of_all)
        return client

    def _client_with_key(self, headers: Headers) -> ApiClient | None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        client = self._keys.client_of(key.strip()) if scheme.lower() == "bearer" else None
        if client is None and (own_key := headers.get(API_KEY_HEADER)) is not None:
            client = self._keys.client_of(own_key.strip())
        return client


def _is_this_machine(scope: Scope, headers: Headers) -> bool:
    """Whether the sender is on this machine, and does not send on behalf of another: a proxy's client, or a page of
    another service that a browser here shows."""
    if any(name in headers for name in ON_BEHALF_HEADERS):
        return False
    origin = headers.get("origin")
    if origin is not None and origin not in own_origins(headers.get("host", "")):
        return False
    host, _ = scope.get("client") or ("", 0)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_origins(host: str) -> tuple[str, ...]:
    """The origins that this service's own page has under the name that it was asked by; none under a name that only
    DNS makes this machine's, as then any page could be its."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        is_here = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        is_here = False
    return (f"http://{host}", f"https://{host}") if is_here else ()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    message = "Incorrect API key, or none: send 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'."
    error = ApiError(401, message, code="invalid_api_key")
    error.headers.update({"connection": "close", "www-authenticate": "Bearer"})
    await ErrorResponse(error)(scope, receive, send)
