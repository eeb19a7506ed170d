"""Has a file of requests answered: by the service as a batch, or one by one."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scheduler_svc.client.batch.files import ResultFile
from scheduler_svc.client.batch.input import BatchInput, BatchLine
from scheduler_svc.client.batch.note import NoteFile, input_digest
from scheduler_svc.client.batch.remote import RemoteBatch, can_be_remote, takes_batches
from scheduler_svc.client.batch.remote_start import Todo
from scheduler_svc.client.batch.run import run_batch
from scheduler_svc.client.batch.sender import RetryPolicy
from scheduler_svc.client.errors import RequestFailed, WrongFile
from scheduler_svc.client.http.api import Api
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.output import duration, say
from scheduler_svc.client.progress import ProgressReport, Tally
from scheduler_svc.client.service_address import ServiceAddress


@dataclass(frozen=True)
class HowToSend:
    """What a user can choose.

    Attributes:
        model: of requests that name none; None for the service's first one.
        direct: send requests one by one in any case.
        concurrency, retries: of requests that are sent one by one.
        ordered: write results in the order of the input.
    """

    model: str | None
    direct: bool
    concurrency: int
    retries: int
    ordered: bool


def answer_batch(
    source: BatchInput, note: NoteFile, output: ResultFile, service: ServiceAddress, how: HowToSend, tally: Tally
) -> int:
    """Append a result for each line of a checked input that has none yet. Returns how many of them are failures.

    Args:
        note: of this output.
        tally: is kept up to date, and told at the end.

    Raises:
        WrongFile, RequestFailed, ServiceUnreachable: as `RemoteBatch.run` and `run_batch` do. Also: the service has a
            batch for this output, and the lines would be sent one by one; the input has changed since it was checked.
    """

    def todo() -> Iterator[BatchLine]:
        return (line for line in source if line.custom_id not in output.finished)

    with connect(service) as api:
        model = api.model_name(how.model)
        is_remote = not how.direct and can_be_remote(todo(), source.path.stat().st_size) and takes_batches(api)
        if is_remote:
            remote = RemoteBatch(api, output, note, url=service.url)
            place = {line.custom_id: number for number, line in enumerate(source)}
            asked = Todo(todo(), next(todo()).url, place, model, lambda for_model: input_digest(source, for_model))
            with _told(tally, api):
                return remote.run(asked, tally)
    if note.read() is not None:
        raise WrongFile(
            f"the lines would be sent one by one, but {note.path} says that the service has a batch for this output. "
            f"Fetch its results without --direct and with its input as it was; or delete {note.path}, and the same "
            "command sends the lines that have no result"
        )
    run = run_batch(
        todo(),
        output,
        service,
        model,
        concurrency=how.concurrency,
        retry=RetryPolicy(how.retries),
        ordered=how.ordered,
        tally=tally,
    )
    with connect(service) as api, _told(tally, api):
        num_failed = asyncio.run(run)
    if tally.done < tally.total:
        raise RequestFailed(f"only {tally.done} of {tally.total} lines were in {source.path} when they were sent")
    return num_failed


@contextmanager
def _told(tally: Tally, api: Api) -> Iterator[None]:
    """Show how far it is, what it waits for, and at the end how far it came."""
    try:
        with ProgressReport(tally, api.clock, api.generated), api.watching(tally.seen):
            yield
    finally:
        say(f"{tally.done} of {tally.total} lines in {duration(tally.seconds)}, {tally.rates()}")
