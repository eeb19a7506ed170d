"""Where the core listens: every kind of endpoint, and what is said of one that cannot be bound."""

import contextlib
import socket
from pathlib import Path

import pytest

from scheduler_svc.server.listener import EndpointError, Listener
from tests.support.eventually import eventually


def reaches(listener, family, address):
    """Whether a connection to the address is accepted."""
    with socket.socket(family) as client:
        client.connect(address)
        connection, whom = eventually(listener.accept)
        connection.close()
        return whom


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "*"])
@pytest.mark.parametrize("port", ["0", "*"])
def test_tcp(host, port):
    listener = Listener(f"tcp://{host}:{port}")
    picked = int(listener.endpoint.rpartition(":")[2])
    assert listener.endpoint == f"tcp://{'0.0.0.0' if host == '*' else host}:{picked}"
    assert reaches(listener, socket.AF_INET, ("127.0.0.1", picked)).startswith("127.0.0.1:")
    assert listener.accept() is None
    listener.close()


def test_ipv6():
    if not socket.has_ipv6:
        pytest.skip("needs IPv6")
    try:
        listener = Listener("tcp://[::1]:0")
    except EndpointError as error:
        pytest.skip(str(error))
    port = int(listener.endpoint.rpartition(":")[2])
    assert reaches(listener, socket.AF_INET6, ("::1", port)).startswith("::1:")
    listener.close()


def test_a_socket_file_that_a_killed_process_left_is_replaced_and_a_live_one_is_not(tmp_path):
    path = tmp_path / "core"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.listen()
    with pytest.raises(EndpointError, match="Address already in use"):
        Listener(f"ipc://{path}")
    left.close()
    listener = Listener(f"ipc://{path}")
    assert reaches(listener, socket.AF_UNIX, str(path)).startswith("pid ")
    listener.close()
    assert not path.exists()


def test_a_listener_that_is_too_busy_to_answer_keeps_its_file(tmp_path):
    path = str(tmp_path / "core")
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as stack:
        stack.callback(socket.setdefaulttimeout, socket.getdefaulttimeout())
        socket.setdefaulttimeout(0.1)  # or a call that waits would hang here
        busy.bind(path)
        busy.listen(0)
        for _ in range(2):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            client.connect_ex(path)
        with pytest.raises(EndpointError, match="Address already in use"):
            Listener(f"ipc://{path}")
        assert Path(path).is_socket()


def test_a_socket_of_another_kind_keeps_its_file(tmp_path):
    path = tmp_path / "core"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(EndpointError, match="Address already in use"):
            Listener(f"ipc://{path}")
        assert path.is_socket()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "core"
    path.write_text("precious")
    with pytest.raises(EndpointError):
        Listener(f"ipc://{path}")
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("http://127.0.0.1:5555", "neither tcp://host:port nor ipc://path"),
        ("127.0.0.1:5555", "neither tcp://host:port nor ipc://path"),
        ("tcp://127.0.0.1", "tcp://127.0.0.1: "),
        ("tcp://127.0.0.1:port", "invalid literal"),
        ("tcp://127.0.0.1:99999", "port 99999, allowed are 0 to 65535"),
        ("tcp://192.0.2.1:0", "Cannot assign requested address"),
        ("ipc:///nowhere/at/all", "No such file or directory"),
        ("ipc://" + "x" * 300, "path has 300 bytes, the limit of a socket's is 107"),
    ],
)
def test_what_cannot_be_bound_is_said(endpoint, reason):
    with pytest.raises(EndpointError, match=reason):
        Listener(endpoint)
