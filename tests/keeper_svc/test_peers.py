"""A real keeper and peers that misbehave: each harms nobody but itself."""

import array
import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import msgspec
import pytest

from common import messages as m
from common.errors import KeeperError
from common.keeper_socket import connect_to_keeper, default_socket
from keeper_svc.server import MAX_CONNECTIONS
from tests.keeper_svc.processes import ROOT
from tests.support.any_message import AnyMessage
from tests.support.eventually import eventually
from tests.support.other_user import as_other_user, command_as, folder_of_all, needs_root


@pytest.fixture
def raw(keeper):
    """A connection that says anything."""
    with connect_to_keeper(keeper.path, 10.0) as connected:
        yield connected


def send(connected: socket.socket, packet: bytes, fds: list[int]) -> None:
    connected.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def register(**changes: object) -> bytes:
    fields = {"version": m.KEEPER_VERSION, "instance": "i" * 32, "name": "n", "pid": 1, **changes}
    return msgspec.msgpack.encode(m.Register(**fields))


def is_closed(connected: socket.socket) -> bool:
    """Read what comes until the end."""
    try:
        while connected.recv(m.MAX_ANSWER_BYTES):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("packet", [b"\xc1", b"x" * (m.MAX_REQUEST_BYTES + 1), b"\x91\xa5other", b"\x91" * 4000])
def test_a_malformed_packet_ends_its_connection_alone(keeper, raw, packet):
    other = keeper.connect()
    raw.send(packet)
    assert is_closed(raw)
    other.send(m.KeeperQuery())
    assert other.receive() is not None
    other.close()
    assert "message dropped" in keeper.log()


def test_files_that_do_not_belong_there_are_closed(keeper, raw):
    raw.send(msgspec.msgpack.encode(m.KeeperQuery()))
    raw.recv(m.MAX_ANSWER_BYTES)  # so its connection is among the files
    before = keeper.num_files()
    zero = os.open("/dev/zero", os.O_RDONLY)
    for count in (1, 2, 3, 250):
        with connect_to_keeper(keeper.path, 10.0) as connected:
            send(connected, msgspec.msgpack.encode(m.KeeperQuery()), [zero] * count)
            assert is_closed(connected)
    send(raw, register(), [zero])
    assert is_closed(raw)
    os.close(zero)
    assert eventually(lambda: keeper.num_files() == before - 1, 10.0)  # also raw's is closed


def test_a_pidfd_of_another_process_is_no_proof(keeper, raw):
    child = subprocess.Popen(["sleep", "60"])
    try:
        pidfd = os.pidfd_open(child.pid)
        send(raw, register(), [pidfd])
        os.close(pidfd)
        assert is_closed(raw)
    finally:
        child.kill()
        child.wait()
    assert "a pidfd of process" in keeper.log()


def test_a_peer_that_does_not_read_is_closed(keeper, raw):
    raw.settimeout(10.0)
    query = msgspec.msgpack.encode(m.KeeperQuery())
    with pytest.raises(ConnectionError):  # what it sends is read, until the answers fill its buffer
        deque((raw.send(query) for _ in range(100_000)), maxlen=0)
    assert "it takes no message" in keeper.log()
    assert keeper.report().pools == ()


def test_connections_are_bounded(keeper):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MAX_CONNECTIONS + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    connected = [connect_to_keeper(keeper.path, 10.0) for _ in range(MAX_CONNECTIONS + 10)]
    try:
        eventually(lambda: "which is the limit" in keeper.log(), 10.0)
        assert all(is_closed(late) for late in connected[MAX_CONNECTIONS:])
    finally:
        for one in connected:
            one.close()
    eventually(lambda: keeper.num_files() < 50, 10.0)
    assert keeper.report().pools == ()


def test_random_messages_end_no_keeper(keeper):
    rng = random.Random(5)
    make = AnyMessage(m.ToKeeper, rng, {"version": [m.KEEPER_VERSION], "instance": ["i" * 32]})
    pidfd, zero = os.pidfd_open(os.getpid()), os.open("/dev/zero", os.O_RDONLY)
    for _ in range(60):
        with connect_to_keeper(keeper.path, 10.0) as connected:
            try:
                send(connected, register(), [pidfd])
                for _ in range(rng.randrange(12)):
                    packet = bytearray(msgspec.msgpack.encode(make()))
                    if rng.random() < 0.3:
                        packet[rng.randrange(len(packet))] = rng.randrange(256)
                    send(connected, bytes(packet), rng.choice([[], [zero], [zero, zero], [pidfd]]))
            except (BrokenPipeError, ConnectionResetError):
                continue
    os.close(pidfd)
    os.close(zero)
    assert keeper.report().max_bytes > 0
    assert "Traceback" not in keeper.log()


