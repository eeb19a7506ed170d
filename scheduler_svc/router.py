"""A ROUTER socket that speaks one direction's messages, drops what is not one of them, and tells who is gone."""

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Any, Generic

import zmq
from zmq.utils.monitor import recv_monitor_message

from common.errors import WireError
from common.logging import DropLog
from common.messages import Message
from common.wire import MAX_MESSAGE_BYTES, Codec, Incoming, VersionError

HIGH_WATER_MARK = 1000  # messages waiting for one peer
MESSAGES_A_TURN = 256  # so that a flood from one side does not keep the loop from its other work


class Sent(Enum):
    """What became of a message."""

    OK = auto()
    FULL = auto()  # the peer's queue is full; try again later
    GONE = auto()  # there is no such connection


class Router(Generic[Incoming]):
    """Binds, decodes and counts.

    Args:
        context: of zmq; the socket is closed by `close`.
        endpoint: to bind, `tcp://host:port` (port 0 picks one) or `ipc://path`.
        incoming: the union of messages that may arrive.
        drops: counts and logs what is dropped.
        on_version: called with the peer for a message of another protocol version.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        incoming: Any,
        drops: DropLog,
        on_version: Callable[[bytes, VersionError], None] | None = None,
    ) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        self.socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self.socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
        self.socket.set(zmq.RCVHWM, HIGH_WATER_MARK)
        self.socket.set(zmq.LINGER, 200)
        self.socket.set(zmq.IPV6, int("[" in endpoint))
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._codec: Codec[Incoming] = Codec(incoming)
        self._drops = drops
        self._on_version = on_version

    def receive(self) -> Iterator[tuple[bytes, Incoming]]:
        """The messages that have arrived, with their senders; at most `MESSAGES_A_TURN`."""
        for _ in range(MESSAGES_A_TURN):
            try:
                peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield peer, self._codec.decode(frames)
            except VersionError as error:
                self._drops.dropped(peer.hex(), error)
                if self._on_version is not None:
                    self._on_version(peer, error)
            except WireError as error:
                self._drops.dropped(peer.hex(), error)

    def send(self, peer: bytes, message: Message) -> Sent:
        """Send without waiting."""
        try:
            self.socket.send_multipart([peer, *self._codec.encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return Sent.GONE
            raise
        return Sent.OK

    def lost_connections(self) -> int:
        """How many connections broke since the last call (whose they were, a `send` tells)."""
        count = 0
        while self.monitor.poll(0):
            recv_monitor_message(self.monitor)
            count += 1
        return count

    def close(self) -> None:
        """Close the socket, giving what is queued a moment to leave."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()
