"""One streamed POST on a connection of its own, for load generation.

The other commands use httpx. For hundreds of streams at once that costs too much: httpx takes 90 us of CPU for each
chunk, h11 on a bare asyncio transport 25 us, parsing included (one core, 128 streams). When a step gives 256 streams
a token each, that is the difference between measuring the service and measuring the client.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlsplit

import click
import h11
import msgspec

from scheduler_svc.client.errors import ConnectionBroke, RequestFailed, ServiceSilent, ServiceUnreachable
from scheduler_svc.client.http.api import CANCEL_TIMEOUT_S, CONNECT_TIMEOUT_S, Json
from scheduler_svc.client.http.failures import failure
from scheduler_svc.client.http.keepalive import KEEPALIVE_OPTIONS
from scheduler_svc.client.http.repeating import how_it_is
from scheduler_svc.client.http.resume import SESSION_HEADER, Resumption
from scheduler_svc.client.http.sse import DONE, EventParser
from scheduler_svc.client.output import OutageNotice
from scheduler_svc.client.service_address import ServiceAddress

OnEvent = Callable[[bytes], None]


class EventStreams:
    """Makes streamed requests to one service, each on a new connection, and resumes those that break off."""

    def __init__(self, service: ServiceAddress) -> None:
        url = urlsplit(service.url)
        self._service = service
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._path = url.path
        self._headers = [("Host", url.netloc), ("Content-Type", "application/json"), ("Connection", "close")]
        if service.api_key:
            self._headers.append(("Authorization", f"Bearer {service.api_key}"))
        self._outage = OutageNotice(service.reconnect_timeout_s)

    async def post(self, path: str, body: Json, on_event: OnEvent) -> None:
        """POST `body` and call `on_event` with each event's data, at once when it arrives, until the answer ends.

        An event that is an error must make `on_event` raise RequestFailed with its code.

        Raises:
            ServiceUnreachable: there was no connection within the reconnect timeout.
            RequestFailed: an error answer, a broken connection, or silence for longer than the service's timeout.
        """
        request = Resumption(path, self._service.reconnect_timeout_s)
        content = msgspec.json.encode({**body, **request.fields})

        def take(data: bytes, event_id: bytes) -> None:
            on_event(data)
            if request.is_broken:
                self._outage.back()
            request.take(event_id)

        try:
            while True:
                events_path = request.events_path
                method, url, sent = ("GET", events_path, b"") if events_path else ("POST", path, content)
                try:
                    await self._exchange(method, url, sent, request, take)
                    return
                except (RequestFailed, ServiceUnreachable) as error:
                    delay_s = request.delay_after(error, self._service.clock.now_s())
                    self._outage.away(how_it_is(error))
                await self._service.clock.pause(delay_s)
        except (asyncio.CancelledError, ServiceSilent):
            await self._cancel(request)
            raise

    async def _exchange(
        self, method: str, path: str, body: bytes, request: Resumption, take: Callable[[bytes, bytes], None]
    ) -> None:
        """One request and its answer, which is a stream or an error."""
        head = h11.Request(
            method=method,
            target=self._path + path,
            headers=[*self._headers, *request.headers.items(), ("Content-Length", str(len(body)))],
        )
        protocol = _StreamProtocol(self._service.url, head, body, request.answered_by, take)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: protocol, self._host, self._port, ssl=self._tls)
        except OSError as error:  # TimeoutError is one
            raise ServiceUnreachable(self._service.url, str(error) or "no answer") from error
        try:
            await protocol.finished(self._service.timeout_s)
        finally:
            protocol.close()

    async def _cancel(self, request: Resumption) -> None:
        """Try to cancel a request, so that it does not continue without a reader. The answer does not matter."""
        if request.fields:
            with contextlib.suppress(click.ClickException, TimeoutError):
                async with asyncio.timeout(CANCEL_TIMEOUT_S):
                    await self._exchange("DELETE", request.request_path, b"", request, lambda *_: None)


class _StreamProtocol(asyncio.Protocol):
    """Sends one request and passes on the events of its answer."""

    def __init__(
        self,
        url: str,
        head: h11.Request,
        body: bytes,
        answered_by: Callable[[str], None],
        take: Callable[[bytes, bytes], None],
    ) -> None:
        self._url = url
        self._connection = h11.Connection(h11.CLIENT)
        self._request = (head, h11.Data(data=body), h11.EndOfMessage())
        self._answered_by = answered_by
        self._take_event = take
        self._events = EventParser()
        self._has_all = False
        self._status = 0
        self._error_body = b""
        self._last_data_s = time.monotonic()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connected: socket.socket = transport.get_extra_info("socket")
        for level, option, value in KEEPALIVE_OPTIONS:
            connected.setsockopt(level, option, value)
        # Not `writelines`: with an empty part, as the end of a message is, Python 3.12's spins forever.
        transport.write(b"".join([self._connection.send(part) or b"" for part in self._request]))

    def data_received(self, data: bytes) -> None:
        self._last_data_s = time.monotonic()
        self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._receive(b"")  # to h11, an end of file
        self._finish(self._broke(str(exc or "closed by the service")))

    async def finished(self, timeout_s: float) -> None:
        """Wait for the end of the answer. Checking the clock now and then is cheaper than a timer for each chunk."""
        while not self._done.done():
            silence_left_s = self._last_data_s + timeout_s - time.monotonic()
            if silence_left_s <= 0:
                self._finish(ServiceSilent())
            else:
                await asyncio.wait((self._done,), timeout=silence_left_s)
        self._done.result()

    def close(self) -> None:
        """Drop the connection, which cancels an answer in progress."""
        self._done.cancel()  # no coroutine waits for it any more
        if self._transport is not None:
            self._transport.abort()

    def _receive(self, data: bytes) -> None:
        if self._done.done():
            return
        try:
            self._connection.receive_data(data)
            while self._take(self._connection.next_event()):
                pass
        except (h11.RemoteProtocolError, msgspec.MsgspecError) as error:
            self._finish(self._broke(str(error)))
        except RequestFailed as error:
            self._finish(error)

    def _take(self, event: object) -> bool:
        """Handle one of h11's events. Returns whether there may be more."""
        match event:
            case h11.Data() if self._status == HTTPStatus.OK:
                for data, event_id in self._events.feed(bytes(event.data)):
                    self._has_all = data == DONE
                    self._take_event(data, event_id)
            case h11.Data():
                self._error_body += event.data
            case h11.Response():
                self._status = event.status_code
                if self._status == HTTPStatus.OK:  # an error may come from a service that does not have the request
                    self._answered_by(dict(event.headers).get(SESSION_HEADER.encode(), b"").decode("latin-1"))
            case h11.EndOfMessage():
                self._finish(self._ending())
                return False
            case h11.NEED_DATA | h11.PAUSED | h11.ConnectionClosed():
                return False
        return True

    def _ending(self) -> RequestFailed | None:
        """The error that a complete answer stands for, if it is one."""
        if self._status != HTTPStatus.OK:
            return failure(self._status, self._error_body)
        return None if self._has_all else self._broke("the service ended the stream in the middle of the answer")

    def _broke(self, reason: str) -> ConnectionBroke:
        return ConnectionBroke(self._url, reason)

    def _finish(self, error: RequestFailed | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)
