"""Keys of a service as a test wants them."""

from typing import Any

from scheduler_svc.frontend.api_keys import ApiClient, ApiKeys


class Keys(ApiKeys):
    """Stands in for the file of keys: every id has a key, but for those that were taken. It reads no file, and knows no
    request's key.

    Args:
        taken: ids that have none.
        facts: of every client.

    Attributes:
        num_missing: times that one without a key was asked for.
        revoked: clients of which `newly_revoked` tells next.
    """

    def __init__(self, *taken: str, **facts: Any) -> None:
        super().__init__()
        self.taken = {*taken}
        self.num_missing = 0
        self.revoked: list[ApiClient] = []
        self._facts = {"max_open_requests": 0, "is_admin": False, "may_read_status": False} | facts

    def client(self, client_id: str) -> ApiClient:
        """The client with this id."""
        return ApiClient(client_id, f"{client_id}'s name", **self._facts)

    def of_id(self, client_id: str) -> ApiClient | None:
        """As the real ones tell it."""
        self.num_missing += client_id in self.taken
        return None if client_id in self.taken else self.client(client_id)

    def newly_revoked(self) -> list[ApiClient]:
        """Those of a test, once."""
        revoked, self.revoked = self.revoked, []
        return revoked
