"""The frontend's socket to the core: messages, and what happens to the connection that they come by."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import cast

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from common.errors import RequestRejected

RECEIVE_HIGH_WATER_MARK = 10_000  # steps' outputs: minutes of them, as outputs that do not fit are lost
LINGER_MS = 500
RECONNECT_MS, MAX_RECONNECT_MS = 100, 1000


class ConnectionEvent(Enum):
    """What happens to the connection."""

    BEGUN = "begun"
    ENDED = "ended"  # or it never came about


class CoreSocket:
    """A DEALER that connects again and again, and queues nothing while there is no connection.

    Libzmq does not say by which connection a message came. So a reader asks for `events` after each message, and
    passes it over if there is one: it is from a connection that has ended, or from before the first hello on a new one.
    What else had come before an event is passed over here.

    Args:
        max_unsent: messages that may wait to be sent.
    """

    def __init__(self, endpoint: str, max_unsent: int) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, max_unsent)
        self._socket.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, MAX_RECONNECT_MS)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        # The same two, read without waiting.
        self._messages: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket.underlying)
        self._events: zmq.Socket[bytes] = zmq.Socket.shadow(self._monitor.underlying)
        self._socket.connect(endpoint)

    def send(self, frames: list[bytes]) -> None:
        """Queue a message.

        Raises:
            RequestRejected: there is no connection, or it is stuck (`unavailable`).
        """
        sent = self._socket.send_multipart(frames, flags=zmq.NOBLOCK)
        try:
            cast("asyncio.Future[None]", sent).result()  # with NOBLOCK the future is done already
        except zmq.Again:
            raise RequestRejected("the scheduler cannot be reached at the moment", "unavailable") from None

    async def wait_for_message(self) -> None:
        """Return when there is one."""
        await self._socket.poll()

    async def wait_for_event(self) -> None:
        """Return when something has happened to the connection."""
        await self._monitor.poll()

    def messages(self) -> Iterator[list[bytes]]:
        """The frames of each message that is there."""
        with contextlib.suppress(zmq.Again):
            while True:
                yield self._messages.recv_multipart(zmq.NOBLOCK)

    def events(self) -> Iterator[ConnectionEvent]:
        """What has happened to the connection. Messages that came before an event are gone when it is given."""
        while self._events.poll(0):
            event = parse_monitor_message(self._events.recv_multipart())["event"]
            deque(self.messages(), maxlen=0)
            yield ConnectionEvent.BEGUN if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else ConnectionEvent.ENDED

    def close(self) -> None:
        """Give what was sent last a moment to leave, and close."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()
