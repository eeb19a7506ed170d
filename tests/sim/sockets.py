"""Sockets at both ends of the simulated connections. Messages go through the real codec, and who connects again is
another peer.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from common import messages as m
from common.wire import Codec
from scheduler_svc.core.actions import Sent
from tests.sim.network import Connection, Frames, Network
from tests.sim.world import World

RECONNECT_INTERVAL_S = 0.1
LEFT_FOR_THE_NEXT_TURN = 0.3


class Switch:
    """One of the sockets of one life of the scheduler.

    Args:
        incoming: the union of messages that may arrive.
        wake: is called when there is something to do.
    """

    def __init__(self, world: World, incoming: Any, wake: Callable[[], None]) -> None:
        self._rng = world.stream("switch")
        self._codec: Codec[Any] = Codec(incoming)
        self._wake = wake
        self._connections: dict[bytes, Connection] = {}
        self._arrived: deque[tuple[bytes, Frames]] = deque()
        self._lost: list[bytes] = []

    @property
    def peers(self) -> list[bytes]:
        """Who is connected."""
        return list(self._connections)

    @property
    def num_lost(self) -> int:
        """Connections that broke since the last call of `lost_connections`."""
        return len(self._lost)

    def connected(self, connection: Connection) -> None:
        """A peer has connected."""
        self._connections[connection.peer] = connection

    def arrived(self, peer: bytes, frames: Frames) -> None:
        """A message is there."""
        self._arrived.append((peer, frames))
        self._wake()

    def lost(self, peer: bytes) -> None:
        """A connection broke."""
        if self._connections.pop(peer, None) is not None:
            self._lost.append(peer)
            self._wake()

    def receive(self) -> Iterator[tuple[bytes, Any]]:
        """Messages that have arrived, with their senders: not always all, so that the rest comes after a break."""
        num_taken = len(self._arrived)
        if self._lost and self._rng.random() < LEFT_FOR_THE_NEXT_TURN:
            num_taken = self._rng.randint(0, num_taken)
            self._wake()
        for _ in range(num_taken):
            peer, frames = self._arrived.popleft()
            yield peer, self._codec.decode(frames)

    def send(self, peer: bytes, message: m.Message) -> Sent:
        """Send without waiting."""
        connection = self._connections.get(peer)
        if connection is None:
            return Sent.GONE
        return Sent.OK if connection.down.send(self._codec.encode(message)) else Sent.FULL

    def admit(self, peer: bytes) -> None:
        """Here the scheduler's memory and time are not what strangers could take."""

    def dismiss(self, peer: bytes) -> None:
        """The same."""

    def disconnect(self, peer: bytes) -> None:
        """Close the connection to a peer."""
        if (connection := self._connections.get(peer)) is not None:
            connection.end_by_core()
            self.lost(peer)

    def lost_connections(self) -> list[bytes]:
        """Whose connections broke since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        """The process has ended."""
        for connection in self._connections.values():
            connection.end_by_core()
        self._connections.clear()


class Port:
    """Where the scheduler listens, whichever lives.

    Attributes:
        switch: None while none does.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.switch: Switch | None = None


class Dealer:
    """A peer's socket. It connects by itself, again and again; nothing is queued while it is not connected.

    Args:
        incoming: the union of messages that may arrive.
        deliver: takes what arrives.
        on_change: is called when it has connected, and when the connection broke.
    """

    def __init__(
        self,
        port: Port,
        incoming: Any,
        deliver: Callable[[Any], None],
        on_change: Callable[[bool], None] = lambda is_connected: None,
    ) -> None:
        self._port = port
        self._network = port.network
        self._world = port.network.world
        self._codec: Codec[Any] = Codec(incoming)
        self._deliver = deliver
        self._on_change = on_change
        self._connection: Connection | None = None
        self._unreachable_until = 0.0
        self._num_dials = 0
        self._dial(self._network.delay_s())

    @property
    def peer(self) -> bytes:
        """What the scheduler calls it; empty while it is not connected."""
        return b"" if self._connection is None else self._connection.peer

    @property
    def is_writable(self) -> bool:
        """Whether a message could be sent at once."""
        return self._connection is not None and not self._connection.up.is_full

    def send(self, message: m.Message) -> bool:
        """Send without waiting; False if that cannot be."""
        return self._connection is not None and self._connection.up.send(self._codec.encode(message))

    def renew(self) -> None:
        """Replace the connection by a fresh one."""
        self.close()
        self._dial(self._network.delay_s())

    def close(self) -> None:
        """The process ends, or wants another connection."""
        self._num_dials += 1
        if self._connection is not None:
            self._connection.end_by_peer()
            self._connection = None

    def cut(self, until: float, *, up: bool = True, down: bool = True) -> None:
        """Nothing comes through for a while; if that is both ways, no new connection either."""
        if up and down:
            self._unreachable_until = until
        if self._connection is not None:
            self._connection.stall(until, up=up, down=down)

    def half_open(self, until: float) -> None:
        """Nothing comes through the present connection any more, and it takes until then that both sides notice."""
        if (connection := self._connection) is not None:
            connection.stall(math.inf, up=True, down=True)
            self._world.at(until, connection.expire)

    def reset(self) -> None:
        """The connection breaks."""
        if self._connection is not None:
            self._connection.reset()

    def arrived(self, connection: Connection, frames: Frames) -> None:
        """A message is there."""
        if connection is self._connection:
            self._deliver(self._codec.decode(frames))

    def lost(self, connection: Connection) -> None:
        """The other side has closed the connection, or something between has broken it."""
        if connection is self._connection:
            self._connection = None
            self._dial(RECONNECT_INTERVAL_S)
            self._on_change(False)

    def _dial(self, delay_s: float) -> None:
        self._num_dials += 1
        self._world.after(delay_s, self._connect, self._num_dials)

    def _connect(self, dial: int) -> None:
        if dial != self._num_dials:
            return
        switch = self._port.switch
        if switch is None or self._world.now < self._unreachable_until:
            self._dial(RECONNECT_INTERVAL_S)
            return
        self._connection = Connection(self._network, switch, self)
        switch.connected(self._connection)
        self._on_change(True)
