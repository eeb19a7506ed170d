"""Connects to a service. `--help` does not come here, so it does not wait for httpx (a tenth of a second to import)."""

from typing import TYPE_CHECKING

from scheduler_svc.client.service_address import ServiceAddress

if TYPE_CHECKING:
    from scheduler_svc.client.http.api import Api


def connect(service: ServiceAddress) -> "Api":
    """A client for this service; use it as a context manager."""
    from scheduler_svc.client.http.api import Api  # noqa: PLC0415

    return Api(service)
