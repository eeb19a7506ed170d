"""The frontend's link to a core, where a test plays the core itself, in the same turn of the loop."""

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.link.core_link import CoreLink


class Link(CoreLink):
    """Stands in for a CoreLink: notes what the core is told, or refuses to while the core is away. It has no socket and
    no queues, so requests cannot be opened, and it asks nothing; a test calls `on_view` for what the core would send.

    Attributes:
        is_up: whether the core is there.
        num_tries: messages that were to be sent, so far.
        told: those that were.
    """

    is_up = True

    def __init__(self, *, is_up: bool = True) -> None:
        self.is_up = is_up
        self.on_view = lambda view: None
        self.num_tries = 0
        self.told: list[m.FrontendToCore] = []

    def send_views(self, wish: m.SendViews) -> None:
        """Note that Views are asked for."""
        self._note(wish)

    def revoke(self, client: str) -> None:
        """Note that a client is revoked."""
        self._note(m.Revoke(client=client))

    def _note(self, message: m.FrontendToCore) -> None:
        self.num_tries += 1
        if not self.is_up:
            raise RequestRejected("the scheduler cannot be reached at the moment", "unavailable")
        self.told.append(message)
