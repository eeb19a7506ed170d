"""Bodies that a server refuses while it reads them, and how much it reads, by raw sockets."""

import asyncio
import contextlib
import logging

import pytest

from scheduler_svc.frontend.http.connection_guard import ConnectionGuard, ConnectionLimits
from tests.frontend.links import until
from tests.frontend.raw_http import ABORTED, HEAD, serving

CHUNKED = HEAD.replace(b"content-length: 5", b"transfer-encoding: chunked")


@pytest.mark.parametrize(
    "request_bytes",
    [
        CHUNKED + b"1\r\na\r\n" * 43_682,
        CHUNKED + b"5\r\nhello\r\n0\r\n" + b"a:\r\n" * 1000 + b"\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\nx: y\n\n" + HEAD + b"hello",
        CHUNKED.replace(b"host", b"content-length: 5\r\nhost") + b"5\r\nhello\r\n0\r\n\r\n",
    ],
    ids=["tiny chunks", "trailers", "a request after a bare LF", "length and chunks"],
)
def test_what_is_no_body(request_bytes: bytes):
    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=100)) as connect:
            client = await connect()
            client.writer.write(request_bytes)
            with contextlib.suppress(*ABORTED):
                assert await client.status() == 400
            assert await client.is_closed()

    asyncio.run(run())


@pytest.fixture
def reads() -> list[tuple[ConnectionGuard, int]]:
    """Who has read, and how many bytes."""
    return []


@pytest.fixture
def noting(reads: list[tuple[ConnectionGuard, int]]) -> type[ConnectionGuard]:
    class Noting(ConnectionGuard):
        def data_received(self, data: bytes) -> None:
            reads.append((self, len(data)))
            super().data_received(data)

    return Noting


def test_a_turn_is_for_a_few_bytes(reads: list[tuple[ConnectionGuard, int]], noting: type[ConnectionGuard]):
    """All that was read is parsed before any stream has its turn."""

    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=100), guard=noting) as connect:
            client = await connect()
            await client.send(HEAD.replace(b"5", b"1000000") + b"x" * 1_000_000)
            assert await client.status() == 200
            assert len(client.body) == 1_000_000

    asyncio.run(run())
    assert max(num_bytes for _, num_bytes in reads) <= 16 * 1024


@pytest.mark.parametrize("more", [b"", b"connection: upgrade\r\nupgrade: x\r\n"], ids=["stream", "upgrade"])
def test_little_is_kept_of_what_follows_a_stream(
    reads: list[tuple[ConnectionGuard, int]], noting: type[ConnectionGuard], more: bytes
):
    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=100), guard=noting) as connect:
            client = await connect()
            await client.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n" + more + b"\r\n")
            await client.reader.readuntil(b"\r\n\r\n")
            client.writer.write(b"x" * 1_000_000)
            guard, _ = reads[0]
            await until(lambda: not guard.transport.is_reading())
            assert len(guard.conn.trailing_data[0]) <= 32 * 1024
            guard.transport.abort()  # without reading, it does not learn of its client's end

    asyncio.run(run())


def test_bytes_after_the_last_request(caplog: pytest.LogCaptureFixture):
    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=100)) as connect:
            client = await connect()
            await client.send(b"GET /wait HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await client.reader.readuntil(b"\r\n\r\n")
            await client.send(b"x")
            assert await client.is_closed()

    asyncio.run(run())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_bad_chunk_after_the_answer_has_begun(caplog: pytest.LogCaptureFixture):
    """No 400 can be said any more."""

    async def run() -> None:
        async with serving(ConnectionLimits(max_connections=100)) as connect:
            client = await connect()
            await client.send(CHUNKED.replace(b"/echo", b"/wait") + b"1\r\na\r\n")
            await client.reader.readuntil(b"\r\n\r\n")
            await client.send(b"bad\n\r\n" * 2)
            assert await client.is_closed()

    asyncio.run(run())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
