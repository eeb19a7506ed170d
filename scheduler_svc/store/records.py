"""The rows of the store as frozen structs. Times are Unix seconds; the store itself never looks at a clock.

`owner` is the id of an API key (`scheduler_svc/api_key_file.py`), or "" where the service has no keys. `expires_at`
is when a record ceases to exist (None: never): from that moment no function finds it, and a sweep deletes it later.
JSON is bytes that frontends write and read; the store does not look into them.
"""

from typing import Literal

import msgspec

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
BatchEnd = Literal["completed", "expired", "failed"]
Order = Literal["asc", "desc"]

OPEN_RESPONSE = ("queued", "in_progress")
OPEN_BATCH = ("validating", "in_progress", "finalizing", "cancelling")
RECORD_BYTES = 256  # that each response, file and batch counts for beside its content: empty ones are not free


class StoredResponse(msgspec.Struct, frozen=True, gc=False):
    """A response of the Responses API.

    Attributes:
        is_background: whether it goes on without a client.
        previous_id: the response that this one continues, or None.
        head: JSON of what is known when it is accepted.
        input_items: JSON list.
        output_items: JSON list; empty bytes while it is open.
        tail: JSON of what is known when it has ended.
        work: what the background worker needs to run it; empty once it has ended.
        tokens: what its stream is written again from.
    """

    owner: str
    response_id: str
    status: ResponseStatus
    created_at: float
    expires_at: float | None
    is_background: bool
    previous_id: str | None
    head: bytes
    input_items: bytes
    output_items: bytes = b""
    tail: bytes = b""
    work: bytes = b""
    tokens: bytes = b""


class AnswerSizes(msgspec.Struct, frozen=True, gc=False):
    """Where a response stands, and how many bytes its parts have."""

    status: ResponseStatus
    is_background: bool
    head: int
    input_items: int
    output_items: int
    tail: int
    tokens: int


class OpenResponse(msgspec.Struct, frozen=True, gc=False):
    """A response in the background that has not ended, without its contents."""

    owner: str
    response_id: str
    status: ResponseStatus
    created_at: float
    expires_at: float | None


class ChainLink(msgspec.Struct, frozen=True, gc=False):
    """A response as a part of a conversation."""

    response_id: str
    status: ResponseStatus
    input_items: bytes
    output_items: bytes


class StoredFile(msgspec.Struct, frozen=True, gc=False):
    """A file, without its content.

    Attributes:
        num_bytes: of its content.
    """

    owner: str
    file_id: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: float
    expires_at: float | None


class StoredBatch(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A batch of requests in a file, as OpenAI's Batch API has it, and how far the worker has come.

    Attributes:
        due_at: when its completion window ends (`expires_at` in OpenAI's API).
        expires_at: when the store forgets the batch, as for all records; its files have their own times.
        output_expires_after_s: how long its output files are kept from when they are made; None: for ever.
        metadata, errors: JSON, or empty.
        total, completed, failed: numbers of lines. `total` is 0 until the input is validated; the others are counts
            of results.
        output_file_id, error_file_id: None until the batch has ended, and if the file would be empty.
        ends_as: what it will be once it is finalized.
        next_offset, next_line: byte offset and number of the input's first line that is not taken yet.
    """

    owner: str
    batch_id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: float
    due_at: float
    expires_at: float | None
    output_expires_after_s: float | None = None
    metadata: bytes = b""
    errors: bytes = b""
    status: BatchStatus = "validating"
    ends_as: BatchEnd | None = None
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    next_offset: int = 0
    next_line: int = 0


class BatchResult(msgspec.Struct, frozen=True, gc=False):
    """What became of a line of a batch's input.

    Attributes:
        line: its number, from 0.
        custom_id: by which the client knows it.
        is_error: whether it belongs into the error file, and counts as failed.
        body: JSON without a line break: the line of the output file or of the error file.
    """

    line: int
    custom_id: str
    is_error: bool
    body: bytes


class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far the worker has taken lines of a batch's input: byte offset and number of the next line."""

    next_offset: int
    next_line: int


class Swept(msgspec.Struct, frozen=True, gc=False):
    """What a sweep has deleted.

    Attributes:
        num_bytes: of contents whose space is free now, those of records deleted earlier included, as they counted.
        is_more: whether the next sweep has something to do already.
    """

    responses: int
    files: int
    batches: int
    num_bytes: int
    is_more: bool
