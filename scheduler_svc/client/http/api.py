"""The service's HTTP interface as the commands use it: httpx underneath, with errors that a person can act on."""

import contextlib
import http
import ssl
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import quote, urlsplit

import click
import httpx
import msgspec

from common.messages import StatusReport
from scheduler_svc.client.errors import (
    ConnectionBroke,
    RequestFailed,
    ServiceNotReady,
    ServiceSilent,
    ServiceUnreachable,
)
from scheduler_svc.client.http.event_source import Chunks, EventSource
from scheduler_svc.client.http.executor_watch import ExecutorWatch
from scheduler_svc.client.http.failures import json_object, raise_for_error, translated_errors
from scheduler_svc.client.http.keepalive import KEEPALIVE_OPTIONS
from scheduler_svc.client.http.repeating import how_it_is, may_pass, repeated
from scheduler_svc.client.http.resume import SESSION_HEADER, Resumption, is_outage
from scheduler_svc.client.http.sse import EventParser
from scheduler_svc.client.http.whole_answer import WholeAnswer
from scheduler_svc.client.output import OutageNotice
from scheduler_svc.client.progress import ServiceTokens
from scheduler_svc.client.service_address import ServiceAddress

Json = dict[str, Any]
Result = TypeVar("Result")

EVENT_STREAM = "text/event-stream"
CONNECT_TIMEOUT_S = 5.0
CANCEL_TIMEOUT_S = 2.0
LOOK_TIMEOUT_S = 2.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class _Generated(msgspec.Struct):
    """Of a status report, of any version."""

    output_tokens: int
    output_tokens_per_s: float


