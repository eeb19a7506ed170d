"""CURVE by hand: the holder of a key, who may say whatever libzmq never would, gets an error and ends nobody."""

import itertools
import secrets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl import bindings as sodium
from zmq.utils import z85

from common import messages as m
from common.curve import KeyPair
from common.wire import Codec
from scheduler_svc.server.zmtp.connection import Connection
from scheduler_svc.server.zmtp.frames import ZmtpError
from scheduler_svc.server.zmtp.mechanisms import CurveMechanism, RefusedError
from tests.support.effort import examples
from tests.support.hello import hello
from tests.support.raw_zmtp import COMMAND, MORE, frame, greeting, prop

SERVER, CLIENT = KeyPair.generate(), KeyPair.generate()
DEALER = prop(b"Socket-Type", b"DEALER") + prop(b"Identity", b"me")
FRAMES = Codec(m.SchedulerToExecutor).encode(hello("one"))


class Client:
    """The other end of a connection, in the test's hands. `alter` may change what is sealed, by the command's name."""

    def __init__(self, *, keys=CLIENT, allowed=lambda key: True, alter=lambda name, data: data):
        self.connection = Connection(CurveMechanism(SERVER, allowed), 8192)
        self._public, self._secret = z85.decode(keys.public), z85.decode(keys.secret)
        self._server = z85.decode(SERVER.public)
        self._alter = alter
        self._transient, self._transient_secret = sodium.crypto_box_keypair()
        self._nonces = itertools.count(1)

    def command(self, name, data):
        self.connection.feed(frame(bytes((len(name),)) + name + self._alter(name, data), COMMAND))
        return self.connection.next_message()

    def nonce(self):
        return next(self._nonces).to_bytes(8, "big")

    def shake_hands(self):
        self.connection.feed(greeting(b"CURVE"))
        assert self.connection.next_message() is None
        self.connection.take_output()
        nonce = self.nonce()
        box = sodium.crypto_box(bytes(64), b"CurveZMQHELLO---" + nonce, self._server, self._transient_secret)
        self.command(b"HELLO", b"\1\0" + bytes(72) + self._transient + nonce + box)
        welcome = self.connection.take_output()[2 + 8 :]
        opened = sodium.crypto_box_open(welcome[16:], b"WELCOME-" + welcome[:16], self._server, self._transient_secret)
        self.shared = sodium.crypto_box_beforenm(opened[:32], self._transient_secret)
        nonce, vouch_nonce = self.nonce(), secrets.token_bytes(16)
        vouch = sodium.crypto_box(self._transient + self._server, b"VOUCH---" + vouch_nonce, opened[:32], self._secret)
        plain = self._alter(b"sealed", self._public + vouch_nonce + vouch + DEALER)
        box = sodium.crypto_box_afternm(plain, b"CurveZMQINITIATE" + nonce, self.shared)
        self.command(b"INITIATE", opened[32:] + nonce + box)

    def sealed(self, plain, nonce=None):
        nonce = nonce or self.nonce()
        box = sodium.crypto_box_afternm(plain, b"CurveZMQMESSAGEC" + nonce, self.shared)
        return frame(b"\x07MESSAGE" + nonce + box)

    def say(self, *frames):
        self.connection.feed(b"".join(frames))
        return self.connection.next_message()


def ready():
    client = Client()
    client.shake_hands()
    return client


def test_it_is_the_protocol():
    client = ready()
    assert client.connection.key == CLIENT.public.decode()
    assert client.say(client.sealed(b"\1" + FRAMES[0]), client.sealed(b"\0" + FRAMES[1])) == FRAMES


def test_a_key_that_is_not_on_the_list_is_told_so():
    client = Client(allowed=lambda key: False)
    with pytest.raises(RefusedError) as refused:
        client.shake_hands()
    assert refused.value.key == CLIENT.public.decode()
    assert client.connection.take_output() == frame(b"\x05ERROR\x03400", COMMAND)
    assert not client.connection.is_ready


@settings(max_examples=examples(200, quick=40))
@given(data=st.data(), name=st.sampled_from([b"HELLO", b"INITIATE", b"sealed"]))
def test_a_handshake_that_goes_wrong_anywhere_is_an_error(data, name):
    """Cut, lengthened or changed anywhere, outside of the boxes or in them: never another exception, and no entry."""

    def alter(which, content):
        if which != name:
            return content
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["cut", "flip", "insert"])):
            case "cut":
                return content[:at]
            case "flip":
                flipped = content[at] ^ data.draw(st.integers(1, 255))
                return content[:at] + bytes((flipped,)) + content[at + 1 :]
            case _:
                return content[:at] + data.draw(st.binary(min_size=1, max_size=20)) + content[at:]

    client = Client(alter=alter)
    try:
        client.shake_hands()
    except ZmtpError:
        assert not client.connection.is_ready
    else:  # padding and a client's other properties are not looked at; the key is the client's in any case
        assert client.connection.key == CLIENT.public.decode()


@pytest.mark.parametrize("point", [bytes(32), b"\1" + bytes(31), b"\xff" * 32])
def test_a_key_that_is_no_point_of_the_curve(point):
    client = Client()
    client._transient = point
    with pytest.raises(ZmtpError):
        client.shake_hands()


def test_the_secret_of_the_key_has_to_be_known():
    stolen = KeyPair(CLIENT.public, KeyPair.generate().secret)
    with pytest.raises(ZmtpError, match="not its own"):
        Client(keys=stolen).shake_hands()


@settings(max_examples=examples(200, quick=40))
@given(plain=st.binary(max_size=40), flags=st.sampled_from([0, MORE, 2, 3, 255]), raw=st.booleans())
def test_whatever_is_sealed_is_a_message_or_an_error(plain, flags, raw):
    client = ready()
    try:
        said = client.say(frame(plain) if raw else client.sealed(bytes((flags,)) + plain))
    except ZmtpError:
        return
    assert said in (None, [plain])


@pytest.mark.parametrize("plain", [b"", b"\2", b"\2\5PIN", b"\2\xffPING"])
def test_malformed_commands_in_a_box(plain):
    client = ready()
    with pytest.raises(ZmtpError):
        client.say(client.sealed(plain))


def test_a_ping_that_is_not_answered_leaves_no_gap_in_what_is_sent():
    """Nor any work: what is not sent is not sealed."""
    client = ready()
    client.connection.take_output()
    client.connection.feed(client.sealed(b"\2\4PING\0\0not now"))
    assert client.connection.next_message(answers=False) is None
    assert client.connection.take_output() == b""
    assert client.say(client.sealed(b"\2\4PING\0\0now")) is None
    pong = client.connection.take_output()[2 + len(b"\7MESSAGE") :]
    assert int.from_bytes(pong[:8], "big") == 2, "READY was the first"
    assert sodium.crypto_box_open_afternm(pong[8:], b"CurveZMQMESSAGES" + pong[:8], client.shared) == b"\2\4PONGnow"


def test_no_message_can_be_repeated():
    client = ready()
    nonce = client.nonce()
    assert client.say(client.sealed(b"\0hello", nonce)) == [b"hello"]
    with pytest.raises(ZmtpError, match="used before"):
        client.say(client.sealed(b"\0hello", nonce))
