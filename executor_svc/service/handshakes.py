"""Why this executor has no scheduler, and when to try again."""

import threading
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from common.logging import Logger
from executor_svc.service.scheduler_address import try_to_connect

RETRY_DELAY_S = 2.0
REPEAT_INTERVAL_S = 60.0  # between two lines that say the same
PATIENCE_S = 5.0  # without a scheduler before anything is said: one that is started again is back sooner

_MECHANISM_MISMATCH = 0x11000002  # ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH, which pyzmq does not name
_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Handshakes:
    """Watches the handshakes of one socket after the other, and how long there has been no scheduler.

    libzmq never again tries to connect a socket whose handshake was refused. But an operator may put our key on the
    scheduler's list, so the socket has to be replaced by a new one, which tries.

    Args:
        log: gets a line when a handshake fails, and again once a minute while it fails for the same reason; and one a
            minute while no scheduler answers.
        has_keys: whether this executor has keys.
    """

    def __init__(self, log: Logger, *, has_keys: bool) -> None:
        self._log = log
        self._has_keys = has_keys
        self._endpoint = ""
        self._retry_at: float | None = None
        self._reason = ""
        self._repeat_at = 0.0
        self._alone_since: float | None = None
        self._num_hellos = 0  # since then

    def watch(self, socket: "zmq.Socket[Any]", endpoint: str) -> "zmq.Socket[Any]":
        """Watch this socket from now on, which connects to `endpoint`. Returns the monitor to poll; it is closed along
        with the socket."""
        self._retry_at = None
        self._endpoint = endpoint
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

    def said_hello(self) -> None:
        """Count a Hello: it can be sent only where a connection has come about."""
        self._num_hellos += 1

    def has_scheduler(self) -> None:
        """Note that there is one, or that none is looked for."""
        self._alone_since, self._num_hellos = None, 0

    def has_none(self, now: float) -> None:
        """Note that there is none, and say once a minute why, unless a handshake has failed and said more."""
        if self._alone_since is None:
            self._alone_since = now
        if now < self._alone_since + PATIENCE_S or now < self._repeat_at:
            return
        self._reason, self._repeat_at = "", now + REPEAT_INTERVAL_S
        facts = (self._endpoint, self._num_hellos, round(now - self._alone_since))
        threading.Thread(target=self._look, args=facts, daemon=True).start()  # a name may take long to be looked up

    def _look(self, endpoint: str, num_hellos: int, waited_s: int) -> None:
        tried, check = try_to_connect(endpoint)
        if num_hellos:
            tried = f"to say Hello, {num_hellos} times: no answer"
            check = (
                "whether the scheduler is stuck (baton status), or keeps this executor out for a while after failures"
            )
        event = "no answer from the scheduler, trying again"
        self._log.warning(event, scheduler=endpoint, waited_s=waited_s, tried=tried, check=check)

    def _report(self, reason: str, now: float) -> None:
        if reason != self._reason or now >= self._repeat_at:
            self._log.warning("no way in to the scheduler, trying again", scheduler=self._endpoint, reason=reason)
            self._reason, self._repeat_at = reason, now + REPEAT_INTERVAL_S


def _describe(event: int, value: int, *, has_keys: bool) -> str:
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "this executor's key is not on its list"
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        other = "has another key than server.key says, or none" if has_keys else "asks for keys (--curve-keys)"
        return f"it broke off the handshake: it is stopping, or it {other}"
    if value == _MECHANISM_MISMATCH:
        return "it has no keys (--curve-keys)" if has_keys else "it asks for keys (--curve-keys)"
    return f"protocol error {value:#x}: is that the port of executors (--executor-endpoint)?"
