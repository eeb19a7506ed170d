"""The executors' socket with keys: who gets in, who does not, and that both can change while it is open."""

import os
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
import zmq

from common import messages as m
from common.curve import ClientCurve, KeyFileError, KeyPair, certificate
from scheduler_svc.core.actions import Sent
from scheduler_svc.server.curve_auth import AllowList, KeyReader
from scheduler_svc.server.doorway import Doorway
from tests import ROOT
from tests.server.door import ANY_PORT, Door
from tests.support.core import Peer
from tests.support.eventually import eventually
from tests.support.hello import hello
from tests.support.keyed import client_curve, key_ring, server_curve, stranger_curve

BEAT = m.ExecutorHeartbeat(epoch=1)


@pytest.fixture
def ring(tmp_path):
    return key_ring(tmp_path / "keys", "one", "two")


class KeyedDoor(Door):
    """A door with keys, which are read again every moment, and the peers that come to it."""

    def __init__(self, ring, endpoint=ANY_PORT):
        curve = server_curve(ring) if ring is not None else None
        super().__init__(doorway=Doorway(endpoint, curve, reload_every_s=0.05))
        self.peers = []

    def peer(self, curve):
        self.peers.append(Peer(self.endpoint, m.SchedulerToExecutor, curve))
        return self.peers[-1]

    def heard(self, timeout_s=60.0):
        """The next message and who sent it; None if there is none in that time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            select.select([self.router], [], [], 0.01)
            for found in self.router.receive():
                return found
        return None

    def close(self):
        for peer in self.peers:
            peer.close()
        self.router.close()


@pytest.fixture
def door(ring):
    door = KeyedDoor(ring)
    yield door
    door.close()


def says(peer, message=BEAT):
    """Send, unless there is no connection."""
    peer.socket.set(zmq.SNDTIMEO, 0)
    with suppress(zmq.Again):
        peer.send(message)


def comes_in(door, curve):
    """What is heard first from peers with these keys, one after the other: one that was refused does not try again."""
    return eventually(lambda: says(door.peer(curve)) or door.heard(timeout_s=0.1))


def test_who_is_on_the_list_gets_in(door, ring):
    for name in ("one", "two", "one"):
        peer = door.peer(client_curve(ring, name))
        says(peer, hello(name))
        identity, message = door.heard()
        assert message.executor == name
        assert door.router.send(identity, m.Welcome(epoch=9)) is Sent.OK
        assert peer.receive(m.Welcome).epoch == 9


def strangers(ring):
    """Sockets' settings by what is wrong with them."""
    good = client_curve(ring, "one")
    return {
        "unknown key": stranger_curve(ring).protect,
        "wrong server key": ClientCurve(good.keys, KeyPair.generate().public).protect,
        "public key of another, without its secret": ClientCurve(
            KeyPair(good.keys.public, KeyPair.generate().secret), good.server_public
        ).protect,
        "no key": lambda socket: None,
        "password": lambda socket: (socket.set(zmq.PLAIN_USERNAME, b"one"), socket.set(zmq.PLAIN_PASSWORD, b"x")),
    }


