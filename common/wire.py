"""Frames on a socket <-> checked messages.

A message is two frames: a header that names the protocol and its version, and one msgpack payload. All that arrives
goes through `Codec.decode`, which raises `WireError` for anything but a well-formed message of its direction; whether
the columns of a plan or a result fit each other is checked by `common.plan` before use.
"""

from collections.abc import Sequence as Frames
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from common import messages as m
from common.errors import WireError

HEADER_MAGIC = b"baton/"
HEADER = HEADER_MAGIC + str(m.PROTOCOL_VERSION).encode()
MAX_MESSAGE_BYTES = 64 * 2**20

Incoming = TypeVar("Incoming")
IntArray = npt.NDArray[np.int32]


class VersionError(WireError):
    """The peer speaks another version of the protocol. Of all malformed messages only such a one is answered."""


class Codec(Generic[Incoming]):
    """Encodes what one side of a link sends and decodes what it receives. Holds buffers: one for each thread."""

    def __init__(self, incoming: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: m.Message) -> list[bytes]:
        """Frames for `send_multipart`, without the peer's identity."""
        return [HEADER, self._encoder.encode(message)]

    def decode(self, frames: Frames[bytes]) -> Incoming:
        """The message in `frames` (without the peer's identity).

        Raises:
            VersionError: the header names another protocol version.
            WireError: wrong number of frames, foreign header, oversized or malformed payload.
        """
        if len(frames) != 2:
            raise WireError(f"a message has 2 frames, not {len(frames)}")
        header, payload = frames
        if header != HEADER:
            if header.startswith(HEADER_MAGIC) and len(header) < 16:
                theirs = header[len(HEADER_MAGIC) :].decode("ascii", "replace")
                raise VersionError(f"peer speaks protocol version {theirs}, this side {m.PROTOCOL_VERSION}")
            raise WireError(f"not a Baton message: header {header[:16]!r}")
        if len(payload) > MAX_MESSAGE_BYTES:
            raise WireError(f"payload of {len(payload)} bytes, the limit is {MAX_MESSAGE_BYTES}")
        try:
            return self._decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"malformed message: {error}") from error


def int32_array(field: str, data: bytes) -> IntArray:
    """A read-only int32 view of `data`. Raises WireError if its length is no multiple of 4."""
    return array_from(field, data, "<i4")


def array_from(field: str, data: bytes, dtype: str) -> npt.NDArray[Any]:
    """A read-only view of `data` with elements of `dtype`. Raises WireError if its length does not fit."""
    item_bytes = np.dtype(dtype).itemsize
    if len(data) % item_bytes:
        raise WireError(f"{field} has {len(data)} bytes, not a multiple of {item_bytes}")
    return np.frombuffer(data, dtype=dtype)


def check_range(field: str, values: npt.NDArray[Any], low: float, high: float) -> None:
    """Raise WireError if one of the values is not `low` to `high`."""
    good = (values >= low) & (values <= high)  # written so that a NaN is bad
    if not good.all():
        raise WireError(f"{field} has {values[~good][0]}, allowed are {low} to {high}")
