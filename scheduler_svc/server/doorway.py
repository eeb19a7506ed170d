"""Where peers come in: the port, the numbers that peers get, and the keys that they have to prove."""

import itertools
import socket
from collections.abc import Iterable

from common.curve import ServerCurve
from scheduler_svc.server.curve_auth import RELOAD_INTERVAL_S, AllowList, KeyReader
from scheduler_svc.server.listener import Listener
from scheduler_svc.server.peer import PeerConnection
from scheduler_svc.server.zmtp.connection import Connection
from scheduler_svc.server.zmtp.mechanisms import ROUTER, CurveMechanism, Mechanism, NullMechanism, Role

STRANGER_MESSAGE_BYTES = 2**13  # a Hello has 3,000 at most


class Doorway:
    """A bound port.

    Args:
        endpoint: to bind.
        curve: lets only those in whose key is in its folder; None asks for no keys.
        role: what this port is to its peers; with keys always a ROUTER.
        listener: that is bound to the endpoint already; None binds it.
        reload_every_s: how often the folder is looked at.

    Attributes:
        endpoint: with the port that was picked.
    """

    def __init__(
        self,
        endpoint: str,
        curve: ServerCurve | None,
        role: Role = ROUTER,
        listener: Listener | None = None,
        reload_every_s: float = RELOAD_INTERVAL_S,
    ) -> None:
        assert curve is None or role is ROUTER
        self._curve = curve
        self._role = role
        self._allowed = AllowList(curve) if curve is not None else None
        self._allowed_version = 0
        self._numbers = itertools.count(1)
        self._listener = listener or Listener(endpoint)
        self.endpoint = self._listener.endpoint
        self._reader = None
        if self._allowed is not None:
            self._reader = KeyReader(self._allowed.reload, every_s=reload_every_s)

    @property
    def socket(self) -> socket.socket:
        """For a selector: readable when a connection waits."""
        return self._listener.socket

    @property
    def num_turned_away(self) -> int:
        """Connections that were turned away at once, so far."""
        return self._listener.num_turned_away

    @property
    def keys_failure(self) -> str:
        """Why the keys of peers cannot be read; empty if they can."""
        return self._allowed.failure if self._allowed is not None else ""

    @property
    def asks_for_keys(self) -> bool:
        """Whether a handshake takes the work of proving a key."""
        return self._curve is not None

    def accept(self, now: float) -> PeerConnection | None:
        """A connection that waits, if one is found. Raises OSError when files or memory are short."""
        accepted = self._listener.accept()
        if accepted is None:
            return None
        connected, address = accepted
        is_publisher = self._role.socket_type == b"PUB"
        connection = Connection(self._mechanism(), STRANGER_MESSAGE_BYTES, takes_subscriptions=is_publisher)
        return PeerConnection(next(self._numbers).to_bytes(8, "big"), connected, address, connection, now)

    def revoked(self, peers: Iterable[PeerConnection]) -> list[PeerConnection]:
        """Those of the peers whose key is no longer on the list."""
        if self._allowed is None or self._allowed_version == self._allowed.version:
            return []
        self._allowed_version = self._allowed.version
        return [p for p in peers if p.connection.is_ready and p.connection.key not in self._allowed]

    def close(self) -> None:
        """Let no more peers in."""
        self._listener.close()
        if self._reader is not None:
            self._reader.stop()

    def _mechanism(self) -> Mechanism:
        if self._curve is None or self._allowed is None:
            return NullMechanism(self._role)
        return CurveMechanism(self._curve.keys, self._allowed.__contains__)