def test_who_is_not_on_the_list_does_not_and_disturbs_nobody(door, ring):
    legit = door.peer(client_curve(ring, "one"))
    says(legit)
    identity, _ = door.heard()
    sockets = []
    for prepare in strangers(ring).values():
        for kind in (zmq.DEALER, zmq.REQ, zmq.ROUTER, zmq.SUB):
            stranger = zmq.Context.instance().socket(kind)
            stranger.linger = 0
            prepare(stranger)
            stranger.connect(door.router.endpoint)
            if kind in (zmq.DEALER, zmq.REQ):
                with suppress(zmq.Again):  # it may be refused by now: then it has no connection, and a send would wait
                    stranger.send_multipart(legit.codec.encode(hello("stranger")), zmq.NOBLOCK)
            sockets.append(stranger)
    assert door.heard(timeout_s=0.5) is None
    assert door.router.lost_connections() == [], "strangers are not worth looking for"
    assert door.drops.count == 0
    says(legit)
    assert door.heard() == (identity, BEAT)
    for stranger in sockets:
        stranger.close()
    legit.close()
    assert door.losses() == [identity]


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"\x01\x00\x02\x00hi",  # ZMTP 1, which has no security
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05\0\x00\x00\x02hi",  # ZMTP 2, the same
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48) + b"\x04\x26\x05READY",
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0CURVE" + bytes(47) + b"\x06\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0CURVE" + bytes(47) + b"\x04\xc8\x05HELLO" + bytes(194),
    ],
    ids=["silent", "http", "tls", "zmtp1", "zmtp2", "null", "huge frame", "bad hello"],
)
def test_bytes_that_are_no_handshake(door, ring, greeting):
    connections = [socket.create_connection(tuple_of(door.router.endpoint)) for _ in range(20)]
    for connection in connections:
        connection.sendall(greeting)
    legit = door.peer(client_curve(ring, "one"))
    says(legit)
    assert door.heard()[1] == BEAT
    for connection in connections:
        connection.close()
    assert door.heard(timeout_s=0.1) is None
    assert (door.router.lost_connections(), door.drops.count) == ([], 0)


def test_a_key_that_is_added_opens_the_door(door, ring, tmp_path):
    new = stranger_curve(ring)
    says(door.peer(new))
    assert door.heard(timeout_s=0.3) is None
    (ring.scheduler / "executor-new.key").write_text(certificate(new.keys.public))
    assert comes_in(door, new)[1] == BEAT


def test_a_key_that_is_revoked_ends_its_live_connection(door, ring):
    revoked, other = door.peer(client_curve(ring, "one")), door.peer(client_curve(ring, "two"))
    says(revoked)
    identity, _ = door.heard()
    says(other)
    other_identity, _ = door.heard()
    file = ring.scheduler / "executor-one.key"
    content = file.read_bytes()
    file.unlink()
    assert door.losses() == [identity]
    says(revoked)
    assert door.heard(timeout_s=0.1) is None
    assert door.router.send(identity, m.SchedulerHeartbeat(epoch=1)) is Sent.GONE
    assert door.router.send(other_identity, m.SchedulerHeartbeat(epoch=1)) is Sent.OK
    assert other.receive(m.SchedulerHeartbeat)
    says(door.peer(stranger_curve(ring)))
    assert door.heard(timeout_s=0.1) is None

    file.write_bytes(content)  # it was a mistake
    identity, _ = comes_in(door, client_curve(ring, "one"))
    assert door.router.send(identity, m.SchedulerHeartbeat(epoch=1)) is Sent.OK


def test_a_list_that_cannot_be_read_keeps_what_was_on_it(ring):
    allowed = AllowList(server_curve(ring))
    one = client_curve(ring, "one").keys.public.decode()
    assert one in allowed
    hidden = ring.scheduler.rename(ring.root / "elsewhere")
    allowed.reload()
    assert one in allowed
    hidden.rename(ring.scheduler)
    (ring.scheduler / "executor-one.key").unlink()
    (ring.scheduler / "executor-bad.key").write_text("nonsense")
    allowed.reload()
    assert one not in allowed
    assert client_curve(ring, "two").keys.public.decode() in allowed, "a bad file takes nothing from the others"


MALFORMED = "metadata\ncurve\n    public-key\n"


def test_a_malformed_file_does_not_keep_others_from_being_revoked(door, ring):
    revoked = door.peer(client_curve(ring, "one"))
    says(revoked)
    identity, _ = door.heard()
    (ring.scheduler / "executor-bad.key").write_text(MALFORMED)
    eventually(lambda: "executor-bad.key" in door.router.keys_failure)
    (ring.scheduler / "executor-one.key").unlink()
    assert door.losses() == [identity]


