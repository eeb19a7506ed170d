"""The frontend's side of the socket to the core: what is sent, what comes back, and whether the core is alive."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Sequence

from common import messages as m
from common.errors import RequestRejected, WireError
from common.logging import DropLog, QuietLog, get_logger
from common.wire import Codec
from scheduler_svc.frontend.link.core_socket import ConnectionEvent, CoreSocket
from scheduler_svc.frontend.link.delta_queue import DeltaQueue, taken_over
from scheduler_svc.frontend.link.pending_attaches import PendingAttaches
from scheduler_svc.frontend.link.queries import QUERY_TIMEOUT_S, Queries, Query, Reply
from scheduler_svc.frontend.link.questions import Questions
from scheduler_svc.frontend.link.request_counts import RequestCounts

log = get_logger(__name__)

HELLO_INTERVAL_S = 1.0
HELLOS_UNANSWERED_WHEN_SILENT = 3
MAX_OPEN_REQUESTS = 8192
LOST = "a message of the scheduler was lost"  # and no stream may go on as if it had not been; clients can read on
MESSAGES_AT_ONCE = 16  # then others have a turn


class CoreLink(Questions):
    """One socket to the core, shared by all requests of this frontend.

    Sends never wait: a message that cannot be queued at once means that the core is gone or stuck, and the request
    it belongs to is refused. The core is *lost* when the connection breaks, and then every open answer ends here: a
    core that comes back may know the requests, and clients that come back ask for theirs. The core is *silent* when it
    leaves several hellos unanswered, which only stops new requests. Silence is counted in hellos and not in seconds,
    so that a frontend that was itself frozen for a while does not mistake its own pause for the core's.

    Args:
        query_timeout_s: in which the core answers a query, or does not.
        max_open: requests at once.
        make_socket: makes what the endpoint is reached by.

    Attributes:
        counts: of this frontend's requests; the core is told with each hello.
        on_view: is called with each View.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        hello_interval_s: float = HELLO_INTERVAL_S,
        query_timeout_s: float = QUERY_TIMEOUT_S,
        max_open: int = MAX_OPEN_REQUESTS,
        make_socket: Callable[[str, int], CoreSocket] = CoreSocket,
    ) -> None:
        self.counts = RequestCounts()
        self.on_view: Callable[[m.View], None] = lambda _: None
        self._hello_interval_s = hello_interval_s
        self._max_open = max_open
        self._socket = make_socket(endpoint, 4 * MAX_OPEN_REQUESTS)
        self._codec: Codec[m.CoreToFrontend] = Codec(m.CoreToFrontend)
        self._cores_codec: Codec[m.FrontendToCore] = Codec(m.FrontendToCore)
        self._unreadable = QuietLog(log, "message not sent: the core could not read it")
        self._queues: dict[str, DeltaQueue] = {}
        self._pending_attaches = PendingAttaches()
        self._queries = Queries(self._send, query_timeout_s)
        self._hellos_unanswered = 0
        self._num_outputs: int | None = 0  # of this connection; None if one may have been unreadable
        self._is_connected = False
        self._fleet = m.FleetState(num_ready=0, fingerprint="", max_model_len=0)
        self._drops = DropLog(log, "core")

    @property
    def is_up(self) -> bool:
        """Whether the core has answered lately."""
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
        """Messages from the core that could not be used."""
        return self._drops.count

    @property
    def num_open(self) -> int:
        """Requests that the core is working on for this frontend."""
        return len(self._queues)

    @property
    def num_lost_with_the_core(self) -> int:
        """Those of them that end when the core does, because no journal brings them back."""
        return sum(not queue.is_resumable for queue in self._open_queues())

    async def run(self) -> None:
        """Talk to the core until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._say_hello())
            tasks.create_task(self._receive())
            tasks.create_task(self._watch_connection())

    def close(self) -> None:
        """Give the last Cancels and counts a moment to leave, and close the socket."""
        self._report()
        self._socket.close()

    def open(self, submits: Sequence[m.Submit], *, is_resumable: bool = False, num_following: int = 0) -> DeltaQueue:
        """Submit requests that belong together and return where their deltas arrive.

        Args:
            num_following: how many the caller is going to `submit` at once; they have to find room, too.

        Raises:
            RequestRejected: the core cannot be reached (`unavailable`), too many requests are open (`queue_full`), the
                id is in use (`request_exists`), or the core could not read one (`internal_error`).
        """
        self._check_room(len(submits) + num_following)
        first, tell = submits[0], self._tell
        queue = DeltaQueue(tell, self._forget, is_streamed=first.stream, is_resumable=is_resumable, asked=first.params)
        self.submit(submits, queue)
        return queue

    def submit(self, submits: Sequence[m.Submit], queue: DeltaQueue, first_prompt: int = 0) -> None:
        """Submit further requests, whose deltas arrive in a queue; the first one is the answer's prompt of this number.
        Raises as `open` does, and closes the queue then."""
        try:
            self._check_room(len(submits))
            for submit in submits:
                if submit.request_id in self._queues or submit.request_id in self._pending_attaches:
                    raise RequestRejected("its request id is in use", "request_exists")
            for prompt, submit in enumerate(submits, start=first_prompt):
                self._send(submit)
                queue.add(submit.request_id, prompt, submit.n)
                self._queues[submit.request_id] = queue
        except RequestRejected:
            queue.close()
            raise

    def attach_queue(self) -> DeltaQueue:
        """A queue for requests that will be attached to. Its owner closes it."""
        return DeltaQueue(self._tell, self._forget, is_streamed=True, is_resumable=True)

    def attach(self, request_id: str, prompt: int, queue: DeltaQueue) -> "asyncio.Future[m.Attached]":
        """Continue a prompt's request in `queue`, from its first token; its reader until now gets no more of it.

        Returns:
            The core's answer, or the RequestRejected that keeps it from coming.

        Raises:
            RequestRejected: the core cannot be reached (`unavailable`), or too many requests are open (`queue_full`).
        """
        self._check_room(1)
        self._send(m.Attach(request_id=request_id))
        if (earlier := self._queues.get(request_id)) is not None:
            earlier.fail(taken_over())  # at once, as its later messages to the core would be taken for the new reader's
        return self._pending_attaches.expect(request_id, prompt, queue)

    def cancel(self, request_id: str) -> bool:
        """Cancel the whole answer that this request is part of. Returns whether it is answered here."""
        if (queue := self._queues.get(request_id)) is not None:
            queue.cancel()
        return queue is not None

    def revoke(self, client: str) -> None:
        """Have the core end all that a client has open. Raises RequestRejected if that cannot be sent now."""
        self._check_room(0)
        self._send(m.Revoke(client=client))

    def leave_all(self, reason: str) -> None:
        """End every open answer with an `unavailable` error; the requests continue for a while."""
        for queue in self._open_queues():
            queue.detach()
            queue.fail(RequestRejected(reason, "unavailable"))

    def fail_all(self, reason: str) -> None:
        """End every open answer with an `unavailable` error; no core is told."""
        for queue in self._open_queues():
            queue.fail(RequestRejected(reason, "unavailable"))
        self._pending_attaches.fail_all(reason)
        self._queries.fail_all(reason)

    async def metrics(self) -> bytes:
        """The metrics of the core and of all frontends, this one's up to now, in Prometheus' text format. Raises
        RequestRejected if the core does not answer."""
        self._report()
        return (await self.ask(m.MetricsQuery, m.Metrics)).text

    async def ask(self, query: Callable[..., Query], expected: type[Reply]) -> Reply:
        """The core's answer to a query. Raises RequestRejected if there is none."""
        self._take_events()  # or the answer could be passed over with what came before them
        return await self._queries.ask(query, expected)

    def send_views(self, wish: m.SendViews) -> None:
        """Ask for Views. Raises RequestRejected if that cannot be sent now."""
        self._send(wish)

    def _check_room(self, num_requests: int) -> None:
        self._take_events()  # or what goes out by the next connection would be failed by the end of the last one
        if not self.is_up:
            raise RequestRejected("the scheduler cannot be reached at the moment", "unavailable")
        if len(self._queues) + num_requests > self._max_open:
            raise RequestRejected(f"{self._max_open} requests are open already", "queue_full")

    def _open_queues(self) -> list[DeltaQueue]:
        return list(dict.fromkeys(self._queues.values()))

    def _tell(self, message: m.Cancel | m.Detach) -> None:
        with contextlib.suppress(RequestRejected):  # a core that is gone need not be told
            self._send(message)

    def _report(self) -> None:
        """Tell the core what was counted; if that cannot be sent now, it is told later."""
        report = self.counts.report()
        if report is None or not self._is_connected:
            return
        with contextlib.suppress(RequestRejected):
            self._send(report)
            self.counts.reported()

    def _forget(self, queue: DeltaQueue) -> None:
        for request_id in queue.request_ids:
            if self._queues.get(request_id) is queue:  # and not the queue that has taken it over
                del self._queues[request_id]

    def _send(self, message: m.FrontendToCore) -> None:
        """Send what the core can read: it drops anything else, and what waits for its answer would wait for ever. To
        read a request takes a microsecond, and one more for 40 kB.

        Raises:
            RequestRejected: the core cannot be reached (`unavailable`), or could not read this (`internal_error`).
        """
        frames = self._codec.encode(message)
        try:
            self._cores_codec.decode(frames)
        except WireError as error:
            self._unreadable.happened(message=type(message).__name__, reason=str(error))
            raise RequestRejected(f"the scheduler could not read this request: {error}", "internal_error") from error
        self._socket.send(frames)

    async def _say_hello(self) -> None:
        hello = m.FrontendHello(pid=os.getpid())
        while True:
            with contextlib.suppress(RequestRejected):
                self._send(hello)
            self._report()
            await asyncio.sleep(self._hello_interval_s)
            self._hellos_unanswered += 1
            if self._is_connected and self._hellos_unanswered == HELLOS_UNANSWERED_WHEN_SILENT:
                log.warning("core silent", silent_s=self.silent_s, open_requests=self.num_open)

    async def _receive(self) -> None:
        while True:
            await self._socket.wait_for_message()
            for frames in itertools.islice(self._socket.messages(), MESSAGES_AT_ONCE):
                if self._take_events():
                    continue  # see `CoreSocket`
                try:
                    self._take(self._codec.decode(frames))
                except WireError as error:
                    self._drops.dropped("core", error)
                    self._num_outputs = None
                    self.leave_all(LOST)
            await asyncio.sleep(0)

    def _take(self, message: m.CoreToFrontend) -> None:
        if not self.is_up:
            log.info("core found")
        self._is_connected = True
        self._hellos_unanswered = 0
        match message:
            case m.Outputs():
                self._take_outputs(message)
            case m.Attached():
                self._attached(message)
            case m.Accepted(request_ids=request_ids):
                for request_id in request_ids:
                    if queue := self._queues.get(request_id):
                        queue.accept(request_id)
            case m.RateLimits(request_id=request_id):
                if queue := self._queues.get(request_id):
                    queue.counted(message)
            case m.FleetState():
                self._fleet = message
            case m.View():
                self.on_view(message)
            case m.Status() | m.Metrics() | m.DrainReply() | m.Life() | m.BlockHolders():
                self._queries.answered(message)

    def _take_outputs(self, outputs: m.Outputs) -> None:
        if self._num_outputs not in (None, outputs.number):
            self._drops.dropped("core", f"what came before Outputs {outputs.number}")
            self.leave_all(LOST)
        self._num_outputs = outputs.number + 1
        for delta in outputs.deltas:
            # Deltas of requests that were just cancelled are still in flight: no queue takes them.
            if queue := self._queues.get(delta.request_id):
                self._deliver(delta, queue)

    def _deliver(self, delta: m.TokenDelta, queue: DeltaQueue) -> None:
        try:
            queue.put(delta)
        except WireError as error:  # only this answer: the other deltas of its message belong to other requests
            self._drops.dropped("core", error)
            queue.leave()
            queue.fail(RequestRejected(LOST, "unavailable"))

    def _attached(self, answer: m.Attached) -> None:
        """Deltas that come after this answer belong to the new reader, and earlier ones do not."""
        request_id = answer.request_id
        try:
            reader = self._pending_attaches.answered(request_id)
        except KeyError:
            # The reader that asked has given up. One that asked again is reading the replay for the first request, and
            # would now read it twice.
            if (queue := self._queues.get(request_id)) is not None:
                queue.fail(RequestRejected("the stream has lost its place", "unavailable"))
            self._tell(m.Detach(request_id=request_id))
            return
        if reader is not None and reader.answer.done():
            self._tell(m.Detach(request_id=request_id))
        elif reader is not None:
            if answer.found and not reader.queue.has_failed:
                reader.queue.add(request_id, reader.prompt, answer.n)
                self._queues[request_id] = reader.queue
            reader.answer.set_result(answer)

    async def _watch_connection(self) -> None:
        while True:
            await self._socket.wait_for_event()
            self._take_events()

    def _take_events(self) -> bool:
        """What has happened to the connection; taken before what came later, or that would seem to have ended.

        Returns:
            Whether anything has.
        """
        has_changed = False
        for event in self._socket.events():
            has_changed = True
            if event is ConnectionEvent.BEGUN:
                self._num_outputs = 0
                with contextlib.suppress(RequestRejected):
                    self._send(m.FrontendHello(pid=os.getpid()))  # so that requests need not wait for the next hello
            elif self._is_connected:
                self._is_connected = False
                log.warning("core lost", open_requests=self.num_open)
                self.fail_all("the scheduler went away")
        return has_changed
