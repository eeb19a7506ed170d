"""Files and batches as OpenAI's objects, and the lines of a batch's output."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from scheduler_svc.store.records import BatchResult, StoredBatch, StoredFile

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")


class FileObject(Struct, frozen=True):
    """A file."""

    id: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"

    @classmethod
    def of(cls, file: StoredFile) -> "FileObject":
        """A stored file."""
        times = int(file.created_at), _seconds(file.expires_at)
        return cls(file.file_id, file.num_bytes, *times, file.filename, file.purpose)


class FileList(Struct, frozen=True):
    """A page of files."""

    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedFile(Struct, frozen=True):
    """The answer when a file is forgotten."""

    id: str
    object: str = "file"
    deleted: bool = True


class RequestCounts(Struct, frozen=True):
    """Lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchError(Struct, frozen=True):
    """Why a batch failed: with the line of its input, from 1, if one is at fault."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(Struct, frozen=True):
    """All of them."""

    data: list[BatchError]
    object: str = "list"


class Batch(Struct, frozen=True, kw_only=True):
    """A batch."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, batch: StoredBatch) -> "Batch":
        """A stored batch."""
        return cls(
            id=batch.batch_id,
            endpoint=batch.endpoint,
            errors=BatchErrors(msgspec.json.decode(batch.errors, type=list[BatchError])) if batch.errors else None,
            input_file_id=batch.input_file_id,
            completion_window=batch.completion_window,
            status=batch.status,
            output_file_id=batch.output_file_id,
            error_file_id=batch.error_file_id,
            created_at=int(batch.created_at),
            in_progress_at=_seconds(batch.in_progress_at),
            expires_at=int(batch.due_at),
            finalizing_at=_seconds(batch.finalizing_at),
            completed_at=_seconds(batch.completed_at),
            failed_at=_seconds(batch.failed_at),
            expired_at=_seconds(batch.expired_at),
            cancelling_at=_seconds(batch.cancelling_at),
            cancelled_at=_seconds(batch.cancelled_at),
            request_counts=RequestCounts(batch.total, batch.completed, batch.failed),
            metadata=msgspec.json.decode(batch.metadata) if batch.metadata else None,
        )


class BatchList(Struct, frozen=True):
    """A page of batches."""

    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class LineResponse(Struct, frozen=True):
    """What a line's request was answered with."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineFailure(Struct, frozen=True):
    """Why a line's request was never answered."""

    code: str
    message: str


class OutputLine(Struct, frozen=True):
    """A line of a batch's output or errors."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineFailure | None


def answered(batch_id: str, line: int, custom_id: str, response: LineResponse) -> BatchResult:
    """The result of a line that was answered, maybe with an error."""
    return _result(batch_id, line, custom_id, response, None, is_error=response.status_code >= 400)


def unanswered(batch_id: str, line: int, custom_id: str, failure: LineFailure) -> BatchResult:
    """The result of a line that was not."""
    return _result(batch_id, line, custom_id, None, failure, is_error=True)


def errors_json(errors: Sequence[BatchError]) -> bytes:
    """The errors of a batch for the store."""
    return msgspec.json.encode(errors)


def _result(
    batch_id: str,
    line: int,
    custom_id: str,
    response: LineResponse | None,
    failure: LineFailure | None,
    *,
    is_error: bool,
) -> BatchResult:
    name = f"batch_req_{batch_id.removeprefix('batch_')}_{line}"
    body = msgspec.json.encode(OutputLine(name, custom_id, response, failure))
    return BatchResult(line, custom_id, is_error, body.replace(b"\n", b" "))  # JSON has line breaks between values only


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)