def test_only_one_keeper_listens_at_a_path(keeper):
    command = [sys.executable, "-m", "keeper_svc", "--socket", str(keeper.path)]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (second.returncode, "another keeper listens at" in second.stderr) == (75, True)
    keeper.path.with_name("keeper.sock.lock").unlink()  # as something that tidies up might do
    third = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (third.returncode, "another keeper listens at" in third.stderr) == (75, True)
    assert keeper.kill(signal.SIGTERM) == 0
    assert not keeper.path.exists()


def test_the_socket_is_this_users_alone(keeper):
    assert keeper.path.stat().st_mode & 0o777 == 0o600
    assert keeper.path.parent.stat().st_mode & 0o777 == 0o700
    keeper.path.parent.chmod(0o750)
    with pytest.raises(KeeperError, match="is open to other users"):
        connect_to_keeper(keeper.path, 1.0)
    keeper.path.parent.chmod(0o1777)
    with pytest.raises(KeeperError, match=r"is open to other users \(mode 1777\)"):
        connect_to_keeper(keeper.path, 1.0)
    keeper.path.parent.chmod(0o700)


@pytest.mark.parametrize("what", ["mode", "link", "file", "parent"])
def test_a_folder_that_others_could_change_is_refused(folder, what):
    place = folder / "baton"
    match what:
        case "mode":
            place.mkdir(mode=0o777)
            place.chmod(0o777)
        case "link":
            place.symlink_to(folder)
        case "file":
            place.touch()
        case "parent":
            place = folder / "not" / "there"
    command = [sys.executable, "-m", "keeper_svc", "--socket", str(place / "keeper.sock")]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.startswith("baton-keeper: ")
    assert str(place) in refused.stderr


def test_where_the_socket_is(monkeypatch, folder):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert str(default_socket()) == f"{folder}/baton/keeper.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/0/not/there")
    assert str(default_socket()) == f"/tmp/baton-{os.geteuid()}/keeper.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert str(default_socket()) == f"/tmp/baton-{os.geteuid()}/keeper.sock"


def test_a_runtime_folder_with_a_long_name(monkeypatch, folder, stack):
    """A socket's own path has 107 bytes at most."""
    place = folder / ("x" * 60) / ("y" * 60)
    place.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    path = default_socket()
    assert path == place / "baton" / "keeper.sock"
    command = [sys.executable, "-m", "keeper_svc"]
    keeper = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    stack.callback(keeper.kill)
    assert any("ready" in line for line in keeper.stderr)
    connect_to_keeper(path, 5.0).close()
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (second.returncode, f"another keeper listens at {path}" in second.stderr) == (75, True)
    keeper.terminate()
    assert keeper.wait(20) == 0
    assert not path.exists()


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@needs_root
def test_where_another_user_has_made_the_usual_folder_another_one_is_found_by_all(stack):
    """`/tmp/baton-UID` can be made by anyone, before its user needs it."""
    uid = 100_000 + os.getpid()  # of no account, so that nothing else on this machine looks for its folder
    usual = Path(f"/tmp/baton-{uid}")
    as_other_user("os.mkdir(sys.argv[1], 0o777)", usual)
    home = stack.enter_context(folder_of_all(0o755))
    os.chown(home, uid, uid)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    run_keeper = command_as(uid, "main([])", before="from keeper_svc.__main__ import main")
    ask = command_as(
        uid,
        "connect_to_keeper(default_socket(), 5.0); print(default_socket())",
        before="from common.keeper_socket import connect_to_keeper, default_socket",
    )
    stack.callback(lambda: usual.exists() and usual.rmdir())
    keeper = subprocess.Popen(run_keeper, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    stack.enter_context(keeper)
    stack.callback(keeper.kill)
    assert any("ready" in line for line in keeper.stderr)
    usual.rmdir()  # whoever comes later still finds the keeper
    asked = subprocess.run(ask, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert asked.stdout == f"{home}/.baton-{socket.gethostname()}/keeper.sock\n", asked.stderr
    assert (home / f".baton-{socket.gethostname()}").stat().st_mode & 0o777 == 0o700
