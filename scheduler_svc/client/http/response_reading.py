"""What to send next for the events of a response (the Responses API), so that each comes once; pure.

Events have numbers. A response in the background goes on without its reader, so after a break the reader asks for the
events after the last one that it has. Another response ends with its connection.
"""

from typing import Any
from urllib.parse import quote

import click
import msgspec

from scheduler_svc.client.errors import RequestFailed
from scheduler_svc.client.http.event_source import HttpRequest
from scheduler_svc.client.http.patience import Patience
from scheduler_svc.client.http.resume import SESSION_HEADER, is_outage, was_not_taken
from scheduler_svc.client.http.sse import DONE, Event

Json = dict[str, Any]

PATH = "/v1/responses"
_OPEN = ("queued", "in_progress")
_LAST = tuple(f"response.{ending}" for ending in ("completed", "incomplete", "failed", "cancelled"))


class ResponseReading:
    """The events of one response, which is made by a request or is there already.

    Args:
        limit_s: seconds that an outage may last, from a break to the next event; 0 gives up at once.
        body: of the request that makes the response; None for one that is there.
        response_id: of a response that is there.
        after: number of the last event that the reader has; -1 for none.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        body: Json | None = None,
        response_id: str = "",
        after: int = -1,
    ) -> None:
        self.response_id = response_id
        self.after = after
        self.last: Json | None = None
        self._body = body
        self._goes_on = body is None or bool(body.get("background"))
        self._limit_s = limit_s
        self._patience = Patience(limit_s)
        self._session = ""
        self._has_events = False  # of the connection
        self._is_all_asked_for = False  # also what has come
        self._is_complete = False

    @property
    def goes_on(self) -> bool:
        """Whether the response goes on without this reader, as far as is known."""
        return self._goes_on and bool(self.response_id) and not self._is_complete

    @property
    def next_request(self) -> HttpRequest:
        """The request that makes the response, or one for the events after the last one that came."""
        self._has_events = False
        if not self.response_id:
            return HttpRequest("POST", PATH, {**(self._body or {}), "stream": True}, self._headers)
        after = "" if self._is_all_asked_for or self.after < 0 else f"&starting_after={self.after}"
        return HttpRequest("GET", f"{response_path(self.response_id)}?stream=true{after}", None, self._headers)

    @property
    def is_broken(self) -> bool:
        """Whether no event has come since the last failure."""
        return self._patience.is_broken

    @property
    def is_complete(self) -> bool:
        """Whether the last event has come."""
        return self._is_complete

    def answered_by(self, session: str) -> None:
        """Remember which service has the response, where a gateway leads to several."""
        if session.isascii():
            self._session = session or self._session

    def take(self, event: Event) -> Json | None:
        """An event; None for one that has come before.

        Raises:
            RequestFailed: it is an error, or no event of a response.
        """
        if event.data == DONE:  # some servers end every stream with it
            return None
        name, number, fields = _read(event.data)
        self._patience.came()
        self._has_events = True
        response = fields.get("response")
        if isinstance(response, dict):
            self.response_id = self.response_id or str(response.get("id", ""))
        if name in _LAST:
            self.last = response if isinstance(response, dict) else {}
            self._is_complete = True
        if number <= self.after:
            return None
        self.after = number
        return fields

    def ended(self) -> bool:
        """An answer ended in order without the last event: a proxy may have cut it, or the reader has that event.

        Which of them it is shows when all events are asked for. Those that have come before are passed over.
        """
        if self._has_events or not self._goes_on or not self.response_id:
            return False
        self._is_all_asked_for = not self._is_all_asked_for
        return self._is_all_asked_for

    def delay_after(self, error: click.ClickException, now_s: float) -> float:
        """Seconds to wait before the next attempt, after one that failed with `error` at the time `now_s`.

        Raises:
            click.ClickException: no attempt is left.
        """
        is_new = was_not_taken(error) and not self.response_id
        if not self._limit_s or not (is_new or (self.goes_on and is_outage(error))):
            raise error
        self._is_all_asked_for = False
        return self._patience.delay_after(error, now_s)

    @property
    def _headers(self) -> dict[str, str]:
        return {SESSION_HEADER: self._session} if self._session else {}


def response_path(response_id: str) -> str:
    """Where a response is."""
    return f"{PATH}/{quote(response_id, safe='')}"


def is_open(response: Json) -> bool:
    """Whether a response has not ended."""
    return response.get("status") in _OPEN


def _read(data: bytes) -> tuple[str, int, Json]:
    """The name, the number and the fields of an event. Raises RequestFailed for an error, and for anything else."""
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        fields = None
    match fields:
        case {"type": "error", "message": str(message)}:
            raise RequestFailed(message, code=str(fields.get("code") or ""))
        case {"error": {"message": str(message), **error}}:
            raise RequestFailed(message, code=str(error.get("code") or ""))
        case {"type": str(name), "sequence_number": int(number)}:
            return name, number, fields
    shown = data[:100].decode(errors="replace")
    raise RequestFailed(f"the service sent something else than an event of a response: {shown}")
