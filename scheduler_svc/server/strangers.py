"""Peers that the core does not know (yet): how many there may be, for how long, and how much work they may cause.

Pure: the time is the caller's.
"""

from collections import OrderedDict
from collections.abc import Iterator

from scheduler_svc.core.actions import Peer
from scheduler_svc.server.peer import PeerConnection

MAX_STRANGERS = 256
PATIENCE_S = 10.0  # from the connection to the admission: a handshake and a Hello
UNITS_A_SECOND = 1500  # a unit takes about 100 us of the core, so strangers get a seventh of its time
BURST = 300
ACCEPT, TURN_AWAY, READ, MESSAGE, ADMIT = 2, 0.1, 1, 1, 6  # units; the last includes what the core does for a member
HANDSHAKE_STEP = 4  # for keys


class StrangerBudget:
    """A token bucket.

    Args:
        units_a_second: that it is filled with.
        burst: units that may be spent at once.
    """

    def __init__(self, units_a_second: float = UNITS_A_SECOND, burst: float = BURST) -> None:
        self._units_a_second = units_a_second
        self._burst = burst
        self._left = burst
        self._refilled_at = float("-inf")

    @property
    def is_spent(self) -> bool:
        """Whether strangers have to wait."""
        return self._left <= 0

    def refill(self, now: float) -> None:
        """Time has passed."""
        self._left = min(self._burst, self._left + (now - self._refilled_at) * self._units_a_second)
        self._refilled_at = now

    def spend(self, units: float) -> None:
        """Work was done. It may have been more than was left: then the next has to wait for longer."""
        self._left -= units

    def exhaust(self) -> None:
        """Nothing more can be done for strangers for a while."""
        self._left = min(self._left, 0.0) - self._burst


class Strangers:
    """The strangers of one port, the one that has been here longest first.

    Args:
        max_files: that this process may have open; strangers may take a quarter of them.
    """

    def __init__(self, max_files: int) -> None:
        self._limit = min(MAX_STRANGERS, max_files // 4)
        self._peers: OrderedDict[Peer, PeerConnection] = OrderedDict()

    def add(self, peer: PeerConnection, now: float) -> None:
        """A peer has connected, or is not a member any more."""
        peer.since = now
        self._peers[peer.number] = peer

    def remove(self, peer: PeerConnection) -> None:
        """A peer has become a member, or is gone."""
        self._peers.pop(peer.number, None)

    def superfluous(self, now: float) -> Iterator[PeerConnection]:
        """Who has to go, while the caller removes them: those beyond the limit, and those that were here too long."""
        while self._peers:
            oldest = self.oldest()
            if oldest is None or (len(self._peers) <= self._limit and now - oldest.since <= PATIENCE_S):
                return
            yield oldest

    def oldest(self) -> PeerConnection | None:
        """Who has been here longest."""
        return next(iter(self._peers.values()), None)
