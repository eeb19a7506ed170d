"""Deletes what has expired, and gives its space back, a bounded amount at a time. Times are given, in Unix seconds."""

from collections.abc import Collection
from sqlite3 import Connection

from scheduler_svc.store import owners
from scheduler_svc.store.database import writing
from scheduler_svc.store.records import Swept

MAX_ROWS = 500  # deleted in one call, in which other calls and other processes wait: some ms
MAX_BYTES = 16 << 20  # of their contents
SPARE_PAGES = 2048  # of 4 KiB that are kept free for what comes next, instead of being given back to the disk
VACUUM_PAGES = 256  # given back in one call: each is copied, about 5 ms on an idle disk

# Contents of files and results of batches that were deleted go piece by piece, oldest keys first.
_PIECES = {
    "discarded_files": ("file_chunks", "file_key", "length(data)"),
    "discarded_batches": ("batch_results", "batch_key", "length(body) + length(CAST(custom_id AS BLOB))"),
}


def sweep(
    connection: Connection,
    now: float,
    *,
    known: Collection[str] | None = None,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
    spare_pages: int = SPARE_PAGES,
) -> Swept:
    """Delete what has expired by `now`, what revoked owners had, and the contents of what was deleted, in one
    transaction. When nothing of that is left, shrink the file, in another one.

    Contents leave their owner's quota here, when their pages are free: what is stored next takes these before the file
    grows, so that the file is never larger than all that counted in quotas at one time.

    Args:
        known: owners that have a key; None if that is not known: then nothing goes that revoked owners had.
        max_rows: how many rows go at most, so that others wait for this transaction only briefly.
        max_bytes: how large their contents are at most; one row may be larger.
        spare_pages: free pages that stay in the file.

    Returns:
        What was deleted; `is_more` says that the next call has something to do already.
    """
    with writing(connection):
        budget = _Budget(max_rows, max_bytes)
        responses = _expired_responses(connection, now, budget)
        files = _expired(connection, "files", now, budget)
        batches = _expired(connection, "batches", now, budget)
        for owner in owners.due(connection, now, known) if known is not None else []:
            responses += _expired_responses(connection, now, budget, owner)
            files += _expired(connection, "files", now, budget, owner)
            batches += _expired(connection, "batches", now, budget, owner)
        for marks in _PIECES:
            _discard(connection, marks, budget)
    is_more = budget.is_spent or _shrink(connection, spare_pages)
    return Swept(responses, files, batches, budget.num_bytes, is_more=is_more)


class _Budget:
    """What a sweep may still delete.

    Attributes:
        num_bytes: of contents that were deleted.
        is_spent: whether there was more to delete than it may.
    """

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.rows_left = max_rows
        self.num_bytes = 0
        self.is_spent = False
        self._max_bytes = max_bytes

    def take(self, num_bytes: int) -> bool:
        """Whether a row of this size may be deleted; then it counts."""
        if self.rows_left <= 0 or self.num_bytes >= self._max_bytes:
            self.is_spent = True
            return False
        self.rows_left -= 1
        self.num_bytes += num_bytes
        return True


def _expired_responses(connection: Connection, now: float, budget: _Budget, owner: str | None = None) -> int:
    rows = _due_rows(connection, "responses", now, budget, owner)
    keys = [(key,) for key, num_bytes in rows if budget.take(num_bytes)]
    connection.executemany("DELETE FROM responses WHERE key = ?", keys)
    return len(keys)


def _expired(connection: Connection, table: str, now: float, budget: _Budget, owner: str | None = None) -> int:
    """Files or batches: their contents count when they go, later."""
    keys = [(key,) for key, _ in _due_rows(connection, table, now, budget, owner) if budget.take(0)]
    connection.executemany(f"DELETE FROM {table} WHERE key = ?", keys)
    return len(keys)


def _due_rows(
    connection: Connection, table: str, now: float, budget: _Budget, owner: str | None
) -> list[tuple[int, int]]:
    """Select key and bytes of records that have expired, or of all of one owner: one more than may go, which shows
    whether more are left."""
    query = f"SELECT key, num_bytes FROM {table} WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
    if owner is not None:
        query = f"SELECT key, num_bytes FROM {table} WHERE owner = ? LIMIT ?"
    return connection.execute(query, (now if owner is None else owner, budget.rows_left + 1)).fetchall()


def _discard(connection: Connection, marks: str, budget: _Budget) -> None:
    """Delete pieces of deleted contents, which count for their owner no longer; a mark goes with its last piece."""
    pieces, parent, size = _PIECES[marks]
    query = f"SELECT {parent} FROM {marks} ORDER BY 1 LIMIT ?"
    for (mark,) in connection.execute(query, (budget.rows_left + 1,)).fetchall():
        query = f"SELECT key, {size} FROM {pieces} WHERE {parent} = ? LIMIT ?"
        rows = connection.execute(query, (mark, budget.rows_left + 1)).fetchall()
        before = budget.num_bytes
        keys = [(key,) for key, num_bytes in rows if budget.take(num_bytes)]
        connection.executemany(f"DELETE FROM {pieces} WHERE key = ?", keys)
        statement = f"UPDATE {marks} SET num_bytes = num_bytes - ? WHERE {parent} = ?"
        connection.execute(statement, (budget.num_bytes - before, mark))
        if budget.is_spent or not budget.take(0):
            return
        connection.execute(f"DELETE FROM {marks} WHERE {parent} = ?", (mark,))


def _shrink(connection: Connection, spare_pages: int) -> bool:
    """Give some free pages beyond the spare ones back to the disk. Returns whether there are more of them."""
    num_free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    num_pages = min(num_free - spare_pages, VACUUM_PAGES)
    if num_pages > 0:
        # A page goes at each step, and `execute` makes only one step of a statement that has no columns.
        connection.executescript(f"PRAGMA incremental_vacuum({num_pages})")
    return num_free - num_pages > spare_pages
