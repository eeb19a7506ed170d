"""Server-sent events as OpenAI's API uses them: bytes in, the data of whole events out."""

DONE = b"[DONE]"


class EventParser:
    """Cuts a byte stream into the data of its `data:` lines.

    It works on bytes and knows no line end but `\\n` (before it an optional `\\r`): text inside the JSON may hold any
    of the other characters that Unicode, and with it httpx's own line iterator, calls line ends.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[bytes]:
        """Data of the lines that `received` completes, in order; `DONE` is passed on like any other."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
