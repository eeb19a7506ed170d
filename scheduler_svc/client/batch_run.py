"""Sends the requests of a batch, many at once, and tries again what may yet succeed."""

import asyncio
import contextlib
import http
import itertools
import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from scheduler_svc.client.api import client_settings, error_message
from scheduler_svc.client.batch_file import BatchError, BatchLine, BatchResponse, BatchResult, InOrder, ResultFile
from scheduler_svc.client.errors import ServiceNotReady, ServiceUnreachable
from scheduler_svc.client.options import Service
from scheduler_svc.client.progress import Tally

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
_SYNC_INTERVAL_S = 5.0
_RETRIED_STATUSES = frozenset({429, 502, 503, 504})


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with jitter, so that what failed together does not come back together.

    Attributes:
        retries: how often a request is sent again at most.
    """

    retries: int

    def delay_s(self, attempt: int, retry_after: str | None) -> float:
        """Seconds to wait after the failure of attempt number `attempt` (from 0).

        Args:
            retry_after: the header's value; a number of seconds is a lower bound, a date is ignored.
        """
        backoff_s = min(_FIRST_DELAY_S * 2.0**attempt, _MAX_DELAY_S)
        jittered_s = backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 (no secret)
        try:
            return max(jittered_s, float(retry_after or 0))
        except ValueError:
            return jittered_s


class BatchSender:
    """Answers lines of a batch.

    Args:
        client: connected to the service.
        model: for lines that name none.
        retry: when to try again.
        tally: counts retries.
    """

    def __init__(self, client: httpx.AsyncClient, model: str, retry: RetryPolicy, tally: Tally) -> None:
        self._client = client
        self._model = model
        self._retry = retry
        self._tally = tally

    async def answer(self, line: BatchLine) -> BatchResult:
        """The result of one line, be it an error.

        Raises:
            ServiceUnreachable, ServiceNotReady: all tries found the service away, which is not the line's fault.
        """
        body = {"model": self._model, **line.body}
        for attempt in itertools.count():
            last = attempt == self._retry.retries
            retry_after = None
            try:
                response = await self._client.post(line.url, json=body)
            except httpx.TransportError as error:
                if last:
                    return _unanswered(line, error, str(self._client.base_url))
            else:
                if last or response.status_code not in _RETRIED_STATUSES:
                    return _answered(line, response)
                retry_after = response.headers.get("retry-after")
            self._tally.retries += 1
            await asyncio.sleep(self._retry.delay_s(attempt, retry_after))
        raise AssertionError("the last try returns or raises")


async def run_batch(
    lines: Iterable[BatchLine],
    output: ResultFile,
    service: Service,
    model: str,
    *,
    concurrency: int,
    retry: RetryPolicy,
    ordered: bool,
    tally: Tally,
) -> int:
    """Send `lines`, at most `concurrency` at a time, and append each result to `output` when it is there.

    Args:
        ordered: append in the order of `lines`.
        tally: of lines and generated tokens; kept up to date.

    Returns:
        How many lines failed for good.

    Raises:
        ServiceUnreachable, ServiceNotReady: the service went away for longer than the retries last.
    """
    todo = enumerate(lines)
    in_order = InOrder()
    num_failed = 0

    async def work(sender: BatchSender) -> None:
        nonlocal num_failed
        for index, line in todo:  # shared: each worker takes the next line when it is free
            result = await sender.answer(line)
            for ready in in_order.add(index, result) if ordered else [result]:
                output.append(ready)
            num_failed += result.error is not None
            tally.done += 1
            tally.tokens += _completion_tokens(result)

    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(**client_settings(service), limits=limits) as client, _synced(output):
        sender = BatchSender(client, model, retry, tally)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, tally.total)):
                    group.create_task(work(sender))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the others are of the same outage
    return num_failed


@contextlib.asynccontextmanager
async def _synced(output: ResultFile) -> AsyncIterator[None]:
    """Bring results to the disk now and then, in a thread: a slow disk should not hold up the requests."""

    async def sync_forever() -> None:
        while True:
            await asyncio.sleep(_SYNC_INTERVAL_S)
            await asyncio.to_thread(output.sync)

    task = asyncio.create_task(sync_forever())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _answered(line: BatchLine, response: httpx.Response) -> BatchResult:
    """The result for a complete answer, good or bad."""
    status = response.status_code
    try:
        body: Any = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        body = response.text[:1000]
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        raise ServiceNotReady(f"{error_message(body)} (HTTP {status})")
    good = response.is_success and isinstance(body, dict)
    error = None if good else BatchError(f"http_{status}", error_message(body))
    request_id = response.headers.get("x-request-id") or (body["id"] if good else "")
    return BatchResult(custom_id=line.custom_id, response=BatchResponse(status, request_id, body), error=error)


def _unanswered(line: BatchLine, error: httpx.TransportError, url: str) -> BatchResult:
    """The result for a request whose connection broke or fell silent each time."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        raise ServiceUnreachable(url, str(error) or "no answer") from error
    code = "timeout" if isinstance(error, httpx.TimeoutException) else "connection_error"
    return BatchResult(custom_id=line.custom_id, error=BatchError(code, str(error) or type(error).__name__))


def _completion_tokens(result: BatchResult) -> int:
    """Tokens generated for a line, by the answer's own account."""
    if result.response is None or result.error is not None:
        return 0
    usage = result.response.body.get("usage") or {}
    return int(usage.get("completion_tokens") or 0)
