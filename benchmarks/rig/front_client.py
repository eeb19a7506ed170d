"""A frontend without HTTP: it sends token ids to the core through the core's ZeroMQ socket, and gets tokens back."""

import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import zmq

from benchmarks.rig.runs import TimedRun
from common import messages as m
from common.wire import Codec

HELLO_INTERVAL_S = 1.0
STALL_S = 120.0  # without a token
_POLL_S = 0.1
_HIGH_WATER_MARK = 100_000


class FrontClient:
    """Submits requests and takes their tokens, in one thread. A context manager.

    Args:
        endpoint: the core's endpoint for frontends.
    """

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(option, _HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        self._codec: Codec[m.CoreToFrontend] = Codec(m.CoreToFrontend)
        self._hello_due_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()

    def wait_ready(self, check: Callable[[], None], timeout_s: float) -> None:
        """Wait until an executor has joined.

        Args:
            check: called at each turn; raises if waiting is in vain.

        Raises:
            TimeoutError: no executor joined.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            check()
            message = self._receive()
            if isinstance(message, m.FleetState) and message.num_ready:
                return
        raise TimeoutError(f"no executor has joined after {timeout_s:.0f} s")

    def run(self, requests: Sequence[m.Submit]) -> TimedRun:
        """Submit all requests at once and wait for all their tokens.

        Raises:
            RuntimeError: a request ended before its length.
            TimeoutError: the tokens stopped coming.
        """
        left = {request.request_id: request.params.max_tokens for request in requests}
        num_tokens = sum(left.values())
        start_s = heard_s = time.monotonic()
        for request in requests:
            self._socket.send_multipart(self._codec.encode(request))
        while left:
            message = self._receive()
            if isinstance(message, m.Outputs):
                heard_s = time.monotonic()
                for delta in message.deltas:
                    _take(delta, left)
            if time.monotonic() - heard_s > STALL_S:
                raise TimeoutError(f"{len(left)} of {len(requests)} requests are open, and no token comes any more")
        return TimedRun(start_s, time.monotonic(), num_tokens)

    def _receive(self) -> m.CoreToFrontend | None:
        """The next message, or None if none comes soon. Sends a Hello when one is due."""
        if time.monotonic() >= self._hello_due_s:
            self._hello_due_s = time.monotonic() + HELLO_INTERVAL_S
            self._socket.send_multipart(self._codec.encode(m.FrontendHello(pid=os.getpid())))
        if not self._socket.poll(int(1000 * _POLL_S)):
            return None
        return self._codec.decode(self._socket.recv_multipart())


def _take(delta: m.TokenDelta, left: dict[str, int]) -> None:
    """Subtract a delta's tokens from those that its request has yet to get."""
    left[delta.request_id] -= len(delta.token_ids) // 4
    if delta.finish_reason is None:
        return
    missing = left.pop(delta.request_id)
    if delta.finish_reason != "length" or missing:
        raise RuntimeError(
            f"{delta.request_id} ended with {delta.finish_reason!r} and {missing} tokens missing. {delta.error}"
        )
