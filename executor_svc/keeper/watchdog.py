"""Kills an executor when its keeper says so, for a keeper that cannot: it is in another PID namespace.

A program of its own, beside an executor and in its PID namespace: `python -I -S watchdog.py SOCKET PIDFD ORDER`. It
imports next to nothing, so that it starts in 20 ms and takes 8 MB. It ends when the executor or the connection ends.

    SOCKET  descriptor of a connection to the keeper that has sent Watch
    PIDFD   descriptor of the executor
    ORDER   the packet that means "kill it", in hexadecimal
"""

import select
import signal
import socket
import sys

_MAX_BYTES = 2**17


def watch(connection: socket.socket, pidfd: int, order: bytes) -> None:
    """Wait for the order, and kill the executor then."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    poller.register(pidfd, select.POLLIN)
    while True:
        readable = {fd for fd, _ in poller.poll()}
        if pidfd in readable:
            return
        try:
            packet = connection.recv(_MAX_BYTES)
        except OSError:
            return
        if packet == order:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not packet:
            return


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends them to the executor, too, which may take its time
    watch(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), bytes.fromhex(sys.argv[3]))