class Api:
    """A connection to one service; a context manager. Every method raises the errors of `client.errors`.

    A request that generates survives a broken connection, and a restart of the service if that is fast enough
    (`resume.py`). It does not wait for a service that was never reached.

    Args:
        transport: by which it reaches the service; None for connections of its own.

    Attributes:
        clock: by which whoever uses it waits between two looks.
    """

    def __init__(self, service: ServiceAddress, transport: httpx.BaseTransport | None = None) -> None:
        self._url = service.url
        transport = transport or httpx.HTTPTransport(verify=trusted(service), socket_options=KEEPALIVE_OPTIONS)
        self._http = httpx.Client(**client_settings(service), transport=transport)
        self.clock = service.clock
        self._reconnect_timeout_s = service.reconnect_timeout_s
        self._outage = OutageNotice(service.reconnect_timeout_s)
        self._was_there = False
        self._num_events = 0  # of all streams so far

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def models(self) -> list[Json]:
        """The entries of /v1/models."""
        models = self.get_json("/v1/models").get("data")
        if not isinstance(models, list) or not all(isinstance(model, dict) and "id" in model for model in models):
            raise RequestFailed(f"{self._url} answers with no list of models; does --url name the service?")
        return models

    def first_model(self) -> Json:
        """The first entry of /v1/models."""
        models = self.models()
        if not models:
            raise ServiceNotReady(f"the service at {self._url} serves no model yet")
        return models[0]

    def model_name(self, asked_for: str | None) -> str:
        """`asked_for`, or the name of the first model."""
        return asked_for or str(self.first_model()["id"])

    def status(self) -> StatusReport:
        """The report of GET /status."""
        try:
            return msgspec.json.decode(self.get("/status"), type=StatusReport)
        except msgspec.MsgspecError as error:
            raise RequestFailed(f"this is no status report of Baton, or one of another version: {error}") from error

    def generated(self) -> ServiceTokens | None:
        """What the service generates, for all of its clients; None if it does not say, or not to this key."""
        try:
            answer = self._http.get("/status", timeout=LOOK_TIMEOUT_S)
            told = msgspec.json.decode(answer.content, type=_Generated)
        except (httpx.HTTPError, msgspec.MsgspecError):
            return None
        return ServiceTokens(told.output_tokens, told.output_tokens_per_s)

    def status_for_operator(self) -> StatusReport:
        """The report, for a command that needs an operator's key: a refusal names that kind of key."""
        try:
            return self.status()
        except RequestFailed as error:
            if error.status == http.HTTPStatus.FORBIDDEN:
                message = "this command needs an API key that was made with `baton keys api NAME --admin` (HTTP 403)"
                raise RequestFailed(message, status=error.status, code=error.code) from error
            raise

    def status_unless_away(self) -> StatusReport | None:
        """The report, or None while the service does not answer, as in a restart."""
        try:
            return self.status()
        except click.ClickException as error:
            if is_outage(error) or isinstance(error, ServiceSilent):
                return None
            raise

    def drain(self, executor: str, *, finish: bool) -> int:
        """Tell an executor to leave. Returns its epoch.

        Args:
            executor: its name, or its epoch in decimal.
            finish: whether its sequences end there first.

        Raises:
            RequestFailed: status 404 (there is none), 409 (it cannot leave), 403 (the key is not an operator's), ...
        """
        answer = self.post(f"/admin/executors/{quote(executor, safe='')}/drain", {"finish": finish})
        return int(answer["epoch"])

    def get(self, path: str) -> bytes:
        """Body of the answer to a GET."""
        with translated_errors(self._url):
            response = self._http.get(path)
        self._was_there = True
        raise_for_error(response)
        return response.content

    def get_json(self, path: str) -> Json:
        """The object that the answer to a GET is."""
        return json_object(self.get(path), self._url)

    def post(self, path: str, body: Json) -> Json:
        """Answer to a request that does not stream."""
        with translated_errors(self._url):
            response = self._http.post(path, json=body)
        self._was_there = True
        raise_for_error(response)
        return json_object(response.content, self._url)

    def upload(self, path: str, fields: dict[str, str], file: BinaryIO) -> Json:
        """Answer to a form with a file, which is read while it is sent."""
        with translated_errors(self._url):
            response = self._http.post(path, data=fields, files={"file": ("input.jsonl", file)})
        self._was_there = True
        raise_for_error(response)
        return json_object(response.content, self._url)

    def delete(self, path: str) -> Json:
        """Answer to a DELETE."""
        with translated_errors(self._url):
            response = self._http.delete(path)
        self._was_there = True
        raise_for_error(response)
        return json_object(response.content, self._url)

    def lines(self, path: str) -> Iterator[bytes]:
        """Lines of the answer to a GET, as they come, without their line breaks."""
        with translated_errors(self._url), self._http.stream("GET", path) as response:
            if response.is_error:
                response.read()
            raise_for_error(response)
            rest: list[bytes] = []
            for data in response.iter_bytes():
                *ends, last = data.split(b"\n")
                for end in ends:
                    yield b"".join([*rest, end])
                    rest = []
                rest.append(last)
            if any(rest):
                yield b"".join(rest)

    def delete_quietly(self, path: str) -> None:
        """Try a DELETE."""
        with contextlib.suppress(httpx.HTTPError):
            self._http.delete(path, timeout=CANCEL_TIMEOUT_S)

    def patiently(self, call: Callable[[], Result]) -> Result:
        """What a call of other methods gives, once the service is there for it; it may be repeated.

        Raises:
            click.ClickException: as the call does: for a service that was never reached, an error that does not pass,
                or one that did not pass within the time to reconnect.
        """

        def is_waited_for(error: click.ClickException) -> bool:
            self._was_there = self._was_there or not isinstance(error, ServiceUnreachable)
            return self._was_there and may_pass(error)

        return repeated(call, is_waited_for, self._reconnect_timeout_s, self._outage, self.clock)

    def complete(self, path: str, body: Json) -> Json:
        """The whole answer to a request that generates. It is read as a stream, as a stream can be resumed."""
        answer = WholeAnswer()
        with contextlib.closing(self.stream(path, body)) as events:
            for event in events:
                answer.add(event)
        return answer.json()

    def stream(self, path: str, body: Json) -> Generator[Json, None, None]:
        """Events of a streamed answer, as they come, each once. Closing the generator cancels the request.

        The request asks for the token counts too (`usage`), which come with the last event.
        """
        request = Resumption(path, self._reconnect_timeout_s)
        body = {**body, "stream": True, "stream_options": {"include_usage": True}, **request.fields}
        try:
            yield from self.events(Chunks(path, body, request))
        except (GeneratorExit, KeyboardInterrupt, ServiceSilent):
            self._cancel(request)
            raise

    def events(self, source: EventSource) -> Generator[Json, None, None]:
        """What the events of a streamed answer have for their reader, over as many connections as it takes."""
        with self.watching(lambda: self._num_events):
            while not source.is_complete:
                try:
                    yield from self._over_one_connection(source)
                except (RequestFailed, ServiceUnreachable) as error:
                    self._wait_after(error, source)

    def watching(self, progress: Callable[[], object]) -> ExecutorWatch:
        """Say, while the context lasts, when work does not go on because no executor is ready.

        Args:
            progress: gives another value when something has come.
        """
        return ExecutorWatch(self._http, progress, self.clock)

    def _over_one_connection(self, source: EventSource) -> Generator[Json, None, None]:
        method, path, body, headers = source.next_request
        parser, has_events = EventParser(), False
        with (
            translated_errors(self._url),
            self._http.stream(method, path, json=body, headers=headers) as response,
        ):
            self._was_there = True
            if response.is_error:
                response.read()
            raise_for_error(response)
            source.answered_by(response.headers.get(SESSION_HEADER, ""))
            for received in response.iter_bytes():
                for event in parser.feed(received):
                    has_events = True
                    self._num_events += 1
                    was_broken = source.is_broken
                    taken = source.take(event)
                    if was_broken:
                        self._outage.back()
                    if taken is not None:
                        yield taken
                    if source.is_complete:
                        return
            kind = response.headers.get("content-type", "")
        if not has_events and kind and not kind.startswith(EVENT_STREAM):
            raise RequestFailed(f"{self._url} answers with {kind} instead of events; does --url name the service?")
        if not source.ended():
            raise ConnectionBroke(self._url, "the service ended the stream in the middle of the answer")

    def _wait_after(self, error: RequestFailed | ServiceUnreachable, source: EventSource) -> None:
        """Wait until it is time for the next attempt; raise `error` if there is none."""
        if isinstance(error, ServiceUnreachable) and not self._was_there:
            raise error
        self._was_there = True  # all other errors mean that a service took the connection
        delay_s = source.delay_after(error, self.clock.now_s())
        self._outage.away(how_it_is(error))
        self.clock.sleep(delay_s)

    def _cancel(self, request: Resumption) -> None:
        """Try to cancel a request, so that it does not continue without a reader."""
        if request.fields:
            with contextlib.suppress(httpx.HTTPError):
                self._http.delete(request.request_path, headers=request.session_headers, timeout=CANCEL_TIMEOUT_S)


def client_settings(service: ServiceAddress) -> dict[str, Any]:
    """Arguments for `httpx.Client` and for `httpx.AsyncClient`."""
    return {
        "base_url": service.url,
        "headers": {"Authorization": f"Bearer {service.api_key}"} if service.api_key else {},
        "timeout": httpx.Timeout(service.timeout_s, connect=CONNECT_TIMEOUT_S),
        # HTTP_PROXY is for hosts outside, not for a service on this machine.
        "trust_env": urlsplit(service.url).hostname not in _LOOPBACK,
    }


def trusted(service: ServiceAddress) -> bool | ssl.SSLContext:
    """Return whose certificates a transport accepts: as httpx decides; nobody's where the service has no TLS, for httpx
    reads those of all authorities for each transport, which takes 20 ms."""
    return urlsplit(service.url).scheme != "http" or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
