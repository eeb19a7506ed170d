"""Why this executor cannot connect to its scheduler, and when to try again."""

from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from common.logging import Logger

RETRY_DELAY_S = 2.0
REPEAT_INTERVAL_S = 60.0  # between two lines that say the same

_MECHANISM_MISMATCH = 0x11000002  # ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH, which pyzmq does not name
_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Handshakes:
    """Watches the handshakes of one socket after the other.

    libzmq never again tries to connect a socket whose handshake was refused. But an operator may put our key on the
    scheduler's list, so the socket has to be replaced by a new one, which tries.

    Args:
        log: gets a line when a handshake fails, and again once a minute while it fails for the same reason.
        has_keys: whether this executor has keys.
    """

    def __init__(self, log: Logger, *, has_keys: bool) -> None:
        self._log = log
        self._has_keys = has_keys
        self._retry_at: float | None = None
        self._reason = ""
        self._repeat_at = 0.0

    def watch(self, socket: "zmq.Socket[Any]") -> "zmq.Socket[Any]":
        """Watch this socket from now on. Returns the monitor to poll; it is closed along with the socket."""
        self._retry_at = None
        return socket.get_monitor_socket(_FAILURES)

    def take(self, monitor: "zmq.Socket[Any]", now: float) -> None:
        """Take in the monitor's events."""
        while monitor.poll(0):
            event = parse_monitor_message(monitor.recv_multipart())
            if event["event"] != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # after that event libzmq does try again
                self._retry_at = now + RETRY_DELAY_S
            self._report(_describe(event["event"], event["value"], has_keys=self._has_keys), now)

    def retry_is_due(self, now: float) -> bool:
        """Whether to replace the socket."""
        return self._retry_at is not None and now >= self._retry_at

    def _report(self, reason: str, now: float) -> None:
        if reason != self._reason or now >= self._repeat_at:
            self._log.warning("no way in to the scheduler, trying again", reason=reason)
            self._reason, self._repeat_at = reason, now + REPEAT_INTERVAL_S


def _describe(event: int, value: int, *, has_keys: bool) -> str:
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "this executor's key is not on its list"
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        other = "has another key than server.key says, or none" if has_keys else "asks for keys (--curve-keys)"
        return f"it broke off the handshake: it is stopping, or it {other}"
    if value == _MECHANISM_MISMATCH:
        return "it has no keys (--curve-keys)" if has_keys else "it asks for keys (--curve-keys)"
    return f"protocol error {value:#x}"
