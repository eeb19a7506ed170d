"""Who sends an HTTP request."""

from fastapi import Request

from scheduler_svc.frontend.api_keys import ApiClient


def client_of(request: Request) -> ApiClient:
    """The client that a request comes from, as middleware found out."""
    client: ApiClient = request.scope["baton.client"]
    return client