def test_whatever_goes_wrong_once_does_not_end_the_thread_that_revokes(capsys):
    calls = []

    def reload():
        calls.append(len(calls))
        if len(calls) <= 2:
            raise RuntimeError("a bug")

    reader = KeyReader(reload, every_s=0.01)
    try:
        eventually(lambda: len(calls) > 3)
    finally:
        reader.stop()
    assert capsys.readouterr().out.count("RuntimeError: a bug") == 2


def test_a_malformed_key_of_the_scheduler_is_told_before_anything_starts(ring):
    (ring.scheduler / "server.key_secret").write_text(MALFORMED)
    command = [sys.executable, "-m", "scheduler_svc", "--curve-keys", str(ring.scheduler), "--no-journal"]
    command += ["--port", "0", "--frontends", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "server.key_secret is no file of keys" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_replaced_is_read_again(ring):
    allowed = AllowList(server_curve(ring))
    old, new = client_curve(ring, "one").keys.public, KeyPair.generate().public
    file = ring.scheduler / "executor-one.key"
    status = file.stat()
    replacement = ring.scheduler / "replacement"
    replacement.write_text(certificate(new))
    os.utime(replacement, ns=(status.st_atime_ns, status.st_mtime_ns))  # same time, same size: only the inode differs
    replacement.rename(file)
    allowed.reload()
    assert new.decode() in allowed
    assert old.decode() not in allowed


def test_a_key_that_others_can_change_lets_nobody_in(ring):
    one, two = (client_curve(ring, name).keys.public.decode() for name in ("one", "two"))
    (ring.scheduler / "executor-one.key").chmod(0o666)
    allowed = AllowList(server_curve(ring))
    assert one not in allowed
    assert two in allowed, "it takes nothing from the others"
    (ring.scheduler / "executor-two.key").chmod(0o664)
    (ring.scheduler / "executor-one.key").chmod(0o644)
    allowed.reload()
    assert one in allowed
    assert two not in allowed


def test_a_folder_that_others_can_change_is_no_list(ring, capsys):
    curve = server_curve(ring)
    allowed = AllowList(curve)
    ring.scheduler.chmod(0o777)
    with pytest.raises(KeyFileError, match="can be changed by others"):
        AllowList(curve)
    (ring.scheduler / "executor-new.key").write_text(certificate(KeyPair.generate().public))
    (ring.scheduler / "executor-one.key").unlink()
    for _ in range(3):
        allowed.reload()
    assert client_curve(ring, "one").keys.public.decode() in allowed, "the list of before stays"
    assert capsys.readouterr().out.count("keeping those of before") == 1
    ring.scheduler.chmod(0o700)
    allowed.reload()
    assert client_curve(ring, "one").keys.public.decode() not in allowed


def test_a_folder_that_is_not_there_is_said_at_once(ring):
    curve = server_curve(ring)
    ring.scheduler.rename(ring.root / "elsewhere")
    with pytest.raises(KeyFileError, match=r"keys/scheduler cannot be read"):
        AllowList(curve)


def test_the_thread_that_reads_the_list_ends_with_the_door(ring):
    door = KeyedDoor(ring)
    readers = [thread for thread in threading.enumerate() if thread.name == "allow list"]
    assert readers
    door.close()
    assert not any(thread.is_alive() for thread in readers)


@pytest.mark.parametrize("transport", ["tcp://127.0.0.1:0", "ipc"])
def test_only_connections_that_spoke_are_counted_when_they_break(transport, tmp_path):
    door = KeyedDoor(None, transport if transport != "ipc" else f"ipc://{tmp_path}/socket")
    try:
        speaker, silent = door.peer(None), door.peer(None)
        says(speaker)
        identity, _ = door.heard()
        silent.close()
        speaker.close()
        assert door.losses() == [identity]
        assert door.heard(timeout_s=0.1) is None
        assert door.router.lost_connections() == []
    finally:
        door.close()


def tuple_of(endpoint):
    host, port = endpoint.removeprefix("tcp://").split(":")
    return host, int(port)
