"""Messages with descriptors of files beside them, over a unix socket that keeps packets apart (SOCK_SEQPACKET)."""

import array
import os
import socket
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from common.errors import WireError
from common.messages import MAX_DESCRIPTORS, Message

Incoming = TypeVar("Incoming")

_FD_BYTES = array.array("i").itemsize


class PacketConnection(Generic[Incoming]):
    """One end of a connection.

    Args:
        connected: the socket; it is closed with this object. Whether it blocks is up to its owner.
        incoming: union of the messages that may come.
        max_bytes: of a packet that may come.
    """

    def __init__(self, connected: socket.socket, incoming: Any, max_bytes: int) -> None:
        self._socket = connected
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)
        self._max_bytes = max_bytes

    def fileno(self) -> int:
        """To poll for reading."""
        return self._socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message, and files beside it; the sender keeps its descriptors of them.

        Raises:
            OSError: the other end is gone, or (BlockingIOError) it does not read.
        """
        packet = msgspec.msgpack.encode(message)
        if fds:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            self._socket.sendmsg([packet], [rights])
        else:
            self._socket.send(packet)

    def receive(self) -> tuple[Incoming, list[int]] | None:
        """The next message, and descriptors that the caller has to close; None if the connection has ended.

        Raises:
            WireError: the packet is too long, malformed, or has too many files beside it; those have been closed.
            OSError: the connection broke, or (BlockingIOError) nothing has come.
        """
        # Not socket.recv_fds: Python 3.11 drops its flags, and the descriptors would be inherited by child processes.
        packet, ancillary, flags, _ = self._socket.recvmsg(
            self._max_bytes, socket.CMSG_SPACE(MAX_DESCRIPTORS * _FD_BYTES), socket.MSG_CMSG_CLOEXEC
        )
        fds = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
        if not packet and not fds:
            return None
        try:
            return self._decode(packet, flags), list(fds)
        except WireError:
            for fd in fds:
                os.close(fd)
            raise

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _decode(self, packet: bytes, flags: int) -> Incoming:
        if flags & socket.MSG_TRUNC:
            raise WireError(f"a packet has more than {self._max_bytes} bytes")
        if flags & socket.MSG_CTRUNC:
            raise WireError(f"a packet has more than {MAX_DESCRIPTORS} files beside it, or this process too many open")
        try:
            return self._decoder.decode(packet)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"malformed message: {error}") from error
