"""Where the service is, and how long to wait for it."""

from dataclasses import dataclass

from scheduler_svc.client.clock import Clock

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class ServiceAddress:
    """Which service to talk to, and how long to wait for it.

    Attributes:
        url: without a slash and without /v1 at the end.
        api_key: sent as a bearer token; None sends none.
        timeout_s: longest time without a byte from the service; the comments of a stream that waits are bytes too.
        reconnect_timeout_s: how long a request that the service may have waits for the service; 0 does not wait.
        clock: by which it waits between two tries and two looks; time-outs of sockets are the machine's.
    """

    url: str = DEFAULT_URL
    api_key: str | None = None
    timeout_s: float = 600.0
    reconnect_timeout_s: float = 60.0
    clock: Clock = Clock()  # noqa: RUF009  (it has no state)
