"""A ROUTER socket for messages of one direction: it drops what is not one of them, and tells which peers are gone."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Generic

import zmq
from zmq.utils.monitor import parse_monitor_message

from common.curve import HANDSHAKE_TIMEOUT_MS, ServerCurve
from common.errors import WireError
from common.logging import DropLog
from common.messages import Message
from common.wire import MAX_MESSAGE_BYTES, Codec, Incoming, VersionError
from scheduler_svc.core.actions import Sent
from scheduler_svc.server.curve_auth import DOMAIN, AllowList, Authenticator

HIGH_WATER_MARK = 1000  # messages waiting for one peer
MESSAGES_A_TURN = 256  # so that a flood from one side does not keep the loop from its other work


class Router(Generic[Incoming]):
    """A bound socket that decodes what arrives and counts what it drops.

    Args:
        context: of zmq; the socket is closed by `close`.
        endpoint: to bind, `tcp://host:port` (port 0 picks one) or `ipc://path`.
        incoming: the union of messages that may arrive.
        drops: counts and logs what is dropped.
        on_version: called with the peer for a message of another protocol version.
        curve: refuses peers whose key is not in its folder; None asks for no keys. Its thread ends with the context.
        max_message_bytes: that may arrive in one frame; libzmq cuts off a peer that sends more, and may hold as much
            for each connection, also for one without a key.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        incoming: Any,
        drops: DropLog,
        on_version: Callable[[bytes, VersionError], None] | None = None,
        *,
        curve: ServerCurve | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._allowed = AllowList(curve) if curve is not None else None
        self._revoked: set[bytes] = set()  # peers that connected with a key that is no longer on the list
        self._peers: dict[int, bytes] = {}  # by the file descriptor of the connection that a message came by
        self._lost: list[bytes] = []
        self._codec: Codec[Incoming] = Codec(incoming)
        self._drops = drops
        self._on_version = on_version
        self.socket = context.socket(zmq.ROUTER)
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        self.socket.set(zmq.MAXMSGSIZE, max_message_bytes)
        self.socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
        self.socket.set(zmq.RCVHWM, HIGH_WATER_MARK)
        self.socket.set(zmq.LINGER, 200)
        self.socket.set(zmq.IPV6, int("[" in endpoint))
        self.socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS)
        if curve is not None and self._allowed is not None:
            curve.protect(self.socket, DOMAIN)
            Authenticator(context, self._allowed).start()
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def receive(self) -> Iterator[tuple[bytes, Incoming]]:
        """The messages that have arrived, with their senders; at most `MESSAGES_A_TURN`."""
        for _ in range(MESSAGES_A_TURN):
            try:
                identity, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            peer = identity.bytes
            try:
                self._check_sender(peer, frames)
                yield peer, self._codec.decode([frame.bytes for frame in frames])
            except VersionError as error:
                self._drops.dropped(peer.hex(), error)
                if self._on_version is not None:
                    self._on_version(peer, error)
            except WireError as error:
                self._drops.dropped(peer.hex(), error)

    def send(self, peer: bytes, message: Message) -> Sent:
        """Send without waiting."""
        if peer in self._revoked:
            return Sent.GONE
        try:
            self.socket.send_multipart([peer, *self._codec.encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return Sent.GONE
            raise
        return Sent.OK

    def lost_connections(self) -> list[bytes]:
        """The peers whose connection broke since the last call.

        A peer that never sent a message is not among them: the core does not know of strangers that only connect, or
        whose handshake fails.
        """
        self._take_events()
        lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        """Close the socket; what is queued has a moment to leave."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()

    def _check_sender(self, peer: bytes, frames: list[zmq.Frame]) -> None:
        """Note the connection that the message came by. Raises WireError if its key has been revoked."""
        if not frames:
            return
        with contextlib.suppress(zmq.ZMQError):
            descriptor = int(frames[0].get(zmq.SRCFD))
            if self._peers.get(descriptor) != peer:
                self._take_events()  # first the end of the connection that had this number before
                self._peers[descriptor] = peer
        if self._allowed is None:
            return
        if frames[0].get("User-Id") in self._allowed:
            self._revoked.discard(peer)
        else:
            # libzmq asks for the key only once, and cannot be told to close one connection of many.
            self._revoked.add(peer)
            raise WireError("the sender's key has been revoked")

    def _take_events(self) -> None:
        while self.monitor.poll(0):
            descriptor = parse_monitor_message(self.monitor.recv_multipart())["value"]
            peer = self._peers.pop(descriptor, None)
            if peer is not None:
                self._lost.append(peer)
                self._revoked.discard(peer)
