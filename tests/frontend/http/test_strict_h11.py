"""What is refused of a request's framing, and how little is parsed before."""

import h11
import pytest

from scheduler_svc.frontend.http.connection_guard import MAX_HEAD_BYTES
from scheduler_svc.frontend.http.strict_h11 import (
    MAX_CHUNK_LINE_BYTES,
    MAX_EMPTY_LINES,
    MAX_HEAD_LINES,
    MAX_SMALL_CHUNKS,
    MEAN_CHUNK_BYTES,
    StrictConnection,
)

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Received:
    """What comes out of a connection: its events until it needs data, and whether it refuses."""

    def __init__(self, data: bytes, piece_bytes: int = 2**20) -> None:
        self.connection = StrictConnection(MAX_HEAD_BYTES)
        self.events: list = []
        self.is_refused = False
        for i in range(0, len(data), piece_bytes):
            self.connection.receive_data(data[i : i + piece_bytes])
            self.take()

    def take(self) -> None:
        while not self.is_refused:
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError:
                self.is_refused = True
                return
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            self.events.append(event)

    @property
    def body(self) -> bytes:
        return b"".join(event.data for event in self.events if isinstance(event, h11.Data))

    @property
    def is_complete(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], h11.EndOfMessage)


@pytest.mark.parametrize("piece_bytes", [2**20, 7, 1])
@pytest.mark.parametrize(
    "chunks",
    [
        [b"a"],
        [b"{}", b"x" * 1000, b"\r\n", b"0\r\n\r\n"],
        [b"x"] * MAX_SMALL_CHUNKS,
        [b"x" * MEAN_CHUNK_BYTES] * 3 * MAX_SMALL_CHUNKS,
        [b"x" * MEAN_CHUNK_BYTES * MAX_SMALL_CHUNKS, *[b"y"] * MAX_SMALL_CHUNKS],
        [],
    ],
    ids=["one", "looks like an end", "small ones", "many", "one long one and small ones", "none"],
)
def test_bodies_in_chunks(chunks: list[bytes], piece_bytes: int):
    received = Received(HEAD + b"".join(map(chunk, chunks)) + b"0\r\n\r\n" + SMUGGLED, piece_bytes)
    assert received.body == b"".join(chunks)
    assert (received.is_complete, received.is_refused) == (True, False)
    assert received.connection.trailing_data[0] == SMUGGLED, "the next request is left as it came"


@pytest.mark.parametrize("piece_bytes", [2**20, 7, 1])
@pytest.mark.parametrize("num_lines", [0, 1, 2, MAX_EMPTY_LINES, MAX_EMPTY_LINES + 1])
def test_empty_lines_before_a_request(num_lines: int, piece_bytes: int):
    received = Received(b"\r\n" * num_lines + HEAD + b"0\r\n\r\n", piece_bytes)
    assert (received.is_complete, received.is_refused) == (num_lines <= MAX_EMPTY_LINES, num_lines > MAX_EMPTY_LINES)


@pytest.mark.parametrize("line", [b"1;name=value\r\na\r\n", b"01\r\na\r\n", b"1 \r\na\r\n"])
def test_lines_before_chunks_that_are_taken(line: bytes):
    received = Received(HEAD + line + b"000;last\r\n\r\n")
    assert (received.body, received.is_complete) == (b"a", True)


def test_chunks_that_stay_tiny_are_soon_refused():
    received = Received(HEAD + chunk(b"a") * 43_682)
    assert received.is_refused
    assert len(received.events) <= MAX_SMALL_CHUNKS + 2
    slow = Received(HEAD + chunk(b"a" * (MEAN_CHUNK_BYTES - 1)) * 10 * MAX_SMALL_CHUNKS)
    assert slow.is_refused
    assert len(slow.events) <= MAX_SMALL_CHUNKS + 2


def test_each_request_has_small_chunks_of_its_own():
    received = Received(HEAD + chunk(b"a") * MAX_SMALL_CHUNKS + b"0\r\n\r\n")
    connection = received.connection
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()
    connection.receive_data(HEAD + chunk(b"a") * MAX_SMALL_CHUNKS + b"0\r\n\r\n")
    received.take()
    assert (received.is_complete, received.is_refused) == (True, False)


@pytest.mark.parametrize("piece_bytes", [2**20, 1])
@pytest.mark.parametrize(
    "trailers",
    [b"x: y\r\n\r\n", b"x: y\n\n", b"\n", b"\r\r\n", b"a:\r\n" * 60_000, b" \r\n\r\n"],
    ids=["one", "bare LFs", "LF alone", "CR twice", "many", "space"],
)
def test_trailers_are_refused_before_they_are_parsed(trailers: bytes, piece_bytes: int):
    received = Received(HEAD + chunk(b"hello") + b"0\r\n" + trailers[: 2 * MAX_HEAD_BYTES] + SMUGGLED, piece_bytes)
    assert received.is_refused
    assert received.body == b"hello"
    assert not received.is_complete


@pytest.mark.parametrize("piece_bytes", [2**20, 1])
@pytest.mark.parametrize(
    "line", [b"1;" + b"x" * MAX_CHUNK_LINE_BYTES + b"\r\n", b"1" * 2 * MAX_CHUNK_LINE_BYTES, b"1\n", b"x\r\n", b"\r\n"]
)
def test_what_is_no_chunk(line: bytes, piece_bytes: int):
    received = Received(HEAD + line + b"a\r\n0\r\n\r\n" + b" " * MAX_CHUNK_LINE_BYTES, piece_bytes)
    assert received.is_refused
    assert not received.body


def test_a_chunk_that_does_not_end_where_it_says():
    assert Received(HEAD + b"1\r\nab\r\n0\r\n\r\n").is_refused
    assert Received(HEAD + b"1\r\na\n0\r\n\r\n").is_refused


@pytest.mark.parametrize("lengths", [b"content-length: 5\r\n", b"Content-Length: 0\r\n"])
def test_a_length_and_chunks_together_are_refused(lengths: bytes):
    """Who takes the one and who takes the other see different requests (RFC 9112, 6.1)."""
    assert Received(HEAD.replace(b"host: x\r\n", b"host: x\r\n" + lengths)).is_refused
    assert Received(HEAD[:-2] + lengths + b"\r\n").is_refused


def test_the_lines_of_a_head_have_a_limit():
    """A line costs much more than its bytes."""

    def head(num_lines: int) -> bytes:
        return b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a:\r\n" * (num_lines - 3) + b"\r\n"

    assert not Received(head(MAX_HEAD_LINES)).is_refused
    assert Received(head(MAX_HEAD_LINES + 1)).is_refused
