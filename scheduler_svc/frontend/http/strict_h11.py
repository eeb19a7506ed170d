"""h11, stricter about where a request and its parts end, so that a proxy in front sees the same requests, and so that
little is parsed for what is refused. Empty lines before a request, which h11 refuses, are skipped (RFC 9112, 2.2).

Of a head, h11 limits the size only while it is not complete, and h11 takes a bare LF for the end of a line (RFC 9112,
2.2). Of a body in chunks, h11 takes chunks of one byte, each of which costs as much as a long one, and trailers of any
number; a body with a length and in chunks is one of chunks to it (RFC 9112, 6.1). All of these are refused here.
"""

import re

import h11

MAX_HEAD_LINES = 256
MAX_EMPTY_LINES = 64  # before a request
MAX_CHUNK_LINE_BYTES = 256  # a chunk's size in hexadecimal digits, and extensions, which have no use here
MAX_SMALL_CHUNKS = 256  # of a body; with more of them, its chunks must have MEAN_CHUNK_BYTES on average
MEAN_CHUNK_BYTES = 64
_CRLF = b"\r\n"
_EMPTY_LINES = re.compile(rb"(?:\r\n)*")
_LAST_CHUNK = re.compile(rb"0+(?![0-9A-Fa-f])")  # the size 0, for every line that h11 takes for one with this size


class StrictConnection(h11.Connection):
    """A server's connection.

    Args:
        max_head_bytes: of request line and headers.
    """

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=max_head_bytes)
        self._max_head_bytes = max_head_bytes
        self._chunks: _Chunks | None = None  # of the body that is being read
        self._num_empty_lines = 0  # since the last request

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event; what comes before it is looked at before h11 parses it. Raises h11.RemoteProtocolError."""
        if self.their_state is h11.IDLE:
            self._skip_empty_lines()
            data, is_closed = self.trailing_data
            if data == b"\r" and not is_closed:
                return h11.NEED_DATA
            self._check_head(data)
        elif self._chunks and self._chunks.are_at_a_line and not self._chunks.has_line(self.trailing_data[0]):
            return h11.NEED_DATA
        event = super().next_event()
        match event:
            case h11.Request():
                self._chunks = _chunks_of(event)
                self._num_empty_lines = 0
            case h11.Data() if self._chunks:
                self._chunks.add(event)
            case h11.EndOfMessage():
                self._chunks = None
        return event

    def _skip_empty_lines(self) -> None:
        found = _EMPTY_LINES.match(self.trailing_data[0])
        if not found or not found.end():
            return
        self._receive_buffer.maybe_extract_at_most(found.end())
        self._num_empty_lines += found.end() // len(_CRLF)
        if self._num_empty_lines > MAX_EMPTY_LINES:
            raise h11.RemoteProtocolError(f"over {MAX_EMPTY_LINES} empty lines before a request", error_status_hint=400)

    def _check_head(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n")
        head = data if end < 0 else data[: end + 4]
        num_lines = head.count(b"\n")
        if len(head) > self._max_head_bytes:
            raise h11.RemoteProtocolError(f"a head of over {self._max_head_bytes} bytes", error_status_hint=431)
        if num_lines > MAX_HEAD_LINES:
            raise h11.RemoteProtocolError(f"a head of over {MAX_HEAD_LINES} lines", error_status_hint=431)
        if num_lines != head.count(_CRLF):
            raise h11.RemoteProtocolError("a line that ends without CR", error_status_hint=400)


class _Chunks:
    """The chunks of one body, and the lines with their sizes.

    h11 tells of a line only by the data after it. So h11 is asked only when a line and some data have come: otherwise
    it could have taken the line already, and data would be looked at for a line here.
    """

    def __init__(self) -> None:
        self.are_at_a_line = True
        self._num_chunks = 0
        self._num_bytes = 0

    def add(self, data: h11.Data) -> None:
        """A chunk, or a part of one, has come."""
        self.are_at_a_line = data.chunk_end
        self._num_chunks += data.chunk_end
        self._num_bytes += len(data.data)

    def has_line(self, buffered: bytes) -> bool:
        """Whether the line of the next chunk and a byte of its data have come, or the whole end of the body.

        Args:
            buffered: all that has come after the last chunk's data.

        Raises:
            h11.RemoteProtocolError: the line is too long, trailers follow it, or there were too many small chunks.
        """
        start = len(_CRLF) if self._num_chunks else 0  # the end of the chunk before, which h11 looks at
        end = buffered.find(_CRLF, start, start + MAX_CHUNK_LINE_BYTES)
        if end < 0:
            if len(buffered) >= start + MAX_CHUNK_LINE_BYTES:
                raise h11.RemoteProtocolError("a chunk whose size does not end", error_status_hint=400)
            return False
        if _LAST_CHUNK.match(buffered, start):
            return _is_end(buffered[end + 2 : end + 4])
        if self._num_chunks >= MAX_SMALL_CHUNKS and self._num_bytes < MEAN_CHUNK_BYTES * self._num_chunks:
            raise h11.RemoteProtocolError("too many small chunks", error_status_hint=400)
        return len(buffered) > end + len(_CRLF)


def _is_end(after_last_line: bytes) -> bool:
    """Whether a body ends here; False if this shows only later."""
    if not _CRLF.startswith(after_last_line):
        raise h11.RemoteProtocolError("trailers, or a line that ends without CR", error_status_hint=400)
    return after_last_line == _CRLF


def _chunks_of(request: h11.Request) -> _Chunks | None:
    """The chunks of its body; None if it does not come in chunks."""
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return None
    if b"content-length" in names:
        raise h11.RemoteProtocolError("a body with a length and in chunks", error_status_hint=400)
    return _Chunks()
