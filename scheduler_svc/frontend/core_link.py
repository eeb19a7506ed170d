"""The frontend's side of the socket to the core: what is sent, what comes back, and whether the core lives."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from common import messages as m
from common.errors import RequestRejected, WireError
from common.logging import DropLog, get_logger
from common.wire import Codec
from scheduler_svc.frontend.inbox import Inbox

log = get_logger(__name__)

HELLO_INTERVAL_S = 1.0
HELLOS_UNANSWERED_WHEN_SILENT = 3
QUERY_TIMEOUT_S = 5.0
MAX_OPEN_REQUESTS = 8192
SEND_HIGH_WATER_MARK = 4 * MAX_OPEN_REQUESTS
RECEIVE_HIGH_WATER_MARK = 10_000  # steps' outputs: minutes of them, as those that do not fit are lost
LINGER_MS = 500

Reply = TypeVar("Reply", m.Status, m.Metrics)


class CoreLink:
    """One DEALER socket to the core, shared by all requests of this frontend.

    Sends never wait: a message that cannot be queued at once means that the core is gone or stuck, and the request
    it belongs to is refused. The core is *lost* when the connection breaks, and then every open request ends, as a
    core that comes back knows none of them; it is *silent* when it leaves several hellos unanswered, which only
    stops new requests. Silence is counted in hellos and not in seconds, so that a frontend that was itself frozen
    for a while does not take its own pause for the core's.
    """

    def __init__(self, endpoint: str, *, hello_interval_s: float = HELLO_INTERVAL_S) -> None:
        self._hello_interval_s = hello_interval_s
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # queue nothing for a core that is not there
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._socket.connect(endpoint)
        self._codec: Codec[m.CoreToFrontend] = Codec(m.CoreToFrontend)
        self._inboxes: dict[str, Inbox] = {}
        self._queries: dict[int, asyncio.Future[Any]] = {}
        self._query_ids = itertools.count()
        self._hellos_unanswered = 0
        self._is_connected = False
        self._fleet = m.FleetState(num_ready=0, fingerprint="", max_model_len=0)
        self._drops = DropLog(log, "core")

    @property
    def is_up(self) -> bool:
        """Whether the core was heard lately."""
        return self._is_connected and self._hellos_unanswered < HELLOS_UNANSWERED_WHEN_SILENT

    @property
    def silent_s(self) -> float:
        """Seconds for which the core has answered nothing, in steps of the hello interval."""
        return self._hellos_unanswered * self._hello_interval_s

    @property
    def fleet(self) -> m.FleetState:
        """The executors as the core last described them."""
        return self._fleet

    @property
    def num_dropped(self) -> int:
        """Messages from the core that were no messages."""
        return self._drops.count

    @property
    def num_open(self) -> int:
        """Requests the core is working on for this frontend."""
        return len(self._inboxes)

    async def run(self) -> None:
        """Talk to the core until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._say_hello())
            tasks.create_task(self._receive())
            tasks.create_task(self._watch_connection())

    def close(self) -> None:
        """Give the last Cancels a moment to leave, and close the socket."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()

    def open(self, submits: Sequence[m.Submit]) -> Inbox:
        """Submit requests that belong together and return where their deltas arrive.

        Raises:
            RequestRejected: the core is not there (`unavailable`), or too many requests are open (`queue_full`).
        """
        if not self.is_up:
            raise RequestRejected("the scheduler cannot be reached at the moment", "unavailable")
        if len(self._inboxes) + len(submits) > MAX_OPEN_REQUESTS:
            raise RequestRejected(f"{MAX_OPEN_REQUESTS} requests are open already", "queue_full")
        inbox = Inbox(submits, cancel=self._cancel, forget=self._forget)
        try:
            for submit in submits:
                self._inboxes[submit.request_id] = inbox
                self._send(submit)
        except RequestRejected:
            inbox.close()
            raise
        return inbox

    def end_all(self, reason: str) -> None:
        """End every open request with an `unavailable` error."""
        for inbox in dict.fromkeys(self._inboxes.values()):
            inbox.fail(RequestRejected(reason, "unavailable"))

    async def status(self) -> m.StatusReport:
        """The service as `GET /status` shows it. Raises RequestRejected if the core does not answer."""
        return (await self._ask(m.StatusQuery, m.Status)).report

    async def metrics(self) -> bytes:
        """The core's metrics in Prometheus' text format. Raises RequestRejected if the core does not answer."""
        return (await self._ask(m.MetricsQuery, m.Metrics)).text

    async def _ask(self, query: Callable[..., m.StatusQuery | m.MetricsQuery], expected: type[Reply]) -> Reply:
        query_id = next(self._query_ids) % 2**31
        answer = self._queries[query_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(query(query_id=query_id))
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                reply = await answer
        except TimeoutError:
            raise RequestRejected(f"the scheduler gave no answer in {QUERY_TIMEOUT_S:.0f} s", "unavailable") from None
        finally:
            del self._queries[query_id]
        if not isinstance(reply, expected):
            raise RequestRejected("the scheduler answered another question", "internal_error")
        return reply

    def _cancel(self, request_id: str, index: int) -> None:
        with contextlib.suppress(RequestRejected):  # a core that is gone has nothing left to cancel
            self._send(m.Cancel(request_id=request_id, index=index))

    def _forget(self, request_id: str) -> None:
        self._inboxes.pop(request_id, None)

    def _send(self, message: m.FrontendToCore) -> None:
        sent = self._socket.send_multipart(self._codec.encode(message), flags=zmq.NOBLOCK)
        try:
            cast("asyncio.Future[None]", sent).result()  # with NOBLOCK it is done already
        except zmq.Again:
            raise RequestRejected("the scheduler cannot be reached at the moment", "unavailable") from None

    async def _say_hello(self) -> None:
        hello = m.FrontendHello(pid=os.getpid())
        while True:
            with contextlib.suppress(RequestRejected):
                self._send(hello)
            await asyncio.sleep(self._hello_interval_s)
            self._hellos_unanswered += 1
            if self._is_connected and self._hellos_unanswered == HELLOS_UNANSWERED_WHEN_SILENT:
                log.warning("core silent", silent_s=self.silent_s, open_requests=self.num_open)

    async def _receive(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                self._take(self._codec.decode(frames))
            except WireError as error:
                self._drops.dropped("core", error)

    def _take(self, message: m.CoreToFrontend) -> None:
        if not self.is_up:
            log.info("core found")
        self._is_connected = True
        self._hellos_unanswered = 0
        match message:
            case m.Outputs():
                for delta in message.deltas:
                    # Deltas of requests that were just cancelled are still under way: they are nobody's.
                    if inbox := self._inboxes.get(delta.request_id):
                        self._deliver(delta, inbox)
            case m.FleetState():
                self._fleet = message
            case m.Status() | m.Metrics():
                answer = self._queries.get(message.query_id)
                if answer is not None and not answer.done():
                    answer.set_result(message)

    def _deliver(self, delta: m.TokenDelta, inbox: Inbox) -> None:
        try:
            inbox.put(delta)
        except WireError as error:  # only this delta: the others in its message are other requests' tokens
            self._drops.dropped("core", error)

    async def _watch_connection(self) -> None:
        while True:
            event = await recv_monitor_message(self._monitor)
            if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                with contextlib.suppress(RequestRejected):
                    self._send(m.FrontendHello(pid=os.getpid()))  # at once, so that requests need not wait for a beat
            elif self._is_connected:
                self._is_connected = False
                log.warning("core lost", open_requests=self.num_open)
                self.end_all("the scheduler went away")
