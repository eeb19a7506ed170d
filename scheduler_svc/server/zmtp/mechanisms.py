"""How a peer proves who it is before it may send messages: not at all (NULL), or by its key (CURVE, RFC 26).

CURVE's boxes are those of libsodium, which PyNaCl calls. https://rfc.zeromq.org/spec/26 has the protocol.
"""

import secrets
from collections.abc import Callable
from typing import NamedTuple, Protocol

from nacl import bindings as sodium
from nacl.exceptions import CryptoError
from zmq.utils import z85

from common.curve import KeyPair
from scheduler_svc.server.zmtp.frames import (
    COMMAND,
    MORE,
    Frame,
    ZmtpError,
    command,
    encode_properties,
    parse_command,
    parse_properties,
)

SOCKET_TYPE = b"socket-type"
MAC_BYTES = 16
CURVE_OVERHEAD_BYTES = 64  # that CURVE adds to a frame at most: a name, a nonce, a MAC and the inner flags

_KEY = 32
_VERSION_1_0 = bytes((1, 0))
_HELLO_BYTES, _COOKIE_BYTES, _VOUCH_BYTES = 194, 96, 96


class Role(NamedTuple):
    """What kind of ZeroMQ socket this end is, and which kinds may talk to it (RFC 28 and 29)."""

    socket_type: bytes
    peers: tuple[bytes, ...]

    @property
    def properties(self) -> bytes:
        """What this end says of itself."""
        return encode_properties({b"Socket-Type": self.socket_type, b"Identity": b""})

    def check(self, properties: bytes) -> None:
        """Only some peers are of use. The identity that one asks for is not even looked at: here no peer chooses one.

        Raises:
            ZmtpError: it is another one.
        """
        found = parse_properties(properties).get(SOCKET_TYPE, b"")
        if found not in self.peers:
            wanted = " or ".join(peer.decode() for peer in self.peers)
            raise ZmtpError(f"a {found[:16].decode(errors='replace')!r} socket, not a {wanted}")


ROUTER = Role(b"ROUTER", (b"DEALER",))


class Mechanism(Protocol):
    """One connection's way to prove who the peer is, and to keep others from reading along.

    Attributes:
        is_ready: whether messages may be exchanged.
        key: the peer's public key in Z85 when it has proved it; empty without keys.
    """

    name: bytes
    is_ready: bool
    key: str

    def handle(self, body: bytes) -> bytes:
        """Take a command of the handshake; returns the one to answer with. Raises ZmtpError."""

    def open(self, frame: Frame) -> Frame:
        """A frame as its sender meant it. Raises ZmtpError."""

    def seal(self, flags: int, body: bytes) -> Frame:
        """A frame as it is to be sent."""


class RefusedError(ZmtpError):
    """The peer has proved a key that is not on the list.

    Attributes:
        key: it, in Z85.
        farewell: the command that tells the peer.
    """

    def __init__(self, key: str) -> None:
        super().__init__("its key is not on the list")
        self.key = key
        self.farewell = command(b"ERROR", bytes((3,)) + b"400")  # ZAP's status for a key that is refused (RFC 27)


class NullMechanism:
    """No proof and no encryption.

    Args:
        role: of this end.
    """

    name = b"NULL"

    def __init__(self, role: Role = ROUTER) -> None:
        self._role = role
        self.is_ready = False
        self.key = ""

    def handle(self, body: bytes) -> bytes:
        """Take the peer's READY."""
        name, data = parse_command(body)
        if name != b"READY":
            raise ZmtpError("READY expected")
        self._role.check(data)
        self.is_ready = True
        return command(b"READY", self._role.properties)

    def open(self, frame: Frame) -> Frame:
        """The frame itself."""
        return frame

    def seal(self, flags: int, body: bytes) -> Frame:
        """The frame itself."""
        return Frame(flags, body)


