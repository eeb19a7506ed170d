"""Who sends an HTTP request, and what he may do."""

from fastapi import Request

from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError


def client_of(request: Request) -> ApiClient:
    """The client that a request comes from, as middleware found out."""
    client: ApiClient = request.scope["baton.client"]
    return client


def require_admin(request: Request) -> ApiClient:
    """The same for what only operators may do. Raises ApiError for others."""
    client = client_of(request)
    if client.is_admin:
        return client
    if not client.name:
        raise _forbidden("Without API keys only this machine may do this, over loopback and not through a proxy.")
    raise _forbidden("This API key is no administrator's; 'baton keys api NAME --admin' makes one that is.")


def require_status_reader(request: Request) -> None:
    """Raise the ApiError of a client that may not see what tells of all clients."""
    if not client_of(request).may_read_status:
        message = "This API key may not read /status and /metrics; 'baton keys api NAME --metrics' makes one that may."
        raise _forbidden(message)


def _forbidden(message: str) -> ApiError:
    return ApiError(403, message, code="forbidden")
