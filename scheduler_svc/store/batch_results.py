"""Results of a batch's lines, each exactly once, and the files that they become. Times are given, in Unix seconds."""

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Any

import msgspec

from scheduler_svc.store import batches, files
from scheduler_svc.store.database import writing
from scheduler_svc.store.errors import Conflict, NotFound
from scheduler_svc.store.quotas import check_quota
from scheduler_svc.store.records import BatchResult, BatchStatus, Progress, StoredFile

FINALIZE_BYTES = 2 << 20  # of results that become lines of files in one transaction; one result may be larger
FINALIZE_ROWS = 1000  # in about 10 ms, in which other calls wait

_EXISTS = "owner = :owner AND batch_id = :id AND (expires_at IS NULL OR expires_at > :now)"
_INSERT = """
INSERT INTO batch_results (batch_key, line, custom_id, is_error, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (batch_key, line) DO NOTHING"""
_COUNT = """
UPDATE batches SET completed = completed + ?, failed = failed + ?, num_bytes = num_bytes + ?,
    next_offset = max(next_offset, ?), next_line = max(next_line, ?) WHERE key = ?"""


class _Batch(msgspec.Struct, frozen=True, gc=False):
    """What stands about a batch beside its results."""

    key: int
    status: BatchStatus
    takes_results: int
    ends_as: str | None
    total: int
    output_file_id: str | None
    error_file_id: str | None
    output_expires_after_s: float | None


def add_results(
    connection: Connection,
    owner: str,
    batch_id: str,
    now: float,
    results: Sequence[BatchResult],
    *,
    progress: Progress | None = None,
    limit_bytes: int = 0,
) -> int:
    """Keep results, their counts, and how far the input was taken, in one transaction.

    Args:
        results: of lines below the batch's total. A line that has a result keeps it.
        progress: as for `batches.set_progress`.
        limit_bytes: for all that the owner has; 0: no limit.

    Returns:
        How many of the results were new.

    Raises:
        NotFound: the owner has no such batch (any more).
        Conflict: its files are written already, or it is still validating.
        QuotaExceeded: nothing was added.
    """
    with writing(connection):
        batch = _get(connection, owner, batch_id, now)
        if not batch.takes_results or batch.status not in {"in_progress", "cancelling"}:
            raise Conflict(f"batch {batch_id!r} is {batch.status}, and takes no results")
        added = [result for result in results if _add(connection, batch, result)]
        num_bytes = sum(map(_num_bytes, added))
        check_quota(connection, owner, num_bytes, limit_bytes)
        num_failed = sum(result.is_error for result in added)
        place = (progress.next_offset, progress.next_line) if progress else (0, 0)
        connection.execute(_COUNT, (len(added) - num_failed, num_failed, num_bytes, *place, batch.key))
        return len(added)


def lines_done(connection: Connection, owner: str, batch_id: str, now: float, *, first: int, last: int) -> list[int]:
    """Which lines from `first` to before `last` have a result, in order. None has after the first `finalize`.

    Raises:
        NotFound: the owner has no such batch (any more).
    """
    batch = _get(connection, owner, batch_id, now)
    query = "SELECT line FROM batch_results WHERE batch_key = ? AND line >= ? AND line < ? ORDER BY line"
    return [line for (line,) in connection.execute(query, (batch.key, first, last))]


