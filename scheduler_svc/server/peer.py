"""One connection of a router: its socket, what is said on it, and what waits to be sent."""

import socket
from collections import deque
from contextlib import suppress

from scheduler_svc.core.actions import Peer
from scheduler_svc.server.zmtp.connection import Connection

READ_BYTES = 2**16
HIGH_WATER_MARK = 1000  # messages waiting to be sent
MAX_UNSENT_BYTES = 2**26  # waiting to be sent; a message may be as long by itself


class PeerConnection:
    """A peer's connection. None of its methods waits.

    Args:
        number: what the core calls the peer.
        address: for people.
        since: the time of the connection.

    Attributes:
        is_admitted: False for a stranger.
        has_spoken: whether a message has come.
        has_unread: whether what it said waits to be taken.
        is_at_end: the peer has closed its side; what it said before may still wait to be taken.
        is_open: False once the socket is closed.
    """

    __slots__ = (
        *("number", "socket", "address", "connection", "since"),
        *("is_admitted", "has_spoken", "has_unread", "is_at_end", "is_open", "_unsent", "_unsent_bytes"),
    )

    def __init__(
        self, number: Peer, connected: socket.socket, address: str, connection: Connection, since: float
    ) -> None:
        self.number = number
        self.socket = connected
        self.address = address
        self.connection = connection
        self.since = since
        self.is_admitted = False
        self.has_spoken = False
        self.has_unread = False
        self.is_at_end = False
        self.is_open = True
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    @property
    def num_unsent_bytes(self) -> int:
        """That wait to be sent."""
        return self._unsent_bytes

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be sent that no more is taken. For a stranger nothing waits."""
        num_messages = len(self._unsent)
        return num_messages > 0 and (
            not self.is_admitted or num_messages >= HIGH_WATER_MARK or self._unsent_bytes >= MAX_UNSENT_BYTES
        )

    def admit(self) -> None:
        """It is no stranger any more, and will be sent messages that cannot wait."""
        self.is_admitted = True
        if self.socket.family != socket.AF_UNIX:
            with suppress(OSError):  # it has broken by now, which a read will tell
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def read(self) -> None:
        """Take in some of what has arrived."""
        try:
            data = self.socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self.is_at_end = not data
        self.connection.feed(data)

    def write(self, data: bytes) -> None:
        """Send, as soon as the connection takes it. Raises OSError if it is broken."""
        self._unsent.append(memoryview(data))
        self._unsent_bytes += len(data)
        if len(self._unsent) == 1:
            self.flush()

    def flush(self) -> None:
        """Send what the connection takes. Raises OSError if it is broken."""
        unsent = self._unsent
        with suppress(BlockingIOError, InterruptedError):
            while unsent:
                num_sent = self.socket.send(unsent[0])
                self._unsent_bytes -= num_sent
                if num_sent < len(unsent[0]):
                    unsent[0] = unsent[0][num_sent:]
                else:
                    unsent.popleft()

    def close(self) -> None:
        """Close the socket."""
        self.is_open = False
        with suppress(OSError):  # not connected any more
            self.socket.shutdown(socket.SHUT_WR)  # so that the peer reads what was sent to it
        self.socket.close()
        self._unsent.clear()
