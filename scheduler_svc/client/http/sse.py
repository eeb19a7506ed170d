"""Server-sent events as OpenAI's API and ours use them: bytes in, whole events out."""

from typing import NamedTuple

DONE = b"[DONE]"


class Event(NamedTuple):
    """One event.

    Attributes:
        data: content of the event; `DONE` is passed on like any other.
        id: the `Last-Event-ID` to send to get the events after this one; empty without ids.
    """

    data: bytes
    id: bytes


class EventParser:
    """Cuts a byte stream into events. An incomplete event at the stream's end is dropped.

    It works on bytes and knows no line end but `\\n` (before it an optional `\\r`): text inside the JSON may hold any
    of the other characters that Unicode, and with it httpx's own line iterator, calls line ends.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # what has come of a line: some are megabytes, and are not joined with each piece
        self._data = b""
        self._id = b""

    def feed(self, received: bytes) -> list[Event]:
        """The events that `received` completes, in order."""
        events: list[Event] = []
        if b"\n" not in received:
            self._line.append(received)
            return events
        *lines, rest = b"".join([*self._line, received]).split(b"\n")
        self._line = [rest]
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                self._data = self._data + b"\n" + data if self._data else data
            elif line.startswith(b"id:"):
                self._id = line[3:].strip()
            elif self._data and line in (b"", b"\r"):
                events.append(Event(self._data, self._id))
                self._data = b""
        return events
