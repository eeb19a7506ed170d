"""What each client holds of a frontend: shares of its memory and of its places, whoever else takes how much."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.accounts import (
    PIECE_BYTES,
    PLACES_OF_FREE,
    RESERVED_PLACES,
    STEPS_AT_ONCE,
    ClientAccounts,
    Held,
    LoopTurns,
    Readers,
    Shares,
)
from scheduler_svc.frontend.http.live_stream import LiveStream
from scheduler_svc.frontend.http.plain_answers import HELD
from tests.frontend.links import in_event_loop, until

NAMES = st.sampled_from(["ann", "bob", "cid"])


@given(st.integers(1, 100), st.sampled_from([1, 8]), st.lists(st.tuples(NAMES, st.integers(0, 40))))
def test_nobody_takes_more_than_the_share_of_what_is_free(limit: int, of_free: int, taken: list[tuple[str, int]]):
    shares, held = Shares(limit, of_free), dict.fromkeys(["ann", "bob", "cid"], 0)
    for name, amount in taken:
        free = limit - sum(held.values())
        if fits := shares.take(name, amount):
            held[name] += amount
        assert fits == (held[name] + (0 if fits else amount) <= of_free * (free - amount))
        assert shares.num_held == sum(held.values()) <= limit
        assert not any(map(shares.is_exceeded, held))
    if limit >= 4:  # whoever has come first, there is room for one more
        assert shares.num_held < limit
    for name, amount in held.items():
        shares.give_back(name, amount)
    assert shares.num_held == 0
    assert shares.take("dan", limit * of_free // (1 + of_free))


def test_what_is_there_already_may_exceed_a_share():
    shares = Shares(100)
    held = Held(shares, "ann")
    with held.holding(80):
        assert shares.is_exceeded("ann")
        with pytest.raises(ApiError, match="too many bytes"):
            held.take(1)
        held.take(0)
        Held(shares, "bob").take(10)
    assert not shares.is_exceeded("ann")
    held.take(40)
    held.release()
    assert shares.num_held == 10


def test_one_thing_has_so_many_readers():
    readers = Readers(2)
    with readers.one_more("a", "this"), readers.one_more("a", "this"), readers.one_more("b", "that"):
        with pytest.raises(ApiError, match="2 connections read this already") as refused, readers.one_more("a", "this"):
            raise AssertionError
        assert (refused.value.status, refused.value.code) == (429, "too_many_requests")
    with readers.one_more("a", "this"), readers.one_more("a", "this"):
        pass


class Request:
    """A request to an application with accounts."""

    def __init__(self, app, name="ann", path="/v1/chat/completions", *, is_admin=False) -> None:
        client = ApiClient(name, name, 0, is_admin=is_admin, may_read_status=is_admin)
        self.scope = {"type": "http", "method": "GET", "path": path, "headers": [], "client": ("192.0.2.1", 5)}
        self.scope["baton.client"] = client
        self.status = 0
        self.parts: list[bytes] = []
        self.may_read = asyncio.Event()
        self.has_end = False
        self.task = asyncio.create_task(app(self.scope, None, self._send))

    async def _send(self, message: dict) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        await self.may_read.wait()
        assert not self.has_end
        self.parts.append(message["body"])
        self.has_end = not message.get("more_body", False)


def waiting(seen: list[dict], body: bytes = b"") -> ClientAccounts:
    """An application whose answers begin at once and end when their clients read."""

    async def inner(scope, _receive, send):
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return ClientAccounts(inner, max_bytes=1000 * PIECE_BYTES, max_connections=RESERVED_PLACES + 180)


@in_event_loop
async def test_a_key_leaves_places_for_others_for_probes_and_for_administrators():
    seen: list[dict] = []
    app = waiting(seen)
    requests = [Request(app) for _ in range(200)]
    await until(lambda: all(request.status for request in requests))
    most = 180 * PLACES_OF_FREE // (1 + PLACES_OF_FREE)
    refused = [request for request in requests if request.status == 503]
    assert len(requests) - len(refused) == most
    others = [Request(app, "bob") for _ in range(10)]
    probes = [Request(app, "", path) for path in ("/health", "/ready", "/metrics")]
    for _ in range(5):  # take what is left
        requests += [Request(app, f"one of many {number}") for number in range(20)]
    admin = Request(app, "root", is_admin=True)
    await until(lambda: all(request.status for request in [*requests, *others, *probes, admin]))
    assert {request.status for request in [*others, *probes, admin]} == {200}
    for request in [*requests, *others, *probes, admin]:
        request.may_read.set()
        await request.task
    assert app.places.num_held == app.reserved.num_held == 0


@in_event_loop
async def test_administrators_have_so_many_places_more():
    app = waiting([])
    requests = [Request(app, "root", is_admin=True) for _ in range(400)]
    await until(lambda: all(request.status for request in requests))
    assert sum(request.status == 200 for request in requests) <= 180 + RESERVED_PLACES
    for request in requests:
        request.may_read.set()
        await request.task


@in_event_loop
async def test_an_answer_that_is_not_read_counts_as_a_whole_and_is_sent_in_pieces():
    body = bytes(range(256)) * (501 * PIECE_BYTES // 256) + b"end"
    seen: list[dict] = []
    app = waiting(seen, body)
    unread = Request(app)
    await until(lambda: app.held.num_held == len(body))
    late = Request(app)
    late.may_read.set()
    await late.task
    assert (late.status, len(seen)) == (503, 1), "before any work"
    other = Request(app, "bob")
    await until(lambda: other.status == 200)
    for request in (unread, other):
        request.may_read.set()
        await request.task
        assert request.has_end
        assert b"".join(request.parts) == body
        assert max(map(len, request.parts)) == PIECE_BYTES
    assert app.held.num_held == 0


@in_event_loop
async def test_what_a_request_holds_goes_back_however_it_ends():
    async def inner(scope, _receive, _send):
        scope[HELD].take(7)
        raise KeyError("a fault")

    app = ClientAccounts(inner, max_bytes=100, max_connections=1000)
    with pytest.raises(KeyError):
        await Request(app).task
    assert app.held.num_held == app.places.num_held == 0


@in_event_loop
async def test_of_hundreds_that_come_at_once_few_begin_between_two_turns_of_a_stream():
    starts, begun, turns = LoopTurns(), [], []

    async def request(client: str) -> None:
        await starts.turn(client)
        begun.append(client)

    async def stream() -> None:
        while len(begun) < 202:
            turns.append(len(begun))
            await asyncio.sleep(0)

    crowd = [asyncio.create_task(request("ann")) for _ in range(200)]
    streaming = asyncio.create_task(stream())
    few = [asyncio.create_task(request("bob")) for _ in range(2)]
    await asyncio.gather(*crowd, *few, streaming)
    steps = [after - before for before, after in itertools.pairwise(turns)]
    assert max(steps) <= 2 * STEPS_AT_ONCE
    assert sum(step > 0 for step in steps) >= 200 // STEPS_AT_ONCE - 2
    assert max(number for number, client in enumerate(begun) if client == "bob") < 4 * STEPS_AT_ONCE, "its turn comes"


@in_event_loop
async def test_a_request_that_is_alone_begins_at_once():
    starts = LoopTurns()
    for _ in range(3):
        turn = starts.turn("ann")
        with pytest.raises(StopIteration):
            turn.send(None)
        for _ in range(3):
            await asyncio.sleep(0)
    assert not starts.is_counting, "and nothing goes on after it"


@in_event_loop
async def test_one_that_gives_up_before_its_turn_takes_none():
    starts, begun = LoopTurns(), []

    async def request(number: int) -> None:
        await starts.turn("ann")
        begun.append(number)

    tasks = [asyncio.create_task(request(number)) for number in range(3 * STEPS_AT_ONCE)]
    await asyncio.sleep(0)
    for task in tasks[STEPS_AT_ONCE : 2 * STEPS_AT_ONCE]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [*range(STEPS_AT_ONCE), *range(2 * STEPS_AT_ONCE, 3 * STEPS_AT_ONCE)]


@in_event_loop
async def test_a_key_has_so_many_live_pages():
    stream = LiveStream(None, Readers(0), None, lambda: True)
    scope = {"type": "http", "path": "/page/live", "client": ("192.0.2.1", 5)}
    scope["baton.client"] = ApiClient("ann", "ann", 0, is_admin=False, may_read_status=False)
    told: list[dict] = []

    async def send(message: dict) -> None:
        told.append(message)

    await stream(scope, None, send)
    assert told[0]["status"] == 429


@in_event_loop
async def test_of_long_answers_that_many_read_at_once_few_pieces_go_out_between_two_turns_of_a_stream():
    app = waiting([], b"x" * (3 * PIECE_BYTES))
    requests = [Request(app) for _ in range(100)]
    for request in requests:
        request.may_read.set()
    sent: list[int] = []
    while not all(request.has_end for request in requests):
        sent.append(sum(len(request.parts) for request in requests))
        await asyncio.sleep(0)
    assert max(after - before for before, after in itertools.pairwise(sent)) <= 2 * STEPS_AT_ONCE
