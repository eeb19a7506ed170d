"""A peer that writes ZeroMQ's protocol by hand, and so can say what libzmq never would."""

import socket

from common import messages as m
from common.wire import Codec

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
MORE, LONG, COMMAND = 1, 2, 4


def greeting(mechanism: bytes = b"NULL", version: int = 3) -> bytes:
    return SIGNATURE + bytes((version, 0)) + mechanism.ljust(20, b"\0") + bytes(32)


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | LONG,)) + len(body).to_bytes(8, "big") + body


def prop(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def ready(identity: bytes | None = None, socket_type: bytes = b"DEALER") -> bytes:
    properties = prop(b"Socket-Type", socket_type)
    if identity is not None:
        properties += prop(b"Identity", identity)
    return frame(b"\x05READY" + properties, COMMAND)


def message(content: m.Message) -> bytes:
    header, payload = Codec(m.SchedulerToExecutor).encode(content)
    return frame(header, MORE) + frame(payload)


class RawPeer:
    """A TCP connection that has finished the NULL handshake, if `start` does so.

    Args:
        endpoint: `tcp://host:port`.
        start: what is sent first.
    """

    def __init__(self, endpoint: str, start: bytes | None = None, *, identity: bytes | None = None) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(10)
        self.send(greeting() + ready(identity) if start is None else start)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def is_closed(self) -> bool:
        """Read until the other end closes; False if it does not within the timeout."""
        try:
            while self.socket.recv(2**16):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()
