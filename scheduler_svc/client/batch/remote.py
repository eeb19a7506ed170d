"""A batch that the service itself runs: uploaded, followed, and fetched. It goes on without this process.

While it runs, a note beside the output has its id (`note.py`), so that a second run of the command goes on with it.
"""

import heapq
from collections.abc import Iterable, Iterator
from http import HTTPStatus

from scheduler_svc.client.batch.files import BatchError, BatchResponse, BatchResult, ResultFile
from scheduler_svc.client.batch.input import BatchLine
from scheduler_svc.client.batch.note import NoteFile
from scheduler_svc.client.batch.remote_start import RemoteStart, Todo
from scheduler_svc.client.errors import RequestFailed, WrongFile
from scheduler_svc.client.http.api import Api, Json
from scheduler_svc.client.http.failures import error_message, json_object
from scheduler_svc.client.output import say
from scheduler_svc.client.progress import Tally

MAX_LINES = 50_000  # of a batch of the service
MAX_INPUT_BYTES = 512 * 2**20
ENDED = ("completed", "failed", "expired", "cancelled")
UNFINISHED = ("batch_expired",)  # lines that a second run sends again
FIRST_POLL_S, LAST_POLL_S = 0.1, 2.0
MAX_ERRORS_SHOWN = 10


def takes_batches(api: Api) -> bool:
    """Whether the service runs batches itself. Raises what `Api.get` raises for a service that does not answer."""
    try:
        api.get_json("/v1/batches?limit=1")
    except RequestFailed as error:
        if error.status in (404, 405):
            return False
        raise
    return True


def can_be_remote(lines: Iterable[BatchLine], num_bytes: int) -> bool:
    """Whether the service could take these lines as one batch: some, few enough, and of one endpoint."""
    urls: set[str] = set()
    for number, line in enumerate(lines):
        urls.add(line.url)
        if len(urls) > 1 or number >= MAX_LINES:
            return False
    return bool(urls) and num_bytes <= MAX_INPUT_BYTES


class RemoteBatch:
    """One batch at the service, from its upload to its last result.

    Args:
        output: where results go.
        note: of this output.
        url: of the service, for the note.
    """

    def __init__(self, api: Api, output: ResultFile, note: NoteFile, *, url: str) -> None:
        self._api = api
        self._output = output
        self._note = note
        self._start = RemoteStart(api, note, url)

    def run(self, todo: Todo, tally: Tally) -> int:
        """Have all lines answered, and write their results in the order of the input.

        Args:
            tally: is kept up to date.

        Returns:
            How many lines failed.

        Raises:
            WrongFile: the service takes them for no batch, or has one of another input for this output.
            RequestFailed: the batch has ended without a result of each line; what it has is written.
        """
        try:
            batch = self._follow(self._start.batch(todo), tally)
        except KeyboardInterrupt:
            note = self._note.read()
            if note is not None and note.batch_id is not None:
                say(f"{note.batch_id} goes on; the same command fetches its results")
            raise
        if batch["status"] == "failed" and not batch["request_counts"]["total"]:
            self._forget(batch)
            raise _refused(batch)
        num_failed, num_missing = self._fetch(batch, todo.place, tally)
        if batch["status"] == "completed" and num_missing:
            raise RequestFailed(
                f"{batch['id']} is completed without a result of {num_missing} lines; what the service has of it stays "
                f"there. Delete {self._note.path}, and the same command sends these lines"
            )
        self._output.sync()
        self._forget(batch)
        if batch["status"] != "completed":
            message = f"{batch['id']} is {batch['status']}; the same command sends the lines that have no result"
            if reasons := _reasons(batch):
                message += f": {reasons[0]}"
            raise RequestFailed(message)
        return num_failed

    # --- its course ---

    def _follow(self, batch: Json, tally: Tally) -> Json:
        """The batch when it has ended."""
        num_looks = 0
        while batch["status"] not in ENDED:
            self._api.clock.sleep(min(FIRST_POLL_S * 2**num_looks, LAST_POLL_S))
            num_looks = min(num_looks + 1, 8)
            batch = self._api.patiently(lambda: self._start.seen(batch["id"]))  # noqa: B023  # called at once
            counts = batch["request_counts"]
            tally.advance(min(counts["completed"] + counts["failed"], tally.total))
        return batch

    # --- its end ---

    def _fetch(self, batch: Json, place: dict[str, int], tally: Tally) -> tuple[int, int]:
        """Write the results that are not written yet. Returns how many are failures, and how many are missing."""
        written: dict[str, bool] = {}

        def fetch() -> None:
            files = [batch[name] for name in ("output_file_id", "error_file_id") if batch[name] is not None]
            for _, result in heapq.merge(*(self._results(file_id, place) for file_id in files), key=_place):
                if result.custom_id in self._output.finished or result.custom_id in written:
                    continue
                if result.error is not None and result.error.code in UNFINISHED:
                    continue
                self._output.append(result)
                written[result.custom_id] = result.error is not None
                tally.tokens += result.completion_tokens

        try:
            self._api.patiently(fetch)
        except RequestFailed as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            raise RequestFailed(
                f"the results of {batch['id']} are gone from the service, which keeps files for a limited time: "
                f"{error} "
                f"Delete {self._note.path}, and the same command sends the lines that have no result",
                status=error.status,
                code=error.code,
            ) from error
        tally.advance(len(written))
        return sum(written.values()), max(tally.total - len(written), 0)

    def _results(self, file_id: str, place: dict[str, int]) -> Iterator[tuple[int, BatchResult]]:
        """The results in a file of the service, each with its place.

        Raises:
            RequestFailed: one is of no line of the input.
        """
        for line in self._api.lines(f"/v1/files/{file_id}/content"):
            result = _result(json_object(line, file_id))
            if result.custom_id not in place:
                raise RequestFailed(f"{file_id} has a result of {result.custom_id!r}, which is no line of the input")
            yield place[result.custom_id], result

    def _forget(self, batch: Json) -> None:
        """Have the service drop what it keeps of a batch: that is on the disk here, or of no use."""
        self._note.forget()
        for name in ("input_file_id", "output_file_id", "error_file_id"):
            if batch[name] is not None:
                self._api.delete_quietly(f"/v1/files/{batch[name]}")


def _place(found: tuple[int, BatchResult]) -> int:
    return found[0]


def _result(line: Json) -> BatchResult:
    """A line of the service's files as a line of ours: a failure has an `error` in any case."""
    response, error = line["response"], line["error"]
    if response is None:
        failure = BatchError(str(error["code"]), str(error["message"]))
        return BatchResult(id=line["id"], custom_id=line["custom_id"], error=failure)
    status, body = response["status_code"], response["body"]
    failed = None if status < 400 else BatchError(f"http_{status}", error_message(body))
    answer = BatchResponse(status, response["request_id"], body)
    return BatchResult(id=line["id"], custom_id=line["custom_id"], response=answer, error=failed)


def _refused(batch: Json) -> WrongFile:
    reasons = _reasons(batch)
    more = [f"and {len(reasons) - MAX_ERRORS_SHOWN} more"] if len(reasons) > MAX_ERRORS_SHOWN else []
    return WrongFile("\n  ".join(["the service refuses the batch:", *reasons[:MAX_ERRORS_SHOWN], *more]))


def _reasons(batch: Json) -> list[str]:
    errors: list[Json] = (batch.get("errors") or {}).get("data") or []
    return [f"line {error['line']}: {error['message']}" if error.get("line") else error["message"] for error in errors]
