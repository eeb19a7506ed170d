"""The core's socket for many peers. It speaks ZeroMQ's protocol itself, because no stranger may meet libzmq's ROUTER.

A peer that has connected is a *stranger*: it may take little memory, few files and a bounded share of the core's time,
and not for long. The core admits the peers that it knows. Peers are numbered here, in the order in which they
connected; nothing that a peer sends can choose, or predict, what it or another one is called. docs/security.md says
why, and what else was weighed.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic

from common import messages as m
from common.curve import ServerCurve
from common.errors import WireError
from common.logging import DropLog, QuietLog, get_logger
from common.wire import MAX_MESSAGE_BYTES, Codec, Incoming, VersionError
from scheduler_svc.core.actions import Peer, Sent
from scheduler_svc.server.connections import Connections
from scheduler_svc.server.doorway import STRANGER_MESSAGE_BYTES, Doorway
from scheduler_svc.server.peer import READ_BYTES, PeerConnection
from scheduler_svc.server.strangers import StrangerBudget
from scheduler_svc.server.zmtp.frames import ZmtpError
from scheduler_svc.server.zmtp.mechanisms import RefusedError

log = get_logger(__name__)

MESSAGES_A_TURN = 256  # so that a flood from one side does not keep the loop from its other work
MESSAGES_A_PEER = 32  # of one peer in a turn


class Router(Generic[Incoming]):
    """A bound socket that decodes what arrives and counts what it drops.

    Args:
        endpoint: to bind, `tcp://host:port` (port 0 picks one) or `ipc://path`.
        incoming: the union of messages that may arrive.
        drops: counts and logs what is dropped.
        on_version: called with the peer for a message of another protocol version.
        curve: refuses peers whose key is not in its folder; None asks for no keys.
        max_message_bytes: of a message from a peer that was admitted. A stranger may send STRANGER_MESSAGE_BYTES.
        trusts_all: whether every peer is admitted at once, as on a socket that only this user reaches.
        connections: of a port that is bound already; None binds the endpoint.
        clock: seconds of a monotonic clock.

    Attributes:
        endpoint: where peers connect to, with the port that was picked.
    """

    def __init__(
        self,
        endpoint: str,
        incoming: Any,
        drops: DropLog,
        on_version: Callable[[Peer, str, VersionError], None] | None = None,
        *,
        curve: ServerCurve | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        trusts_all: bool = False,
        connections: Connections | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._codec: Codec[Incoming] = Codec(incoming)
        self._drops = drops
        self._refusals = QuietLog(log, "executor refused: its key is not on the list")
        self._broken = QuietLog(log, "connection closed: it is none of ours")
        self._on_version = on_version
        self._max_message_bytes = max_message_bytes
        self._trusts_all = trusts_all
        self._clock = clock
        if connections is None:
            connections = Connections(Doorway(endpoint, curve), StrangerBudget())
        self._connections = connections
        self.endpoint = self._connections.endpoint
        self._unread: OrderedDict[Peer, PeerConnection] = OrderedDict()  # who said more than one turn takes

    def fileno(self) -> int:
        """For a poller: readable when there is something to receive or to send."""
        return self._connections.fileno()

    @property
    def keys_failure(self) -> str:
        """Why the keys of peers cannot be read; empty if they can."""
        return self._connections.keys_failure

    @property
    def has_unread(self) -> bool:
        """Whether `receive` has more to give than the poller knows of."""
        return any(not self._connections.has_to_wait(peer) for peer in self._unread.values())

    def receive(self) -> Iterator[tuple[Peer, Incoming]]:
        """The messages that have arrived, with their senders; at most `MESSAGES_A_TURN`."""
        now = self._clock()
        self._connections.look_after(now)
        left = MESSAGES_A_TURN
        for peer in self._with_bytes(now):
            self._unread.setdefault(peer.number, peer)
            peer.has_unread = True
            for _ in range(min(MESSAGES_A_PEER, left)):
                if self._connections.has_to_wait(peer):
                    break
                if (frames := self._next_message(peer)) is None:
                    peer.has_unread = False
                    break
                left -= 1
                if (message := self._decode(peer, frames)) is not None:
                    yield peer.number, message
            else:
                if left:  # others that have waited come before it now
                    self._unread.move_to_end(peer.number)
            if not peer.has_unread:
                del self._unread[peer.number]
                if peer.is_at_end:
                    self._connections.drop(peer)

    def send(self, peer: Peer, message: m.Message) -> Sent:
        """Send without waiting."""
        found = self._connections.get(peer)
        if found is None or not found.connection.is_ready:
            return Sent.GONE
        if found.is_full:
            return Sent.FULL
        self._connections.write(found, found.connection.encode(self._codec.encode(message)))
        return Sent.OK if found.is_open else Sent.GONE

    def admit(self, peer: Peer) -> None:
        """The core knows this peer: it is no stranger any more."""
        if (found := self._connections.get(peer)) is not None and not found.is_admitted:
            self._connections.admit(found)
            found.connection.limit(self._max_message_bytes)

    def dismiss(self, peer: Peer) -> None:
        """The core has nothing more to do with this peer: a stranger again, who may not have left too much here."""
        if (found := self._connections.get(peer)) is not None and found.is_admitted and not self._trusts_all:
            self._connections.dismiss(found, self._clock())
            found.connection.limit(STRANGER_MESSAGE_BYTES)
            waiting = READ_BYTES if found.has_unread else 0  # whole messages, perhaps, which are looked at in any case
            if found.connection.num_kept_bytes > STRANGER_MESSAGE_BYTES + waiting:
                self._refuse(
                    found, ZmtpError(f"more than {STRANGER_MESSAGE_BYTES} bytes of a message at its dismissal")
                )

    def disconnect(self, peer: Peer) -> None:
        """Close the connection to a peer, which `lost_connections` tells like any other end."""
        if (found := self._connections.get(peer)) is not None:
            self._connections.drop(found)

    def lost_connections(self) -> list[Peer]:
        """The peers whose connection broke since the last call.

        A peer that never sent a message is not among them: the core does not know of strangers that only connect, or
        whose handshake fails.
        """
        return self._connections.take_lost()

    def close(self) -> None:
        """Close the socket; what is queued has a moment to leave."""
        self._connections.close()

    def _with_bytes(self, now: float) -> Iterator[PeerConnection]:
        """Peers with bytes to look at: first those whose messages did not fit into the last turn."""
        yield from list(self._unread.values())
        yield from self._connections.read(now)

    def _next_message(self, peer: PeerConnection) -> list[bytes] | None:
        """A peer's next message; None if it has none, or is cut off for what it sent."""
        if not peer.is_open:
            return None
        connection = peer.connection
        was_ready, num_steps = connection.is_ready, connection.num_handshake_steps
        try:
            message = connection.next_message(answers=not peer.has_unsent)
        except ZmtpError as error:
            self._refuse(peer, error)
            return None
        finally:
            steps = connection.num_handshake_steps - num_steps
            self._connections.count_work(peer, handshake_steps=steps, messages=0)
        if output := connection.take_output():
            self._connections.write(peer, output)
        if connection.is_ready and not was_ready and self._trusts_all:
            self.admit(peer.number)
        return message

    def _decode(self, peer: PeerConnection, frames: list[bytes]) -> Incoming | None:
        peer.has_spoken = True
        self._connections.count_work(peer, handshake_steps=0, messages=1)
        try:
            return self._codec.decode(frames)
        except WireError as error:
            self._drops.dropped(peer.address, error)
            if isinstance(error, VersionError) and self._on_version is not None:
                self._on_version(peer.number, peer.address, error)
        return None

    def _refuse(self, peer: PeerConnection, error: ZmtpError) -> None:
        """Cut off a peer that breaks the protocol, or whose key is not on the list."""
        if isinstance(error, RefusedError):
            self._refusals.happened(address=peer.address, key=error.key)
        elif peer.has_spoken:
            self._drops.dropped(peer.address, str(error))
        else:
            self._broken.happened(address=peer.address, reason=str(error))
        with suppress(OSError):
            peer.write(peer.connection.take_output())
        self._connections.drop(peer)
