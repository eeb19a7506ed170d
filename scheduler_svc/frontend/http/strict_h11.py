"""h11, stricter about the head of a request: its whole size has a limit, and only CRLF ends a line.

h11's own limit is for a head that is not complete; one that comes in a single piece may be of any size. h11 also takes
a bare LF for the end of a line, which proxies in front may see differently, and so see other requests (RFC 9112, 2.2).
"""

import h11


class StrictConnection(h11.Connection):
    """A server's connection.

    Args:
        max_head_bytes: of request line and headers.
    """

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=max_head_bytes)
        self._max_head_bytes = max_head_bytes

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event; a head is looked at before h11 parses it. Raises h11.RemoteProtocolError."""
        if self.their_state is h11.IDLE:
            self._check_head(self.trailing_data[0])
        return super().next_event()

    def _check_head(self, data: bytes) -> None:
        start = len(data) - len(data.lstrip(b"\r\n"))  # empty lines before a request are ignored
        end = data.find(b"\r\n\r\n", start)
        head = data if end < 0 else data[: end + 4]
        if len(head) > self._max_head_bytes:
            raise h11.RemoteProtocolError(f"a head of over {self._max_head_bytes} bytes", error_status_hint=431)
        if head.count(b"\n") != head.count(b"\r\n"):
            raise h11.RemoteProtocolError("a line that ends without CR", error_status_hint=400)
