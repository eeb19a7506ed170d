"""Sends the requests of a batch, many at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import httpx

from scheduler_svc.client.batch.files import InOrder, ResultFile
from scheduler_svc.client.batch.input import BatchLine
from scheduler_svc.client.batch.sender import BatchSender, RetryPolicy
from scheduler_svc.client.http.api import client_settings, trusted
from scheduler_svc.client.http.keepalive import KEEPALIVE_OPTIONS
from scheduler_svc.client.progress import Tally
from scheduler_svc.client.service_address import ServiceAddress

_SYNC_INTERVAL_S = 5.0


async def run_batch(
    lines: Iterable[BatchLine],
    output: ResultFile,
    service: ServiceAddress,
    model: str,
    *,
    concurrency: int,
    retry: RetryPolicy,
    ordered: bool,
    tally: Tally,
) -> int:
    """Send `lines`, at most `concurrency` at a time, and append each result to `output` when it has come.

    Args:
        ordered: append in the order of `lines`.
        tally: counts lines and generated tokens; kept up to date.

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
        for index, line in todo:  # shared: a free worker takes the next line
            result = await sender.answer(line)
            for ready in in_order.add(index, result) if ordered else [result]:
                output.append(ready)
            num_failed += result.error is not None
            tally.tokens += result.completion_tokens
            tally.advance(tally.done + 1)

    transport = httpx.AsyncHTTPTransport(
        verify=trusted(service),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        socket_options=KEEPALIVE_OPTIONS,
    )
    async with httpx.AsyncClient(**client_settings(service), transport=transport) as client, _synced(output):
        sender = BatchSender(client, model, retry, tally, service.clock)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, tally.total)):
                    group.create_task(work(sender))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the others have the same cause
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
