"""Which client sends an HTTP request, and what it may do."""

from fastapi import Request

from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError


def client_of(request: Request) -> ApiClient:
    """The client that a request comes from, as the middleware found it."""
    client: ApiClient = request.scope["baton.client"]
    return client


def require_admin(request: Request) -> ApiClient:
    """The client of a request that only operators may send. Raises ApiError for other clients."""
    client = client_of(request)
    if client.is_admin:
        return client
    if not client.id:
        message = "Without API keys only this machine may do this, at localhost or a loopback address, without a proxy."
        raise _forbidden(message)
    raise _forbidden("This API key is no administrator's; 'baton keys api NAME --admin' makes one that is.")


def require_status_reader(request: Request) -> None:
    """Raise ApiError if the client may not read what tells about all clients."""
    if not client_of(request).may_read_status:
        message = "This API key may not read /status and /metrics; 'baton keys api NAME --metrics' makes one that may."
        raise _forbidden(message)


def _forbidden(message: str) -> ApiError:
    return ApiError(403, message, code="forbidden")
