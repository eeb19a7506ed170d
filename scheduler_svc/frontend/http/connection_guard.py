"""Limits on connections that send no complete request, or that stop reading."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from common.logging import QuietLog, get_logger
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.body_limit import is_upload
from scheduler_svc.frontend.http.plain_answers import (
    ERROR,
    REFUSAL,
    REQUEST_ID_HEADER,
    ErrorResponse,
    Refusal,
    is_of_messages,
    new_request_id,
)
from scheduler_svc.frontend.http.strict_h11 import StrictConnection
from scheduler_svc.frontend.link.request_counts import OTHER, RequestCounts
from scheduler_svc.frontend.tracing.access_log import write

MAX_HEAD_BYTES = 32 * 1024  # request line and headers
UPLOAD_STEP_BYTES = (
    512 * 1024
)  # of an upload, for which it has the time of a body: no upload is too long, only too slow
READ_BYTES = 16 * 1024  # at once: all of them are parsed before anything else has its turn; asyncio would read 256 KiB
UNREAD_BYTES = 16 * 1024  # of an answer, from which on its application waits for the reader; asyncio would take 64 KiB

log = get_logger(__name__)


@dataclass(frozen=True)
class ConnectionLimits:
    """What clients are held to.

    Attributes:
        max_connections: open at once. One more closes the one that has been idle for longest, and is answered with 503
            if none is idle.
        max_head_bytes: of a request line and its headers.
        head_timeout_s: from the connection, or a request's first byte, to the end of its headers.
        body_timeout_s: from the end of the headers to the end of the body.
        stall_timeout_s: how long a client may read nothing of what is sent.
    """

    max_connections: int
    max_head_bytes: int = MAX_HEAD_BYTES
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    stall_timeout_s: float = 30.0


@dataclass(frozen=True)
class GuardLogs:
    """What is logged of the clients of a server, now and then."""

    dropped_readers: QuietLog = field(default_factory=lambda: QuietLog(log, "reader dropped"))
    refused_connections: QuietLog = field(default_factory=lambda: QuietLog(log, "connection refused"))


class _Part(Enum):
    """The part of a request that the server waits for."""

    HEAD = "head"
    BODY = "body"


class ConnectionGuard(H11Protocol):
    """uvicorn's HTTP protocol, which here drops clients that hold a connection and do not use it.

    uvicorn itself waits forever for a request that was begun, and an application that waits for a reader in `send`
    cannot close the connection: what is buffered would have to be delivered first. Here such a connection is aborted,
    and the application sees that its client has gone. What is refused before the application has a request has the same
    traces as any refusal: an error's body, an id, a count and a log line.

    Args:
        idle: the server's connections that no request is being answered on, in the order in which they became so.
        logs: of the server.
        access_log: whether what is answered here has a line in the log.
    """

    def __init__(
        self,
        *args: Any,
        limits: ConnectionLimits,
        counts: RequestCounts,
        idle: "dict[ConnectionGuard, None]",
        logs: GuardLogs,
        access_log: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._access_log = access_log
        self._counts = counts
        self._idle = idle
        self._logs = logs
        self.conn = StrictConnection(limits.max_head_bytes)
        self._limits = limits
        self._expected: _Part | None = None
        self._num_uploaded = 0  # bytes since the deadline of an upload was put off
        self._request_deadline: asyncio.TimerHandle | None = None
        self._stall_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected; refuse it if there are too many."""
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # asyncio's own has it, uvloop's has not
            transport.max_size = READ_BYTES
        transport.set_write_buffer_limits(high=UNREAD_BYTES)
        if len(self.connections) > self._limits.max_connections and not self._make_room():
            message = f"{self._limits.max_connections} connections are open already."
            self._refuse(ApiError(503, message, code="unavailable", retry=True))
        else:
            self._idle[self] = None
            self._expect(_Part.HEAD)

    def data_received(self, data: bytes) -> None:
        """A part of a request has come."""
        super().data_received(data)
        if self._is_answering():
            self._idle.pop(self, None)
        self._expect(self._missing_part())
        if self._expected is _Part.BODY and is_upload(self.scope):
            self._put_off(len(data))

    def send_400_response(self, msg: str) -> None:
        """What has come is no request, or no body. Nothing can be said of it once an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            message = "This is no HTTP/1.1 request, or its head or the parts of its body are beyond the limits."
            self._refuse(ApiError(400, message, code="invalid_http"))
            self._watch_the_last_bytes()
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """The answer is written, but the client may not have read it yet, nor sent the rest of its request."""
        super().on_response_complete()
        if not self._is_answering():  # one that came with it
            self._idle[self] = None
        self._watch_the_last_bytes()
        missing = self._missing_part()
        self._expect(missing if missing is _Part.BODY else None)  # uvicorn has a timer for the next request

    def pause_writing(self) -> None:
        """The write buffer is full: from now on the reader must read in time."""
        super().pause_writing()
        self._check_stall_later()

    def resume_writing(self) -> None:
        """The reader has read."""
        self._stop(self._stall_check)
        super().resume_writing()
        self._watch_the_last_bytes()

    def timeout_keep_alive_handler(self) -> None:
        """No other request has come for too long."""
        super().timeout_keep_alive_handler()
        self._watch_the_last_bytes()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: nothing is left to watch."""
        self._idle.pop(self, None)
        self._stop(self._stall_check)
        self._stop(self._request_deadline)
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest. Returns whether there is one."""
        idlest = next(iter(self._idle), None)
        if idlest is None:
            return False
        del self._idle[idlest]
        idlest.transport.abort()  # what its client has not read would keep it open
        return True

    def _refuse(self, error: ApiError) -> None:
        """Answer, without waiting for a request that may never come, and close the connection."""
        request_id = new_request_id()
        response = ErrorResponse(error)
        if self.cycle is not None and not self.cycle.response_complete and is_of_messages(self.scope):
            response.take_message_shape()  # its head has come; without one nothing says what it is for
        headers = [*response.raw_headers, (REQUEST_ID_HEADER.encode(), request_id.encode()), (b"connection", b"close")]
        reason = HTTPStatus(error.status).phrase.encode()
        head = h11.Response(status_code=error.status, headers=headers, reason=reason)
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        if self._is_answering():  # its application sees a client that has gone, and is to tell what that was
            self.scope.update({REFUSAL: Refusal(error, request_id), ERROR: error})  # type: ignore[misc]  # keys of ours
            return
        self._counts.answered(OTHER, error.status)
        self._counts.refused(error.code or OTHER)
        client = self.transport.get_extra_info("peername")
        facts = {"client": client, "status": error.status, "code": error.code, "reason": error.message}
        self._logs.refused_connections.happened(request=request_id, **facts)
        if self._access_log:
            place = {"address": client[0] if client else "", "endpoint": OTHER, "status": error.status}
            write({"request": request_id, **place, "error": error.code})

    def _missing_part(self) -> _Part | None:
        match self.conn.their_state:
            case h11.IDLE:
                return _Part.HEAD
            case h11.SEND_BODY:
                return _Part.BODY
            case _:
                return None

    def _expect(self, part: _Part | None) -> None:
        if part is self._expected:
            return
        self._stop(self._request_deadline)
        self._expected = part
        if part is not None:
            limits = self._limits
            timeout_s = limits.head_timeout_s if part is _Part.HEAD else limits.body_timeout_s
            self._request_deadline = self.loop.call_later(timeout_s, self.transport.abort)

    def _put_off(self, num_bytes: int) -> None:
        """More of an upload has come: each `UPLOAD_STEP_BYTES` have the time of a body."""
        self._num_uploaded += num_bytes
        if self._num_uploaded >= UPLOAD_STEP_BYTES:
            self._num_uploaded = 0
            self._expected = None
            self._stop(self._request_deadline)
            self._expect(_Part.BODY)

    def _watch_the_last_bytes(self) -> None:
        """A connection that is being closed stays open until all bytes are read."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._check_stall_later()

    def _check_stall_later(self) -> None:
        self._stop(self._stall_check)
        unsent_bytes = self.transport.get_write_buffer_size()
        self._stall_check = self.loop.call_later(self._limits.stall_timeout_s, self._drop_unless_read, unsent_bytes)

    def _drop_unless_read(self, unsent_bytes_before: int) -> None:
        if self.transport.get_write_buffer_size() < unsent_bytes_before:
            self._check_stall_later()
            return
        stalled_s = self._limits.stall_timeout_s
        client = self.transport.get_extra_info("peername")
        self._logs.dropped_readers.happened(client=client, stalled_s=stalled_s)
        self.transport.abort()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
