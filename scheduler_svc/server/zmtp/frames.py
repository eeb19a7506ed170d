"""Framing of ZMTP 3.1 (RFC 37, https://rfc.zeromq.org/spec/37): bytes that arrive <-> greeting, commands, frames."""

from collections.abc import Sequence
from typing import NamedTuple

SIGNATURE_BYTES = 10
GREETING_BYTES = 64
MAX_COMMAND_BYTES = 1024  # of a handshake; the longest, CURVE's INITIATE, has 257 and a client's few properties

MORE, LONG, COMMAND = 1, 2, 4
_VERSION = bytes((3, 1))
_MECHANISM_END = 32


class ZmtpError(Exception):
    """The peer breaks the protocol or a limit: its connection has to be closed."""


class Frame(NamedTuple):
    """A frame's flags (MORE, COMMAND) and its content."""

    flags: int
    body: bytes


def greeting(mechanism: bytes, *, as_server: bool) -> bytes:
    """What both ends send first."""
    signature = b"\xff" + bytes(SIGNATURE_BYTES - 2) + b"\x7f"
    start = signature + _VERSION + mechanism.ljust(_MECHANISM_END - len(signature) - len(_VERSION), b"\0")
    return (start + bytes([as_server])).ljust(GREETING_BYTES, b"\0")


def encode_frame(flags: int, body: bytes) -> bytes:
    """A frame as it is sent."""
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | LONG,)) + len(body).to_bytes(8, "big") + body


def encode_message(frames: Sequence[bytes]) -> bytes:
    """A message as it is sent without encryption: the same bytes for all peers."""
    last = len(frames) - 1
    return b"".join([encode_frame(MORE if i < last else 0, frame) for i, frame in enumerate(frames)])


def command(name: bytes, data: bytes) -> bytes:
    """The body of a command frame."""
    return bytes((len(name),)) + name + data


def parse_command(body: bytes) -> tuple[bytes, bytes]:
    """Name and data of a command. Raises ZmtpError."""
    if not body or len(body) <= body[0]:
        raise ZmtpError("malformed command")
    return body[1 : body[0] + 1], body[body[0] + 1 :]


def encode_properties(properties: dict[bytes, bytes]) -> bytes:
    """A command's metadata."""
    return b"".join(
        bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value for name, value in properties.items()
    )


def parse_properties(data: bytes) -> dict[bytes, bytes]:
    """Metadata by names in lower case, as case does not count. Raises ZmtpError."""
    properties: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        value_end = name_end + 4 + int.from_bytes(data[name_end : name_end + 4], "big")
        if value_end > len(data):
            raise ZmtpError("malformed metadata")
        properties[data[at + 1 : name_end].lower()] = data[name_end + 4 : value_end]
        at = value_end
    return properties


class FrameReader:
    """Takes bytes as they come, and gives the peer's greeting and its frames.

    Args:
        max_frame_bytes: a frame that announces more is refused before any of it is kept; may be changed later.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        self.forget_taken()
        self._buffer += data

    def forget_taken(self) -> None:
        """Give back the memory of what was taken."""
        del self._buffer[: self._at]
        self._at = 0

    @property
    def num_bytes(self) -> int:
        """That have arrived, and were not taken."""
        return len(self._buffer) - self._at

    def take_greeting(self) -> bytes | None:
        """The mechanism that the peer's greeting names; None while it is not complete.

        Raises:
            ZmtpError: it is no greeting of ZMTP 3, which is told from its first bytes.
        """
        start = bytes(self._buffer[:GREETING_BYTES])
        if start[:1] not in (b"", b"\xff") or start[SIGNATURE_BYTES - 1 : SIGNATURE_BYTES] not in (b"", b"\x7f"):
            raise ZmtpError("not ZeroMQ")
        if start[SIGNATURE_BYTES : SIGNATURE_BYTES + 1] not in (b"", b"\x03"):
            raise ZmtpError("another version of ZeroMQ's protocol than 3")
        if len(start) < GREETING_BYTES:
            return None
        self._at = GREETING_BYTES
        return start[SIGNATURE_BYTES + len(_VERSION) : _MECHANISM_END].rstrip(b"\0")

    def take_frame(self) -> Frame | None:
        """The next frame; None while it is not complete. Raises ZmtpError."""
        buffer, at = self._buffer, self._at
        if len(buffer) < at + 2:
            return None
        flags = buffer[at]
        if flags & ~(MORE | LONG | COMMAND):
            raise ZmtpError(f"unknown flags {flags:#x}")
        start = at + (9 if flags & LONG else 2)
        if len(buffer) < start:
            return None
        size = int.from_bytes(buffer[at + 1 : start], "big")
        if size > self.max_frame_bytes:
            raise ZmtpError(f"a frame of {size} bytes, the limit is {self.max_frame_bytes}")
        if len(buffer) < start + size:
            return None
        self._at = start + size
        return Frame(flags & ~LONG, bytes(buffer[start : start + size]))
