"""A router's sockets for KV events: libzmq's SUB and DEALER, and what the router knows."""

import time
from collections.abc import Callable
from types import TracebackType

import zmq

from tests.support.kv_readers import Subscriber

END_OF_REPLAY = b"\xff" * 8


class KvListener:
    """Listens to one scheduler, as llm-d-router does (`pkg/kvevents/zmq_subscriber.go`, 0539d49).

    Attributes:
        known: what it knows.
        numbers: of the batches that came, in their order.
    """

    def __init__(self, endpoint: str, topic: bytes = b"", hwm: int = 1000) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, hwm)
        self.socket.set(zmq.RECONNECT_IVL, 20)
        self.socket.subscribe(topic)
        self.socket.connect(endpoint)
        self.known = Subscriber(is_strict=False)  # until all is told anew, and that may be at any time
        self.numbers: list[int] = []

    def __enter__(self) -> "KvListener":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    def receive(self, timeout_s: float = 0.1) -> tuple[bytes, int, bytes] | None:
        """The next message that comes: topic, number and batch."""
        if not self.socket.poll(int(1000 * timeout_s)):
            return None
        topic, number, batch = self.socket.recv_multipart()
        assert len(number) == 8
        return topic, int.from_bytes(number, "big"), batch

    def listen_until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Take what comes until something is true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen: {len(self.known.blocks)} blocks, {self.numbers}"
            if (message := self.receive()) is not None:
                self.numbers.append(message[1])
                self.known.take(message[2])


def replay(endpoint: str, first: int, timeout_s: float = 30.0) -> list[tuple[bytes, int, bytes]]:
    """What a scheduler has kept from a number on, as a DEALER gets it: topics, numbers and batches."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    messages: list[tuple[bytes, int, bytes]] = []
    try:
        socket.set(zmq.LINGER, 0)
        socket.connect(endpoint)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        number = b""
        while number != END_OF_REPLAY:
            assert socket.poll(int(1000 * timeout_s)), f"the end did not come; {len(messages)} messages did"
            empty, topic, number, batch = socket.recv_multipart()
            assert empty == b""
            assert (number == END_OF_REPLAY) == (batch == b"")
            messages.append((topic, int.from_bytes(number, "big"), batch))
    finally:
        socket.close()
    return messages[:-1]
