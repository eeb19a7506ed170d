"""A port without keys at which few peers are served, each with frames and not with Baton's messages.

Like `router.py` it speaks ZeroMQ's protocol itself (docs/security.md has why). A peer is a stranger, with little memory
and for a short time, until it has said something; then it is a member, of which there are few. A member that is of no
use gives its place to the next one that comes, and one whose machine is gone is noticed by TCP.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from common.logging import QuietLog, get_logger
from scheduler_svc.server.connections import Connections
from scheduler_svc.server.doorway import Doorway
from scheduler_svc.server.peer import PeerConnection
from scheduler_svc.server.strangers import StrangerBudget
from scheduler_svc.server.zmtp.frames import ZmtpError
from scheduler_svc.server.zmtp.mechanisms import Role

MAX_MEMBERS = 32  # a gateway has a handful of replicas
MESSAGES_AT_ONCE = 64  # in what was read of one peer at once: these peers have little to say
# Half a minute until a peer is cut off that does not answer, or takes nothing of what waits for it. Linux has them all.
_TIMEOUTS = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))

log = get_logger(__name__)


class OpenPort:
    """A bound socket.

    Args:
        endpoint: to bind.
        role: what this end is to its peers.
        is_of_use: whether a member wants something that comes from here; one that does not may have to go.
        max_unsent_bytes: that wait for one member when more is sent to it.
        clock: seconds of a monotonic clock.
        max_members: that are served at once.

    Attributes:
        endpoint: with the port that was picked.
    """

    def __init__(
        self,
        endpoint: str,
        role: Role,
        is_of_use: Callable[[PeerConnection], bool],
        max_unsent_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        max_members: int = MAX_MEMBERS,
    ) -> None:
        self._connections = Connections(Doorway(endpoint, None, role), StrangerBudget())
        self._is_of_use = is_of_use
        self._max_unsent_bytes = max_unsent_bytes
        self._clock = clock
        self._max_members = max_members
        self._members: dict[bytes, PeerConnection] = {}
        self._turned_away = QuietLog(log, "connection closed: it is of no use at this port")
        self.endpoint = self._connections.endpoint

    def fileno(self) -> int:
        """For a poller: readable when there is something to receive or to send."""
        return self._connections.fileno()

    def receive(self) -> Iterator[tuple[PeerConnection, list[bytes]]]:
        """What members have said since the last call; the frames of each message."""
        now = self._clock()
        self._connections.look_after(now)
        for peer in self._connections.read(now):
            for frames in self._messages(peer):
                if self._admit(peer):
                    yield peer, frames
            if peer.is_at_end:
                self._connections.drop(peer)

    def members(self) -> list[PeerConnection]:
        """Those that are served."""
        self._members = {number: peer for number, peer in self._members.items() if peer.is_open}
        return list(self._members.values())

    def has_room(self, peer: PeerConnection) -> bool:
        """Whether more can be sent to a member without keeping too much."""
        return not peer.is_full and peer.num_unsent_bytes < self._max_unsent_bytes

    def send(self, peer: PeerConnection, data: bytes) -> None:
        """Send an encoded message, as soon as the connection takes it."""
        if peer.is_open:
            self._connections.write(peer, data)

    def refuse(self, peer: PeerConnection, reason: str) -> None:
        """Close a connection."""
        self._turned_away.happened(address=peer.address, reason=reason)
        self._connections.drop(peer)

    def close(self) -> None:
        """Close the socket; what is queued has a moment to leave."""
        self._connections.close()

    def _messages(self, peer: PeerConnection) -> Iterator[list[bytes]]:
        for _ in range(MESSAGES_AT_ONCE):
            frames = self._next_message(peer)
            if frames is None:
                return
            yield frames
        if self._next_message(peer) is not None:
            self.refuse(peer, f"more than {MESSAGES_AT_ONCE} messages at once")

    def _next_message(self, peer: PeerConnection) -> list[bytes] | None:
        """What a peer has said next; None if that is nothing, or its connection is closed."""
        if not peer.is_open:
            return None
        connection = peer.connection
        steps = connection.num_handshake_steps
        try:
            frames = connection.next_message(answers=not peer.has_unsent)
        except ZmtpError as error:
            with suppress(OSError):
                peer.write(connection.take_output())
            self.refuse(peer, str(error))
            return None
        steps = connection.num_handshake_steps - steps
        self._connections.count_work(peer, handshake_steps=steps, messages=frames is not None)
        if output := connection.take_output():
            self._connections.write(peer, output)
        return frames

    def _admit(self, peer: PeerConnection) -> bool:
        """Whether the peer is a member, from now on at the latest."""
        if not peer.is_open:  # it broke when its handshake was answered, and has said something before
            return False
        if peer.is_admitted:
            return True
        if len(members := self.members()) >= self._max_members:
            useless = next((member for member in members if not self._is_of_use(member)), None)
            self.refuse(useless or peer, f"{self._max_members} are served already")
            if useless is None:
                return False
        self._connections.admit(peer)
        if peer.is_open:
            self._members[peer.number] = peer
            _limit_silence(peer.socket)
        return peer.is_open


def _limit_silence(connected: socket.socket) -> None:
    if connected.family != socket.AF_UNIX:
        for name, value in _TIMEOUTS:
            with suppress(OSError, AttributeError):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