class CurveMechanism:
    """The server's end of CURVE for one connection.

    The cookie of the protocol, by which a server may forget a client between its two commands, is here a random number
    that the client has to repeat: this end remembers.

    Args:
        keys: the server's.
        is_allowed: whether the client with this public key (Z85) may connect.
    """

    name = b"CURVE"

    def __init__(self, keys: KeyPair, is_allowed: Callable[[str], bool]) -> None:
        self.is_ready = False
        self.key = ""
        self._secret = z85.decode(keys.secret)
        self._is_allowed = is_allowed
        self._cookie = b""
        self._client_transient = b""
        self._transient_secret = b""
        self._shared = b""  # of both ends' transient keys: what messages are sealed with
        self._sent = 0  # nonces count up, so that no message can be repeated or left out unseen
        self._received = 0

    def handle(self, body: bytes) -> bytes:
        """Take HELLO, then INITIATE."""
        name, data = parse_command(body)
        if name != (b"INITIATE" if self._cookie else b"HELLO"):
            raise ZmtpError("HELLO, then INITIATE expected")
        try:
            return self._initiate(data) if self._cookie else self._hello(data)
        except (CryptoError, RuntimeError) as error:  # RuntimeError: a key that is no point of the curve
            raise ZmtpError("it does not know this scheduler's key, or not its own") from error

    def open(self, frame: Frame) -> Frame:
        """Decrypt a frame."""
        name, data = parse_command(frame.body)
        if name != b"MESSAGE":
            raise ZmtpError("MESSAGE expected")
        try:
            plain = sodium.crypto_box_open_afternm(data[8:], b"CurveZMQMESSAGEC" + self._nonce(data), self._shared)
        except (CryptoError, ValueError) as error:
            raise ZmtpError("a message that cannot be decrypted") from error
        if not plain:
            raise ZmtpError("a message without flags")
        return Frame(plain[0] & MORE | (COMMAND if plain[0] & 2 else 0), plain[1:])

    def seal(self, flags: int, body: bytes) -> Frame:
        """Encrypt a frame. In the box a command has the flag 2, which outside of it is that of a long frame."""
        inner = bytes((flags & MORE | (2 if flags & COMMAND else 0),))
        return Frame(0, command(b"MESSAGE", self._box(b"CurveZMQMESSAGES", inner + body)))

    def _hello(self, data: bytes) -> bytes:
        if len(data) != _HELLO_BYTES or data[:2] != _VERSION_1_0:
            raise ZmtpError("malformed HELLO")
        client, short_nonce, box = data[74:106], data[106:114], data[114:]
        long_term = sodium.crypto_box_beforenm(client, self._secret)
        sodium.crypto_box_open_afternm(box, b"CurveZMQHELLO---" + short_nonce, long_term)
        self._received = int.from_bytes(short_nonce, "big")
        self._client_transient = client
        public, self._transient_secret = sodium.crypto_box_keypair()
        self._cookie, nonce = secrets.token_bytes(_COOKIE_BYTES), secrets.token_bytes(16)
        welcome = sodium.crypto_box_afternm(public + self._cookie, b"WELCOME-" + nonce, long_term)
        return command(b"WELCOME", nonce + welcome)

    def _initiate(self, data: bytes) -> bytes:
        if not secrets.compare_digest(data[:_COOKIE_BYTES], self._cookie):
            raise ZmtpError("not the cookie that it got")
        self._shared = sodium.crypto_box_beforenm(self._client_transient, self._transient_secret)
        data = data[_COOKIE_BYTES:]
        plain = sodium.crypto_box_open_afternm(data[8:], b"CurveZMQINITIATE" + self._nonce(data), self._shared)
        client, vouch, properties = plain[:_KEY], plain[_KEY : _KEY + _VOUCH_BYTES], plain[_KEY + _VOUCH_BYTES :]
        vouched = sodium.crypto_box_open(vouch[16:], b"VOUCH---" + vouch[:16], client, self._transient_secret)
        server = sodium.crypto_scalarmult_base(self._secret)
        if not secrets.compare_digest(vouched, self._client_transient + server):
            raise ZmtpError("a vouch for another connection")
        key = z85.encode(client).decode()
        if not self._is_allowed(key):
            raise RefusedError(key)
        ROUTER.check(properties)
        self.key, self.is_ready = key, True
        return command(b"READY", self._box(b"CurveZMQREADY---", ROUTER.properties))

    def _box(self, prefix: bytes, plain: bytes) -> bytes:
        self._sent += 1
        nonce = self._sent.to_bytes(8, "big")
        return nonce + sodium.crypto_box_afternm(plain, prefix + nonce, self._shared)

    def _nonce(self, data: bytes) -> bytes:
        """The short nonce at the start of the data. Raises ZmtpError if it is not higher than the last one."""
        nonce = int.from_bytes(data[:8], "big")
        if len(data) < 8 + MAC_BYTES or nonce <= self._received:
            raise ZmtpError("a nonce that is missing or was used before")
        self._received = nonce
        return data[:8]
