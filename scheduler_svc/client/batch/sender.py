"""Gets the answer to one request of a batch, and repeats a try that may succeed later."""

import asyncio
import contextlib
import itertools
import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import click
import httpx
import msgspec

from scheduler_svc.client.batch.files import BatchError, BatchResponse, BatchResult
from scheduler_svc.client.batch.input import BatchLine
from scheduler_svc.client.clock import Clock
from scheduler_svc.client.errors import (
    ConnectionBroke,
    RequestFailed,
    ServiceNotReady,
    ServiceSilent,
    ServiceUnreachable,
)
from scheduler_svc.client.http.api import CANCEL_TIMEOUT_S, Json
from scheduler_svc.client.http.backoff import backoff_s
from scheduler_svc.client.http.event_source import chunk_of
from scheduler_svc.client.http.failures import error_message, failure, seconds_of, translated_errors
from scheduler_svc.client.http.resume import Resumption
from scheduler_svc.client.http.sse import DONE, EventParser
from scheduler_svc.client.http.whole_answer import WholeAnswer
from scheduler_svc.client.progress import Tally

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with jitter.

    Attributes:
        retries: how often a request is sent again, at most.
    """

    retries: int

    def delay_s(self, attempt: int, retry_after: str | None) -> float:
        """Seconds to wait after the failure of attempt number `attempt` (from 0).

        Args:
            retry_after: the header's value; a number of seconds is a lower bound, a date is ignored.
        """
        delay_s = backoff_s(attempt, _FIRST_DELAY_S, _MAX_DELAY_S)
        return max(delay_s, seconds_of(retry_after))


class BatchSender:
    """Answers lines of a batch.

    If an answer did not come, the service is first asked for it: it may have the request and be about to answer.

    Args:
        client: connected to the service.
        model: model of lines that name none.
        retry: when to try again.
        tally: counts retries.
        clock: by which it waits between two tries.
    """

    def __init__(self, client: httpx.AsyncClient, model: str, retry: RetryPolicy, tally: Tally, clock: Clock) -> None:
        self._client = client
        self._model = model
        self._retry = retry
        self._tally = tally
        self._clock = clock

    async def answer(self, line: BatchLine) -> BatchResult:
        """The result of one line, which may be an error.

        Raises:
            ServiceUnreachable, ServiceNotReady: the service was away at all tries; the line is not at fault.
        """
        limit_s = math.inf if self._retry.retries else 0.0
        request = Resumption(line.url, limit_s, str(line.body.get("request_id", "")))
        body = {"model": self._model, **line.body, **request.fields}
        try:
            return await self._answer(line, body, request)
        except asyncio.CancelledError:
            await self._cancel(request)
            raise

    async def _answer(self, line: BatchLine, body: Json, request: Resumption) -> BatchResult:
        for attempt in itertools.count():
            last = attempt == self._retry.retries
            retry_after = None
            try:
                response = await self._try(line, body, request)
            except (RequestFailed, ServiceUnreachable) as error:
                if last or not _may_go_on(request, error):
                    return _unanswered(line, error)
            else:
                if last or not _is_retried(request, response):
                    return _answered(line, response)
                retry_after = response.headers.get("retry-after")
            self._tally.retries += 1
            await self._clock.pause(self._retry.delay_s(attempt, retry_after))
        raise AssertionError("the last try returns or raises")

    async def _try(self, line: BatchLine, body: Json, request: Resumption) -> httpx.Response:
        """An answer from the service: to the request that it has already, or to a new one."""
        with translated_errors(str(self._client.base_url)):
            if request.events_path is not None:
                response = await self._fetch_events(request.events_path)
                if response.status_code != HTTPStatus.NOT_FOUND or not _is_retried(request, response):
                    return response
            return await self._client.post(line.url, json=body)

    async def _fetch_events(self, path: str) -> httpx.Response:
        """The answer to a request that the service has: its events from the first one on, put together."""
        parser = EventParser()
        answer = WholeAnswer()
        async with self._client.stream("GET", path) as response:
            if response.is_error:
                await response.aread()
                return response
            async for received in response.aiter_bytes():
                for data, _id in parser.feed(received):
                    if data == DONE:
                        return httpx.Response(HTTPStatus.OK, content=msgspec.json.encode(answer.json()))
                    answer.add(chunk_of(data))
        raise ConnectionBroke(str(self._client.base_url), "the service ended the stream in the middle of the answer")

    async def _cancel(self, request: Resumption) -> None:
        """Try to cancel a request, so that it does not continue without a reader."""
        if request.fields:
            with contextlib.suppress(httpx.HTTPError):
                await self._client.delete(request.request_path, timeout=CANCEL_TIMEOUT_S)


def _is_retried(request: Resumption, response: httpx.Response) -> bool:
    """Whether another try may give a better answer than this one."""
    if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        return True
    return response.is_error and request.may_go_on(failure(response.status_code, response.content))


def _may_go_on(request: Resumption, error: click.ClickException) -> bool:
    """Whether another try may succeed after one that gave no answer."""
    if isinstance(error, ServiceSilent):
        request.look_for_it()
        return True
    return request.may_go_on(error)


def _answered(line: BatchLine, response: httpx.Response) -> BatchResult:
    """The result for a complete answer, good or bad."""
    status = response.status_code
    try:
        body: Any = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        body = response.text[:1000]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise ServiceNotReady(f"{error_message(body)} (HTTP {status})", status=status)
    good = response.is_success and isinstance(body, dict)
    error = None if good else BatchError(f"http_{status}", error_message(body))
    request_id = response.headers.get("x-request-id") or (body["id"] if good else "")
    return BatchResult(custom_id=line.custom_id, response=BatchResponse(status, request_id, body), error=error)


def _unanswered(line: BatchLine, error: RequestFailed | ServiceUnreachable) -> BatchResult:
    """The result for a request whose connection broke or fell silent each time, or whose answer ended in an error."""
    if isinstance(error, ServiceUnreachable):
        raise error
    code = {ServiceSilent: "timeout", ConnectionBroke: "connection_error"}.get(type(error), error.code)
    return BatchResult(custom_id=line.custom_id, error=BatchError(code, error.message))