def finalize(
    connection: Connection,
    owner: str,
    batch_id: str,
    now: float,
    *,
    output_file_id: str,
    error_file_id: str,
    max_rows: int = FINALIZE_ROWS,
    max_bytes: int = FINALIZE_BYTES,
) -> bool:
    """Turn some results into lines of the output file and of the error file, in order of the input's lines; after the
    last one, end the batch. To be called until nothing is to do.

    A result becomes a line in one transaction, so a crash between calls loses and doubles nothing.

    Args:
        output_file_id, error_file_id: ids for files that this batch has not begun yet; later calls may give others.
        max_rows: how many results become lines at most, so that others wait for this transaction only briefly.
        max_bytes: how large they are at most; one result may be larger.

    Returns:
        Whether more is to do.

    Raises:
        NotFound: the owner has no such batch (any more).
        Conflict: it is neither finalizing nor cancelling, and has not ended; or an id belongs to another file.
    """
    with writing(connection):
        batch = _get(connection, owner, batch_id, now)
        if batch.status not in {"finalizing", "cancelling"}:
            if batches.ALLOWED[batch.status]:
                raise Conflict(f"batch {batch_id!r} is {batch.status}, and is not to be finalized")
            return False
        connection.execute("UPDATE batches SET takes_results = 0 WHERE key = ?", (batch.key,))
        results, is_last = _next_results(connection, batch, max_rows, max_bytes)
        for is_error, file_id in ((False, output_file_id), (True, error_file_id)):
            lines = [result.body + b"\n" for result in results if result.is_error == is_error]
            if lines:
                key = _file(connection, owner, batch_id, now, batch, file_id, is_error=is_error)
                files.extend(connection, key, b"".join(lines))
        if results:
            statement = "DELETE FROM batch_results WHERE batch_key = ? AND line <= ?"
            connection.execute(statement, (batch.key, results[-1].line))
            statement = "UPDATE batches SET num_bytes = num_bytes - ? WHERE key = ?"
            connection.execute(statement, (sum(map(_num_bytes, results)), batch.key))
        if is_last:
            _end(connection, owner, batch_id, now)
        return not is_last


def _get(connection: Connection, owner: str, batch_id: str, now: float) -> _Batch:
    query = f"SELECT {', '.join(_Batch.__struct_fields__)} FROM batches WHERE {_EXISTS}"
    row = connection.execute(query, {"owner": owner, "id": batch_id, "now": now}).fetchone()
    if row is None:
        raise NotFound("batch", batch_id)
    return _Batch(*row)


def _add(connection: Connection, batch: _Batch, result: BatchResult) -> bool:
    """Keep a result. Returns whether it is the line's first one."""
    assert 0 <= result.line < batch.total, (result.line, batch.total)
    assert b"\n" not in result.body, result.line
    values = (batch.key, result.line, result.custom_id, result.is_error, result.body)
    return bool(connection.execute(_INSERT, values).rowcount)


def _num_bytes(result: BatchResult) -> int:
    """What a result counts for in the quota."""
    return len(result.body) + len(result.custom_id.encode())


def _next_results(
    connection: Connection, batch: _Batch, max_rows: int, max_bytes: int
) -> tuple[list[BatchResult], bool]:
    """The next results that are not in a file yet, in order of lines, and whether there are no others."""
    query = "SELECT line, custom_id, is_error, body FROM batch_results WHERE batch_key = ? ORDER BY line"
    found: list[BatchResult] = []
    num_bytes = 0
    row: tuple[Any, ...]
    for row in connection.execute(query, (batch.key,)):
        if len(found) == max_rows or num_bytes >= max_bytes:
            return found, False
        line, custom_id, is_error, body = row
        found.append(BatchResult(line, custom_id, bool(is_error), body))
        num_bytes += len(body)
    return found, True


def _file(
    connection: Connection, owner: str, batch_id: str, now: float, batch: _Batch, file_id: str, *, is_error: bool
) -> int:
    """The key of the file that a batch's results go to; the file is begun if there is none yet."""
    kind = "error" if is_error else "output"
    begun = batch.error_file_id if is_error else batch.output_file_id
    if begun is not None:
        query = "SELECT key FROM files WHERE owner = ? AND file_id = ?"
        key: int = connection.execute(query, (owner, begun)).fetchone()[0]
        return key
    after_s = batch.output_expires_after_s
    expires_at = None if after_s is None else now + after_s
    file = StoredFile(owner, file_id, f"{batch_id}_{kind}.jsonl", "batch_output", 0, now, expires_at)
    key = files.insert(connection, file, unfinished_until=None)  # the batch is what forgets it
    connection.execute(f"UPDATE batches SET {kind}_file_id = ? WHERE key = ?", (file_id, batch.key))
    return key


def _end(connection: Connection, owner: str, batch_id: str, now: float) -> None:
    """All results are in files: these are whole, and the batch has ended."""
    batch = _get(connection, owner, batch_id, now)
    for file_id in (batch.output_file_id, batch.error_file_id):
        if file_id is not None:
            query = "SELECT key FROM files WHERE owner = ? AND file_id = ?"
            files.complete(connection, connection.execute(query, (owner, file_id)).fetchone()[0])
    status: Any = "cancelled" if batch.status == "cancelling" else batch.ends_as
    batches.move(connection, owner, batch_id, now, status)
