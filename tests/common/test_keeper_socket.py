"""Reaching a keeper that is busy."""

import contextlib
import signal
import socket

import pytest

from common.errors import KeeperError
from common.keeper_socket import connect_to_keeper


@pytest.fixture
def busy(tmp_path):
    """A socket whose backlog has no place left, and its path."""
    tmp_path.chmod(0o700)
    path = tmp_path / "keeper.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(path))
        listener.listen(0)
        stack.enter_context(connect_to_keeper(path, 5.0))
        yield listener, path


def test_signals_do_not_end_the_wait_for_a_busy_keeper(busy):
    """The kernel gives up a connect that a signal interrupts, so it is asked for again."""
    listener, path = busy
    num_signals = 0

    def accept_at_the_third(*_):
        nonlocal num_signals
        num_signals += 1
        if num_signals == 3:
            signal.setitimer(signal.ITIMER_REAL, 0)
            listener.accept()[0].close()

    before = signal.signal(signal.SIGALRM, accept_at_the_third)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with connect_to_keeper(path, 60.0) as connected:
            assert num_signals == 3
            assert connected.getpeername() == str(path)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_keeper_that_takes_no_connection_is_told_as_that(busy):
    with pytest.raises(KeeperError, match=r"has taken no connection for 0\.1 s"):
        connect_to_keeper(busy[1], 0.1)
