"""What a streamed answer is to the loop that reads one: a request to send, events, and an end; pure."""

from typing import Any, NamedTuple, Protocol

import click
import msgspec

from scheduler_svc.client.errors import RequestFailed
from scheduler_svc.client.http.failures import error_code, error_message
from scheduler_svc.client.http.resume import Resumption
from scheduler_svc.client.http.sse import DONE, Event

Json = dict[str, Any]


def chunk_of(data: bytes) -> Json:
    """The chunk of an answer that an event has. Raises RequestFailed for an error, and for anything else."""
    try:
        chunk = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        chunk = None
    if isinstance(chunk, dict):
        if "error" in chunk:
            raise RequestFailed(error_message(chunk), code=error_code(chunk))
        if isinstance(chunk.get("choices"), list):
            return chunk
    shown = data[:100].decode(errors="replace")
    raise RequestFailed(f"the service sent something else than a piece of an answer: {shown}")


class HttpRequest(NamedTuple):
    """A request as it is sent. `body` is None without one."""

    method: str
    path: str
    body: Json | None
    headers: dict[str, str]


class EventSource(Protocol):
    """One streamed answer, over as many connections as it takes."""

    @property
    def next_request(self) -> HttpRequest:
        """What is sent next for the answer, or for the rest of it."""

    @property
    def is_broken(self) -> bool:
        """Whether no event has come since the last failure."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing comes any more."""

    def answered_by(self, session: str) -> None:
        """An answer that is no error has begun, and this is its session header; empty if it has none."""

    def take(self, event: Event) -> Json | None:
        """What an event has for the reader, if anything.

        Raises:
            RequestFailed: it is an error.
        """

    def ended(self) -> bool:
        """An answer ended in order before it was complete. Returns whether the rest is asked for at once; it is as if
        the connection had broken otherwise."""

    def delay_after(self, error: click.ClickException, now_s: float) -> float:
        """Seconds to wait before the next attempt, after one that failed with `error` at the time `now_s`.

        Raises:
            click.ClickException: no attempt is left.
        """


class Chunks:
    """The chunks of a completion or a chat, whose last event is `[DONE]`.

    Args:
        path, body: what is posted; the body has the resumption's fields already.
    """

    def __init__(self, path: str, body: Json, request: Resumption) -> None:
        self._path = path
        self._body = body
        self._request = request
        self._is_complete = False

    @property
    def next_request(self) -> HttpRequest:
        """The request itself, or one for the events after the last one that came."""
        headers = self._request.headers
        if events_path := self._request.events_path:
            return HttpRequest("GET", events_path, None, headers)
        return HttpRequest("POST", self._path, self._body, headers)

    @property
    def is_broken(self) -> bool:
        """Whether no event has come since the last failure."""
        return self._request.is_broken

    @property
    def is_complete(self) -> bool:
        """Whether the last event has come."""
        return self._is_complete

    def answered_by(self, session: str) -> None:
        """Remember which service has the request."""
        self._request.answered_by(session)

    def take(self, event: Event) -> Json | None:
        """A chunk; None for the last event. Raises RequestFailed for an error."""
        if event.data == DONE:
            self._is_complete = True
            return None
        chunk = chunk_of(event.data)
        self._request.take(event.id)
        return chunk

    def ended(self) -> bool:
        """It is broken: the last event is missing."""
        return False

    def delay_after(self, error: click.ClickException, now_s: float) -> float:
        """As the resumption says."""
        return self._request.delay_after(error, now_s)
