"""The server's end of one ZeroMQ connection, without I/O: bytes in, messages and bytes to answer with out."""

from scheduler_svc.server.zmtp.frames import (
    COMMAND,
    MAX_COMMAND_BYTES,
    MORE,
    Frame,
    FrameReader,
    ZmtpError,
    command,
    encode_frame,
    greeting,
    parse_command,
)
from scheduler_svc.server.zmtp.mechanisms import CURVE_OVERHEAD_BYTES, Mechanism, RefusedError

MAX_FRAMES = 4  # of a message; Baton's have two, and a peer that sends some more is told what it does wrong
MAX_PING_CONTEXT_BYTES = 16
SUBSCRIBE, CANCEL = b"\x01", b"\x00"
SUBSCRIPTIONS = {b"SUBSCRIBE": SUBSCRIBE, b"CANCEL": CANCEL}  # commands of ZMTP 3.1 -> first byte of 3.0's messages
MAX_COMMANDS = 16  # in a row, in one read: heartbeats of libzmq are far apart


class Connection:
    """What has been said on one connection.

    Every method that reads raises ZmtpError when the peer breaks the protocol or a limit; the connection is then to be
    closed, after `take_output` has been sent.

    Args:
        mechanism: of this connection alone.
        max_message_bytes: that all frames of a message may have together. At most as much, and one read's bytes, are
            kept of what has not become a message.
        takes_subscriptions: whether this is a publisher's end; elsewhere such commands are ignored like any other.

    Attributes:
        num_handshake_steps: commands of the handshake that the mechanism has had to look at.
    """

    def __init__(self, mechanism: Mechanism, max_message_bytes: int, *, takes_subscriptions: bool = False) -> None:
        self._mechanism = mechanism
        self._takes_subscriptions = takes_subscriptions
        self._reader = FrameReader(MAX_COMMAND_BYTES)
        self._max_message_bytes = max_message_bytes
        self.num_handshake_steps = 0
        self._is_greeted = False
        self._frames: list[bytes] = []
        self._num_bytes = 0
        self._num_commands = 0
        self._output = bytearray(greeting(mechanism.name, as_server=mechanism.name == b"CURVE"))

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is complete."""
        return self._mechanism.is_ready

    @property
    def key(self) -> str:
        """The key that the peer has proved, in Z85; empty without keys, and before."""
        return self._mechanism.key

    @property
    def num_kept_bytes(self) -> int:
        """Of what has arrived and has not become a message."""
        return self._num_bytes + self._reader.num_bytes

    def limit(self, max_message_bytes: int) -> None:
        """From now on a message may have so many bytes."""
        self._max_message_bytes = max_message_bytes
        self._reader.forget_taken()
        if self.is_ready:
            self._reader.max_frame_bytes = max_message_bytes + CURVE_OVERHEAD_BYTES

    def feed(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        self._num_commands = 0
        self._reader.feed(data)

    def take_output(self) -> bytes:
        """What is to be sent because of what has arrived."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def next_message(self, *, answers: bool = True) -> list[bytes] | None:
        """The frames of the next message that is complete, if any.

        Args:
            answers: whether heartbeats are answered. Not while something waits to be sent, which says as much: a peer
                that does not read could make it more and more.
        """
        if not self._is_greeted and not self._take_greeting():
            return None
        while (sent := self._reader.take_frame()) is not None:
            if not self.is_ready:
                self._shake_hands(sent)
                continue
            frame = self._mechanism.open(sent)
            if frame.flags & COMMAND:
                if (subscription := self._obey(frame, answers)) is not None:
                    return subscription
                continue
            self._frames.append(frame.body)
            self._num_bytes += len(frame.body)
            if len(self._frames) > MAX_FRAMES or self._num_bytes > self._max_message_bytes:
                raise ZmtpError(
                    f"a message of more than {MAX_FRAMES} frames or {self._max_message_bytes} bytes "
                    f"({len(self._frames)} frames, {self._num_bytes} bytes so far)"
                )
            if not frame.flags & MORE:
                message, self._frames, self._num_bytes = self._frames, [], 0
                return message
        return None

    def encode(self, frames: list[bytes]) -> bytes:
        """A message as it is to be sent, once the handshake is complete."""
        assert self.is_ready, "the handshake is not complete"
        last = len(frames) - 1
        sealed = [self._mechanism.seal(MORE if i < last else 0, frame) for i, frame in enumerate(frames)]
        return b"".join([encode_frame(*frame) for frame in sealed])

    def _take_greeting(self) -> bool:
        mechanism = self._reader.take_greeting()
        if mechanism is None:
            return False
        if mechanism != self._mechanism.name:
            theirs, ours = (name.decode(errors="replace") for name in (mechanism, self._mechanism.name))
            raise ZmtpError(f"mechanism {theirs!r}, not {ours}")
        self._is_greeted = True
        return True

    def _shake_hands(self, frame: Frame) -> None:
        if frame.flags != COMMAND:
            raise ZmtpError("a message in the middle of the handshake")
        self.num_handshake_steps += 1
        try:
            answer = self._mechanism.handle(frame.body)
        except RefusedError as error:
            self._output += encode_frame(COMMAND, error.farewell)
            raise
        self._output += encode_frame(COMMAND, answer)
        self.limit(self._max_message_bytes)

    def _obey(self, frame: Frame, answers: bool) -> list[bytes] | None:
        """A command between messages: heartbeats of libzmq are answered, and others ignored.

        Returns:
            A subscription, or the end of one, as the message that ZMTP 3.0 has for it.
        """
        self._num_commands += 1
        if self._num_commands > MAX_COMMANDS:
            raise ZmtpError("commands without end")
        name, data = parse_command(frame.body)
        if name == b"PING" and answers:
            pong = command(b"PONG", data[2 : 2 + MAX_PING_CONTEXT_BYTES])
            self._output += encode_frame(*self._mechanism.seal(COMMAND, pong))
        return [SUBSCRIPTIONS[name] + data] if name in SUBSCRIPTIONS and self._takes_subscriptions else None
