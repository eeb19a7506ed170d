"""Connections that cost something and ask for nothing, by raw sockets."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvicorn
from structlog.testing import capture_logs

from common import messages as m
from scheduler_svc.frontend.http.connection_guard import MAX_HEAD_BYTES, ConnectionLimits
from scheduler_svc.frontend.http.server import ACCEPTS_AT_ONCE, http_config
from scheduler_svc.frontend.link.request_counts import RequestCounts
from tests.frontend.links import until
from tests.frontend.raw_http import ABORTED, HEAD, READER_DROPPED, REFUSED, Client, app, serving

SHORT = ConnectionLimits(max_connections=100, head_timeout_s=0.3, body_timeout_s=0.3, stall_timeout_s=0.3)


@pytest.fixture
def logs() -> Iterator[list[dict]]:
    """What is logged."""
    with capture_logs() as lines:
        yield lines


@pytest.mark.parametrize(
    ("sent", "then"),
    [
        (b"", b""),
        (b"", b"G"),
        (b"GET /ech", b"o"),
        (b"GET /echo HTTP/1.1\r\nhost: x\r\n", b"x: y\r\n"),
        (HEAD, b"a"),
        (HEAD.replace(b"content-length: 5", b"transfer-encoding: chunked"), b"1\r\na\r\n"),
        (HEAD.replace(b"/echo", b"/early"), b"a"),
        (HEAD + b"hello" + b"GET /ec", b"h"),
        (HEAD + b"hello" + HEAD, b"h"),
    ],
    ids=[
        "nothing",
        "one byte",
        "half a line",
        "headers",
        "body",
        "chunks",
        "early answer",
        "second head",
        "second body",
    ],
)
def test_requests_that_dribble_in(sent: bytes, then: bytes):
    """Neither silence nor a byte now and then keeps a connection whose request does not get complete."""

    async def run() -> None:
        async with serving(SHORT) as connect:
            client = await connect()
            await client.send(sent)
            closed = asyncio.create_task(client.is_closed())
            with contextlib.suppress(*ABORTED):  # on a busy machine the connection ends before this does
                for _ in range(4):
                    await asyncio.sleep(0.05)
                    await client.send(then)
            assert await closed
            assert await (await whole(connect)).status() == 200  # others are served

    async def whole(connect: Callable[[], Awaitable[Client]]) -> Client:
        client = await connect()
        await client.send(HEAD + b"hello")
        return client

    asyncio.run(run())


def test_a_slow_request_that_is_complete_in_time():
    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=9, head_timeout_s=5, body_timeout_s=5)) as connect:
            client = await connect()
            for byte in HEAD + b"hello":
                await client.send(bytes([byte]))
            assert await client.status() == 200
            assert client.body == b"hello"

    asyncio.run(run())


def test_the_time_counts_for_each_request_alone():
    limits = ConnectionLimits(max_connections=9, head_timeout_s=1.0, body_timeout_s=1.0)

    async def run() -> None:
        async with serving(limits) as connect:
            client = await connect()
            for _ in range(6):  # longer than the timeouts in all
                await client.send(HEAD[:20])
                await asyncio.sleep(0.1)
                await client.send(HEAD[20:] + b"he")
                await asyncio.sleep(0.1)
                await client.send(b"llo")
                assert await client.status() == 200

    asyncio.run(run())


WAIT = b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n"


def test_one_connection_too_many():
    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=3)) as connect:
            clients = [await connect() for _ in range(3)]
            for client in clients:
                await client.send(WAIT)
                await client.reader.readuntil(b"\r\n\r\n")
            refused = await connect()
            assert await refused.status() == 503
            error = json.loads(refused.body)["error"]
            assert (error["code"], "3 connections" in error["message"]) == ("unavailable", True)
            assert await refused.is_closed()
            clients[0].writer.transport.abort()
            async with asyncio.timeout(60):  # a place that is free is given out
                status = 503
                while status == 503:
                    client = await connect()
                    await client.send(HEAD + b"hello")
                    status = await client.status()
            assert status == 200

    asyncio.run(run())


def test_an_idle_connection_makes_room_for_one_more():
    """Whether it was answered, says nothing, or has begun to say something; one that is being answered does not."""

    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=4)) as connect:
            busy, answered, silent, slow = [await connect() for _ in range(4)]
            await busy.send(WAIT)
            await busy.reader.readuntil(b"\r\n\r\n")
            await slow.send(HEAD[:10])
            await answered.send(HEAD + b"hello")
            assert await answered.status() == 200
            for closed in (silent, slow, answered):  # the one that has been idle for longest
                more = await connect()
                await more.send(WAIT)
                await more.reader.readuntil(b"\r\n\r\n")
                assert await closed.is_closed()
            assert await (await connect()).status() == 503
            assert not busy.reader.at_eof()

    asyncio.run(run())


BARE_LF = HEAD.replace(b"\r\n", b"\n")
TOO_LONG = HEAD[:-2] + b"x: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n"


@pytest.mark.parametrize("second", [BARE_LF, TOO_LONG], ids=["bare LF", "too long"])
@pytest.mark.parametrize("first", [HEAD + b"hello", HEAD.replace(b"/echo", b"/early") + b"hello"])
def test_the_head_of_a_request_that_follows_another_is_looked_at_too(first: bytes, second: bytes):
    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=100)) as connect:
            client = await connect()
            await client.send(first)
            client.writer.write(second + b"hello")
            assert await client.status() == 200
            with contextlib.suppress(*ABORTED):
                assert await client.status() == 400
            assert await client.is_closed()

    asyncio.run(run())


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * MAX_HEAD_BYTES,
        b"GET /" + b"a" * MAX_HEAD_BYTES,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES,
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"GET / HTTP/1.1\nhost: x\n\n",
        b"GET / HTTP/1.1\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n\n",
        b"\r\n\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n",
    ],
    ids=[
        *("header", "target", "headers", "whole header", "bare LFs", "LF of the first line", "LF of a header"),
        *("LF at the end", "LF before it", "TLS", "length"),
    ],
)
def test_what_is_no_request(head: bytes):
    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=100)) as connect:
            for _ in range(5):
                client = await connect()
                client.writer.write(head)
                with contextlib.suppress(*ABORTED):  # a client that is cut off while it sends may not read the answer
                    assert await client.status() == 400
                assert await client.is_closed()
            client = await connect()
            await client.send(HEAD + b"hello")
            assert await client.status() == 200

    asyncio.run(run())


@pytest.mark.parametrize(("limit", "status", "code"), [(100, 400, "invalid_http"), (0, 503, "unavailable")])
def test_what_no_application_sees_leaves_traces_too(logs: list[dict], limit: int, status: int, code: str):
    counts = RequestCounts()

    async def run() -> None:
        async with serving(ConnectionLimits(limit), counts=counts) as connect:
            client = await connect()
            if status == 400:
                await client.send(b"no request\r\n\r\n")
            assert await client.status() == status
            assert json.loads(client.body)["error"]["code"] == code
            assert client.fields[b"content-type"] == b"application/json"
            assert client.fields[b"x-should-retry"] == (b"true" if status == 503 else b"false")
            request_id = client.fields[b"x-request-id"].decode()
            assert request_id.startswith("req-")
            [line] = [line for line in logs if line["event"] == REFUSED]
            assert (line["request"], line["status"], line["code"]) == (request_id, status, code)
            assert line["client"][1] == client.writer.get_extra_info("sockname")[1]

    asyncio.run(run())
    report = counts.report()
    assert report is not None
    assert report.http == (m.HttpCount(path="other", status=status, count=1),)
    assert report.refused == (m.NamedCount(name=code, count=1),)


@pytest.mark.parametrize(("path", "shape"), [("/v1/messages", ["type", "error"]), ("/echo", ["error"])])
def test_a_body_that_breaks_off_is_refused_in_the_shape_of_its_api(path: str, shape: list[str]):
    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=100)) as connect:
            client = await connect()
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            await client.send(head.encode() + b"no length\r\n\r\n")
            assert await client.status() == 400
            assert list(json.loads(client.body)) == shape

    asyncio.run(run())


def test_requests_that_follow_one_another_at_once():
    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=100)) as connect:
            client = await connect()
            await client.send((HEAD + b"hello") * 49 + b"\r\n" + HEAD + b"hello")  # an empty line between two
            assert [await client.status() for _ in range(50)] == [200] * 50

    asyncio.run(run())


def dropped(logs: list[dict]) -> list[int]:
    """The ports of readers that were dropped."""
    return [line["client"][1] for line in logs if line["event"] == READER_DROPPED]


@pytest.mark.parametrize(
    ("end_of_head", "then"),
    [(b"connection: close\r\n\r\n", b""), (b"\r\n", b"\0\r\n\r\n")],
    ids=["close", "no request"],
)
def test_a_reader_that_leaves_the_end_unread(logs: list[dict], end_of_head: bytes, then: bytes):
    """No request waits for it any more: the connection is kept only until the last bytes are read."""

    async def run() -> None:
        async with serving(SHORT) as connect:
            address = (await connect()).writer.get_extra_info("peername")
            with socket.socket() as reader:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.connect(address)
                reader.sendall(b"GET /long HTTP/1.1\r\nhost: x\r\n" + end_of_head)
                await asyncio.to_thread(reader.recv, 1)
                reader.sendall(then)
                await until(lambda: dropped(logs))
                assert dropped(logs) == [reader.getsockname()[1]]

    asyncio.run(run())


def test_readers_that_do_not_read(logs: list[dict]):
    async def run() -> None:
        async with serving(SHORT) as connect:
            clients = [await connect() for _ in range(3)]
            for client in clients:
                await client.send(b"GET /flood HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: len(dropped(logs)) == len(clients))
            for client in clients:
                assert await client.is_closed()
            ports = {client.writer.get_extra_info("sockname")[1] for client in clients}
            assert sorted(dropped(logs)) == sorted(ports), "each once"

    asyncio.run(run())


def test_connections_that_come_at_once_are_accepted_some_at_a_time():
    """As many may wait as before, and streams have their turns in between."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
            config = http_config(app, ConnectionLimits(max_connections=1000), RequestCounts())
            server = uvicorn.Server(config)
            listener.setblocking(False)
            accepted, rounds, counts = 0, 0, []
            clients = [socket.create_connection(listener.getsockname()) for _ in range(100)]
            task = asyncio.create_task(server.serve(sockets=[listener]))
            while accepted < len(clients):
                before, rounds = accepted, rounds + 1
                await asyncio.sleep(0)
                accepted = len(server.server_state.connections)
                counts.append(accepted - before)
                assert rounds < 1_000_000
            assert max(counts) <= ACCEPTS_AT_ONCE + 1, "Python 3.14 takes one more than it is told"
            for client in clients:
                client.close()
            server.should_exit = True
            await task

    asyncio.run(run())
