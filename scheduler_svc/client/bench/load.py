"""Sends the requests of a benchmark: so many at a time, or each when it is due, whether or not others have ended."""

import asyncio
import contextlib
import resource
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_svc.client.bench.answer_times import AnswerTimes
from scheduler_svc.client.bench.target import Target
from scheduler_svc.client.bench.workload import BenchRequest
from scheduler_svc.client.errors import RequestFailed, ServiceUnreachable
from scheduler_svc.client.http.event_stream import EventStreams
from scheduler_svc.client.progress import Tally
from scheduler_svc.client.service_address import ServiceAddress


@dataclass
class Outcome:
    """What became of all requests.

    Attributes:
        complete: times of the answers that are what was asked for.
        errors: message of each failure, and how often it occurred.
        seconds: from the first request sent to the end of the last answer, or failure.
    """

    complete: list[AnswerTimes] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


async def run_load(
    requests: Iterable[BenchRequest], service: ServiceAddress, target: Target, concurrency: int | None, tally: Tally
) -> Outcome:
    """Send all requests and measure.

    Args:
        requests: in the order in which they are sent. The next one is made while its time has not come.
        concurrency: how many may be open at a time; None for no limit. What has a time to be sent has no limit.
        tally: counts requests and chunks; kept up to date.
    """
    streams = EventStreams(service)
    slots = asyncio.Semaphore(concurrency) if concurrency else contextlib.nullcontext()
    outcome = Outcome()
    started_s = time.perf_counter()

    async def run(request: BenchRequest, due_s: float | None) -> None:
        async with contextlib.nullcontext() if due_s is not None else slots:
            times = AnswerTimes(tally, due_s)
            try:
                await streams.post(target.path, target.body(request), times)
                times.check(request, is_exact=target.is_exact)
                outcome.complete.append(times)
            except (RequestFailed, ServiceUnreachable) as error:
                outcome.errors[error.message] += 1
            tally.advance(tally.done + 1)

    async with asyncio.TaskGroup() as group:
        for request in requests:
            due_s = None if request.at_s is None else started_s + request.at_s
            if due_s is not None:
                await asyncio.sleep(due_s - time.perf_counter())
            group.create_task(run(request, due_s))
    outcome.seconds = time.perf_counter() - started_s
    return outcome


def raise_file_limit() -> None:
    """Raise it as far as this process may: each open request is a connection, and the default is some 1000."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # macOS says "unlimited" and takes less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
