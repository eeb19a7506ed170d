"""The results of `baton batch`, in the format of OpenAI's Batch API.

A line of results is appended whole and never changed, so the output file is also the record of what is done: a second
run of the same batch reads it and continues with the rest.
"""

import contextlib
import fcntl
import os
import stat
import uuid
from collections.abc import Container, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from common.paths import is_there
from scheduler_svc.client.errors import OutputFailed, WrongFile

_RESULT_START = b'{"id":"batch_req_'


class BatchResponse(msgspec.Struct, frozen=True):
    """The answer of the service."""

    status_code: int
    request_id: str
    body: Any


class BatchError(msgspec.Struct, frozen=True):
    """Why a line has no good answer."""

    code: str
    message: str


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the output file. At least one of `response` and `error` is there; both if the answer is an error."""

    id: str = msgspec.field(default_factory=lambda: f"batch_req_{uuid.uuid4().hex}")
    custom_id: str
    response: BatchResponse | None = None
    error: BatchError | None = None

    @property
    def completion_tokens(self) -> int:
        """Tokens generated for the line, as its answer states them."""
        if self.response is None or self.error is not None:
            return 0
        body = self.response.body
        usage = body.get("usage") if isinstance(body, dict) else None
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        return tokens if isinstance(tokens, int) else 0


class _FinishedLine(msgspec.Struct):
    """The fields of a BatchResult that a resumed run needs."""

    custom_id: str
    error: Any = None


class InOrder:
    """Holds results back until all earlier ones are there; pure."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, BatchResult] = {}

    def add(self, index: int, result: BatchResult) -> list[BatchResult]:
        """Take the result at `index` (from 0). Returns the results that can be written now."""
        self._waiting[index] = result
        ready: list[BatchResult] = []
        while self._next in self._waiting:
            ready.append(self._waiting.pop(self._next))
            self._next += 1
        return ready


class ResultFile:
    """The output file, locked against a second run. Each line is handed to the kernel before the next one is written.

    A last line that was torn when a run was killed is cut off, and its request is sent again.

    Args:
        path: made if it does not exist; otherwise it holds results of an earlier run of the same batch.
        known_ids: custom_ids of the input file.

    Raises:
        WrongFile: the file cannot be written, holds something else, or another run is writing to it. It has not been
            changed.

    Attributes:
        finished: custom_id of each earlier result, and whether it is a failure.
    """

    def __init__(self, path: Path, known_ids: Container[str]) -> None:
        self._path = path
        with contextlib.ExitStack() as cleanup:
            try:
                if is_there(path) and not stat.S_ISREG(path.stat().st_mode):
                    raise WrongFile(f"{path} is no regular file")
                self._file = cleanup.enter_context(path.open("a+b"))
            except OSError as error:
                raise WrongFile(f"{path} cannot be written: {error.strerror}") from error
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise WrongFile(f"another run is writing to {path}") from error
            self.finished, num_bytes = self._read(path, known_ids)
            self._file.truncate(num_bytes)
            cleanup.pop_all()
        self._encoder = msgspec.json.Encoder()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.sync()
        finally:
            with contextlib.suppress(OSError):  # of a write that has failed before
                self._file.close()

    def append(self, result: BatchResult) -> None:
        """Write one line. It survives this process from now on, and a crash of the machine after `sync`. Raises
        OutputFailed."""
        with self._writing():
            self._file.write(self._encoder.encode(result) + b"\n")
            self._file.flush()

    def sync(self) -> None:
        """Wait until everything is on the disk. Raises OutputFailed."""
        with self._writing():
            os.fsync(self._file.fileno())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"{self._path} cannot be written: {error.strerror}; the same command goes on where this one ends"
            raise OutputFailed(message) from error

    def _read(self, path: Path, known_ids: Container[str]) -> tuple[dict[str, bool], int]:
        """The finished lines, and the length of all complete lines in bytes."""
        finished: dict[str, bool] = {}
        num_bytes = 0
        decoder = msgspec.json.Decoder(_FinishedLine)
        self._file.seek(0)
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                if not _RESULT_START.startswith(line[: len(_RESULT_START)]):
                    raise WrongFile(f"{path} line {number} is no result of a batch; is it the right file?")
                break
            try:
                result = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise WrongFile(f"{path} line {number} is no result of a batch: {error}") from error
            if result.custom_id not in known_ids:
                raise WrongFile(f"{path} line {number} is of another batch: custom_id {result.custom_id!r} is unknown")
            finished[result.custom_id] = result.error is not None
            num_bytes += len(line)
        return finished, num_bytes
