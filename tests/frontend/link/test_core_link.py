"""The link to a core that comes, goes, says nothing, or says nonsense."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import zmq

from common import messages as m
from common.errors import RequestRejected
from common.wire import HEADER, MAX_MESSAGE_BYTES, Codec
from scheduler_svc.frontend.link import core_link, queries
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.core_socket import ConnectionEvent, CoreSocket
from tests.frontend.links import HELLO_INTERVAL_S, PARAMS, in_event_loop, linked_core, running_link, submit, until
from tests.support.eventually import eventually
from tests.support.fake_core import REPORT, FakeCore, delta, int32, outputs, silence
from tests.support.views import change


@in_event_loop
async def test_a_core_that_comes_back(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (core, link):
        queues = [link.open([submit(f"r{i}")]) for i in range(3)]
        await asyncio.to_thread(core.close)
        for queue in queues:  # none of them hangs
            with pytest.raises(RequestRejected, match="went away") as caught:
                await asyncio.wait_for(queue.get(), 60)
            assert caught.value.code == "unavailable"
        assert not link.is_up
        assert link.num_open == 0
        with pytest.raises(RequestRejected, match="cannot be reached"):
            link.open([submit()])
        with contextlib.closing(FakeCore(tmp_path)):
            await until(lambda: link.is_up)
            choice, answer = (await link.open([submit("again")]).get())[0]
            assert (choice, answer.token_ids) == (0, int32([1]))
        core.close()


@in_event_loop
async def test_a_core_that_is_lost_is_told_nothing(tmp_path: Path):
    """It may come back with its journal, and then a Cancel would end what its client comes back for."""
    async with linked_core(tmp_path, silence) as (core, link):
        queues = [link.open([submit(f"r{i}")], is_resumable=bool(i)) for i in range(2)]
        await until(lambda: len(core.submits) == 2)
        await asyncio.to_thread(core.close)
        with contextlib.closing(FakeCore(tmp_path, script=silence, stories=core.stories)) as restarted:
            await until(lambda: link.is_up and not link.num_open)
            for queue in queues:
                queue.close()
            await link.status()  # whatever was sent before has arrived
            assert not restarted.cancels
            assert not restarted.detaches


@in_event_loop
async def test_what_is_read_when_the_frontend_stops_goes_on(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (core, link):
        queue = link.open([submit("a"), submit("b")])
        link.leave_all("the server is shutting down")
        with pytest.raises(RequestRejected, match="shutting down"):
            await queue.get()
        await link.status()
        assert [detach.request_id for detach in core.detaches] == ["a", "b"]
        assert not core.cancels


@in_event_loop
async def test_an_id_that_is_open_here(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (core, link):
        queue = link.open([submit("a")])
        with pytest.raises(RequestRejected, match="id is in use") as caught:
            link.open([submit("b"), submit("a")])
        assert caught.value.code == "request_exists"
        assert link.num_open == 1
        link.attach("c", 0, link.attach_queue())
        with pytest.raises(RequestRejected, match="id is in use"):
            link.open([submit("c")])
        queue.close()
        await link.status()
        assert [request.request_id for request in core.submits] == ["a"]


@in_event_loop
async def test_a_core_that_is_not_there_yet(tmp_path: Path):
    async with running_link(f"ipc://{tmp_path}/core.sock") as link:
        with pytest.raises(RequestRejected, match="cannot be reached"):
            link.open([submit()])
        await until(lambda: link.silent_s >= 0.3)
        core = FakeCore(tmp_path)
        await until(lambda: link.is_up)
        assert link.fleet == core.fleet
        core.close()


@in_event_loop
async def test_a_core_that_is_silent(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (core, link):
        queue = link.open([submit()])
        core.answers_hellos = False
        await until(lambda: not link.is_up)
        assert link.silent_s >= core_link.HELLOS_UNANSWERED_WHEN_SILENT * HELLO_INTERVAL_S
        assert link.num_open == 1  # it may be busy: what it works on is not given up
        core.answers_hellos = True
        await until(lambda: link.is_up)
        assert link.silent_s == 0
        queue.close()


SPOILED = {
    "parameter": {"params": msgspec.structs.replace(PARAMS, top_k=-1)},
    "no number": {"params": msgspec.structs.replace(PARAMS, temperature=math.nan)},
    "stop token": {"params": msgspec.structs.replace(PARAMS, stop_token_ids=(-1,))},
    "constraint": {"params": msgspec.structs.replace(PARAMS, constraints=m.Constraints(repetition_penalty=0.0))},
    "field": {"n": 1000},
    "size": {"prompt": bytes(MAX_MESSAGE_BYTES)},
}


@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=[*SPOILED])
@in_event_loop
async def test_what_the_core_could_not_read_is_refused_and_waits_for_nothing(tmp_path: Path, spoiled: dict):
    """Whichever check let it pass. What was sent of the same answer before is cancelled, and others are served."""
    async with linked_core(tmp_path, silence) as (core, link):
        bad = msgspec.structs.replace(submit("bad"), **spoiled)
        with pytest.raises(RequestRejected, match="could not read this request") as refused:
            link.open([submit("good"), bad])
        assert refused.value.code == "internal_error"
        assert link.num_open == 0
        await link.status()
        assert [request.request_id for request in core.submits] == ["good"]
        assert [cancel.request_id for cancel in core.cancels] == ["good"]
        queue = link.open([submit("another")])
        assert link.num_open == 1
        queue.close()


@in_event_loop
async def test_a_question_that_the_core_could_not_read_is_not_waited_for(tmp_path: Path):
    async with linked_core(tmp_path) as (_, link):
        with pytest.raises(RequestRejected, match="could not read") as refused:
            await asyncio.wait_for(link.drain("", finish=False), queries.QUERY_TIMEOUT_S / 2)
        assert refused.value.code == "internal_error"
        await link.status()


async def read_to_the_end(queue, read):
    """Read until `get` raises; `read` takes the token ids."""
    while True:
        read += [delta.token_ids for _, delta in await queue.get()]


@in_event_loop
async def test_what_cannot_be_read_may_have_been_anyones_and_ends_all_answers(tmp_path: Path):
    """A stream that went on would have a hole. Its client can read on, and what comes later is served."""
    nonsense = [
        [b"hello"],
        [b"", b"", b""],
        [b"baton/999", b""],
        [b"http/1.1", b"x"],
        [HEADER, b""],
        [HEADER, b"\xc1"],
        [HEADER, b"\x91\xa5hello"],
    ]
    async with linked_core(tmp_path) as (core, link):
        for number, frames in enumerate(nonsense):
            core.script = lambda request, frames=frames: iter([outputs(delta(request, [1])), frames, 60.0])
            queue = link.open([submit(f"r{number}")])
            with pytest.raises(RequestRejected, match="was lost") as lost:
                await read_to_the_end(queue, [])
            assert lost.value.code == "unavailable"
            assert link.num_dropped == number + 1
        core.script = lambda request: iter([outputs(delta(request, [7], "length"))])
        [(_, answer)] = await link.open([submit("after")]).get()
        assert answer.token_ids == int32([7])


@in_event_loop
async def test_outputs_that_never_came_are_missed(tmp_path: Path):
    async with raw_core(tmp_path) as core:
        late = core.link.open([submit("late")])
        core.says(0, "late", [1])
        core.says(1, "late", [2])
        read: list[bytes] = []
        while len(read) < 2:
            read += [each.token_ids for _, each in await late.get()]
        core.says(3, "late", [4])
        with pytest.raises(RequestRejected, match="was lost"):
            await read_to_the_end(late, read)
        assert b"".join(read) == int32([1, 2])
        after = core.link.open([submit("after")])
        core.says(4, "after", [5])
        assert [d.token_ids for _, d in await after.get()] == [int32([5])]


@in_event_loop
async def test_what_cannot_be_read_is_missed_once(tmp_path: Path):
    async with raw_core(tmp_path) as core:
        core.router.send_multipart([core.peer, HEADER, b"\xc1"])  # it may have been Outputs 0
        await until(lambda: core.link.num_dropped)
        after = core.link.open([submit("after")])
        core.says(1, "after", [5])
        assert [d.token_ids for _, d in await after.get()] == [int32([5])]
        assert core.link.num_dropped == 1


@in_event_loop
async def test_deltas_of_requests_that_are_not_here_are_ignored(tmp_path: Path):
    strangers = [
        outputs(m.TokenDelta(request_id="stranger", index=0, token_ids=int32([1]))),
        m.Metrics(query_id=77, text=b""),
    ]
    async with linked_core(tmp_path) as (core, link):
        core.script = lambda request: iter([*strangers, outputs(delta(request, [7], "length"))])
        [(_, answer)] = await link.open([submit()]).get()
        assert answer.token_ids == int32([7])
        assert link.num_dropped == 0


@pytest.mark.parametrize("bad", [{"index": 9, "token_ids": b""}, {"index": 0, "token_ids": b"abc"}])
@in_event_loop
async def test_a_bad_delta_ends_its_own_answer_and_leaves_its_neighbours(tmp_path: Path, bad):
    async with linked_core(tmp_path, silence) as (core, link):
        other = link.open([submit("other")])
        await until(lambda: core.submits)
        good = m.TokenDelta(request_id="other", index=0, token_ids=int32([7]))
        core.script = lambda request: iter([m.Outputs(number=0, deltas=(m.TokenDelta(request_id="r", **bad), good))])
        with pytest.raises(RequestRejected, match="was lost"):
            await link.open([submit()]).get()
        [(_, answer)] = await other.get()
        assert answer.token_ids == int32([7])


@in_event_loop
async def test_queries(tmp_path: Path):
    async with linked_core(tmp_path) as (core, link):
        assert await link.status() == REPORT
        assert await link.metrics() == b"baton_running 0\n"
        assert (await link.drain("gpu-0", finish=True)).epoch == 7
        assert [(drain.executor, drain.finish) for drain in core.drains] == [("gpu-0", True)]
        life = m.SequenceLife(index=0, marks=[m.Mark(at=1.5, what="queued", tokens=3)], num_left_out=0, output=0)
        core.tell_life = lambda request_id, now: (life,) if request_id == "r-0" else ()
        assert (await link.life("r-0")).sequences == (life,)
        assert (await link.life("r-1")).sequences == ()
        core.answers_queries = False
        question = asyncio.create_task(link.status())
        await asyncio.sleep(0)
        core.close()
        await until(lambda: not link.is_up)
        with pytest.raises(RequestRejected, match="went away"):
            await question
        with pytest.raises(RequestRejected, match="cannot be reached"):
            await link.metrics()


@in_event_loop
async def test_a_client_that_is_revoked_is_told_to_a_core_that_is_there(tmp_path: Path):
    async with linked_core(tmp_path) as (core, link):
        link.revoke("ann")
        await until(lambda: core.revoked == ["ann"])
        await asyncio.to_thread(core.close)
        await until(lambda: not link.is_up)
        with pytest.raises(RequestRejected, match="cannot be reached"):
            link.revoke("bob")


@in_event_loop
async def test_a_query_that_is_not_answered_in_time_is_given_up(tmp_path: Path):
    async with linked_core(tmp_path, query_timeout_s=0.1) as (core, link):
        core.answers_queries = False
        for query in (link.status, partial(link.life, "r-0")):
            with pytest.raises(RequestRejected, match="no answer"):
                await query()


@in_event_loop
async def test_the_number_of_open_requests_is_limited(tmp_path: Path):
    async with linked_core(tmp_path, silence, max_open=3) as (core, link):
        queue = link.open([submit("a"), submit("b")])
        with pytest.raises(RequestRejected) as caught:
            link.open([submit("c"), submit("d")])
        assert caught.value.code == "queue_full"
        queue.close()
        link.open([submit("c"), submit("d")])
        await until(lambda: len(core.cancels) == 2)
        with pytest.raises(RequestRejected, match="3 requests are open already"):
            link.open([submit("e")], num_following=1)
        await until(lambda: len(core.submits) == 4)


class WatchedSocket(CoreSocket):
    """A link's socket that a test looks into, as the link cannot know what has arrived without a turn of the loop.

    Attributes:
        before_events: is called once, when the link asks for events next.
    """

    before_events: Callable[[], None] | None = None

    @property
    def has_message(self) -> bool:
        return bool(self._messages.poll(0))

    @property
    def has_event(self) -> bool:
        return bool(self._events.poll(0))

    @property
    def can_send(self) -> bool:
        """Whether there is a connection again, whatever the link knows of that."""
        return bool(self._messages.poll(0, zmq.POLLOUT))

    def events(self) -> Iterator[ConnectionEvent]:
        if (happens := self.before_events) is not None:
            self.before_events = None
            happens()
        yield from super().events()


@contextlib.contextmanager
def router() -> Iterator[zmq.Socket[bytes]]:
    made: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    with made:
        made.linger = 0
        yield made


class RawCore(NamedTuple):
    """A link, and the router at its other end, which the test plays."""

    router: zmq.Socket[bytes]
    peer: bytes
    link: CoreLink
    socket: WatchedSocket

    @property
    def endpoint(self) -> str:
        return self.router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def send(self, message: m.CoreToFrontend) -> None:
        self.router.send_multipart([self.peer, *CODEC.encode(message)])

    def says(self, number: int, request_id: str, tokens: list[int]) -> None:
        """One Outputs."""
        self.send(m.Outputs(number=number, deltas=(delta(submit(request_id), tokens),)))

    async def introduce(self) -> None:
        """Describe the fleet until the link has heard of it: it passes over what comes before it has looked at the
        beginning of the connection, and a real core answers every hello."""
        async with asyncio.timeout(60):
            while not self.link.is_up:
                self.send(STATE)
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def raw_core(tmp_path: Path) -> AsyncIterator[RawCore]:
    """A link that has heard of the fleet, and its router."""
    endpoint = f"ipc://{tmp_path}/core.sock"
    made: list[WatchedSocket] = []

    def make_socket(*args) -> WatchedSocket:
        made.append(WatchedSocket(*args))
        return made[0]

    with router() as end:
        end.bind(endpoint)
        async with running_link(endpoint, make_socket=make_socket) as link:
            core = await heard(end, link, made[0])
            await core.introduce()
            yield core


async def heard(end: zmq.Socket[bytes], link: CoreLink, socket: WatchedSocket) -> RawCore:
    """A core, once its link has said something."""
    await until(lambda: end.poll(0))
    return RawCore(end, end.recv_multipart()[0], link, socket)


CODEC: Codec[m.FrontendToCore] = Codec(m.FrontendToCore)
STATE = m.FleetState(num_ready=1, fingerprint="f", max_model_len=9)


@in_event_loop
async def test_others_have_their_turns_while_messages_queue(tmp_path: Path):
    async with raw_core(tmp_path) as core:
        taken, rounds = [], 0
        core.link.on_view = lambda view: taken.append(rounds)
        for number in range(640):
            core.send(change(number))
        eventually(lambda: core.socket.has_message)  # without a turn of the loop: what has arrived is queued
        while len(taken) < 640:
            rounds += 1
            await asyncio.sleep(0)
        assert max(Counter(taken).values()) <= core_link.MESSAGES_AT_ONCE


@in_event_loop
async def test_the_end_of_a_connection_is_not_taken_for_the_end_of_the_next(tmp_path: Path):
    """The loop is busy while the core is replaced, and a request comes before the loop has turned to the events."""
    async with raw_core(tmp_path) as core:
        link, socket, endpoint = core.link, core.socket, core.endpoint
        before = link.open([submit("before")])
        core.router.close()
        with router() as successor:
            eventually(lambda: socket.has_event)  # the end, of which the link does not know yet
            eventually(lambda: is_bound(successor, endpoint))
            eventually(lambda: socket.can_send)
            with pytest.raises(RequestRejected, match="cannot be reached") as refused:
                link.open([submit("fresh")])
            assert refused.value.code == "unavailable"
            with pytest.raises(RequestRejected, match="went away"):
                await before.get()
            next_core = await heard(successor, link, socket)
            await next_core.introduce()
            after = link.open([submit("after")])
            next_core.says(0, "after", [5])
            assert [d.token_ids for _, d in await after.get()] == [int32([5])]
            assert not after.has_failed


@pytest.mark.parametrize("has_successor", [False, True])
@in_event_loop
async def test_the_last_word_of_a_core_is_not_taken_for_the_first_of_the_next(tmp_path: Path, has_successor):
    """The connection ends while a message is being read, and perhaps there is a new one before it is looked at."""
    async with raw_core(tmp_path) as core:
        socket, endpoint = core.socket, core.endpoint
        with router() as successor:

            def core_ends():
                core.router.close()
                eventually(lambda: socket.has_event)
                if has_successor:
                    eventually(lambda: is_bound(successor, endpoint))
                    eventually(lambda: socket.can_send)

            socket.before_events = core_ends
            core.send(STATE)
            await until(lambda: core.router.closed)
            assert not core.link.is_up
            if not has_successor:
                eventually(lambda: is_bound(successor, endpoint))
            await (await heard(successor, core.link, socket)).introduce()


def is_bound(made: zmq.Socket[bytes], endpoint: str) -> bool:
    """Whether a router could be bound to the endpoint of one that was closed."""
    with contextlib.suppress(zmq.ZMQError):
        made.bind(endpoint)
        return True
    return False
