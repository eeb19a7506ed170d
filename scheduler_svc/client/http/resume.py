"""What to send next for a request whose answer broke off, so that it is computed once and read once; pure.

A client that may come back chooses its request's id. After a break it asks for the events after the last one that it
has. It sends the request again, with the same id, only if the service says that it never accepted it.
"""

import secrets
from typing import Any

import click

from scheduler_svc.client.errors import ConnectionBroke, RequestFailed, ServiceUnreachable
from scheduler_svc.client.http.patience import Patience

SESSION_HEADER = "x-session-token"
"""Where a gateway over several services says which of them answers: llm-d's `session-affinity-scorer` sends this header
with an answer, and a request that brings it back is for the same service (docs/kubernetes.md)."""
NO_EXECUTOR = "no_executor"  # a service that is there says that no executor takes the task, and one may come
_AWAY_STATUSES = frozenset({502, 503, 504})  # what a proxy, or a frontend without its core, says of a restart


class Resumption:
    """One request, and what to do about it at each outage of the service.

    Args:
        path: where it is posted.
        limit_s: seconds that an outage may last, from a break to the next event; 0 gives up at once.
        request_id: id of the request; empty to have one made.
    """

    def __init__(self, path: str, limit_s: float, request_id: str = "") -> None:
        kind = "chatcmpl-" if "chat" in path else "cmpl-"  # as the service itself makes them
        self.request_id = request_id or kind + secrets.token_hex(12)
        self._limit_s = limit_s
        self._attaches = False
        self._may_be_known = False
        self._has_events = False
        self._is_answered = False  # an event has come since the last failure
        self._may_overtake = False  # an attach that has lost its reader may be in flight
        self._last_event_id = b""
        self._session = ""
        self._patience = Patience(limit_s)

    @property
    def fields(self) -> dict[str, Any]:
        """Fields for the request's body; none if a break ends the request."""
        return {"request_id": self.request_id, "resumable": True} if self._limit_s else {}

    @property
    def request_path(self) -> str:
        """Where to DELETE the request, so that it does not go on."""
        return f"/v1/requests/{self.request_id}"

    @property
    def events_path(self) -> str | None:
        """The path to GET next, with `headers`; None if the request is posted next."""
        return f"{self.request_path}/events" if self._attaches else None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of what is sent next."""
        headers = {"Last-Event-ID": self._last_event_id.decode()} if self._last_event_id else {}
        return headers | self.session_headers

    @property
    def session_headers(self) -> dict[str, str]:
        """Headers that lead to the service that has the request, where there are several."""
        return {SESSION_HEADER: self._session} if self._session else {}

    @property
    def is_broken(self) -> bool:
        """Whether no event has come since the last failure."""
        return self._patience.is_broken

    def answered_by(self, session: str) -> None:
        """An answer that is no error has begun, and this is its session header; empty if it has none.

        One with other characters than those of ASCII is ignored, because it could not be sent back.
        """
        if session.isascii():
            self._session = session or self._session

    def take(self, event_id: bytes) -> None:
        """An event with this id (empty if it had none) came and was handled. It ends an outage."""
        self._has_events = self._is_answered = True
        self._last_event_id = event_id
        self._patience.came()

    def delay_after(self, error: click.ClickException, now_s: float) -> float:
        """Seconds to wait before the next attempt, after one that failed with `error` at the time `now_s`.

        Raises:
            click.ClickException: no attempt is left; the command fails with it.
        """
        if not self._limit_s or not self.may_go_on(error):
            raise error
        return self._patience.delay_after(error, now_s)

    def may_go_on(self, error: click.ClickException) -> bool:
        """Take `error` into account. Returns whether another attempt may succeed, however long that takes.

        Raises:
            RequestFailed: the service does not know the request any more, and part of its answer has been read.
        """
        match error:
            case _ if was_not_taken(error):
                return True
            case RequestFailed(code="request_not_found") if self._attaches:
                if self._has_events:
                    raise RequestFailed(
                        "the service has forgotten this request: it was restarted without a journal, or away too long"
                    ) from error
                self._attaches = False
                return True
            case RequestFailed(code="request_exists") if self._may_be_known:
                self._attaches = True
                return True
            case RequestFailed(code="taken_over") if self._may_overtake:
                self._may_overtake = self._is_answered = False  # it has; next time it is another client
                return self._knows_its_place
            case RequestFailed() if is_outage(error):
                self.look_for_it()
                return self._knows_its_place
        return False

    def look_for_it(self) -> None:
        """The service may have the request: ask for its events next.

        If the last attempt asked for them and got no answer, it may still be in flight through another frontend, and
        reach the core after the next one: then the service sees two readers, of which the second takes over.
        """
        self._may_overtake = self._attaches and not self._is_answered
        self._is_answered = False
        self._attaches = self._may_be_known = True

    @property
    def _knows_its_place(self) -> bool:
        """Whether what comes next can be asked for: without ids a client cannot name its last event."""
        return bool(self._last_event_id) or not self._has_events


def was_not_taken(error: click.ClickException) -> bool:
    """Whether the service has not got the request, or has nobody for it yet: the same one may be sent again."""
    return isinstance(error, ServiceUnreachable) or getattr(error, "code", "") == NO_EXECUTOR


def is_outage(error: click.ClickException) -> bool:
    """Whether the service was away; then the request itself is not at fault."""
    if isinstance(error, RequestFailed) and error.status in _AWAY_STATUSES:
        return error.code not in ("deadline_exceeded", NO_EXECUTOR)
    return isinstance(error, ServiceUnreachable | ConnectionBroke) or getattr(error, "code", "") == "unavailable"
