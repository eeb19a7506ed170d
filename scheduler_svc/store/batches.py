"""Batches and how they go from state to state: synchronous SQL on a connection of `database.connect`. Times are given.

    validating ─▶ in_progress ─▶ finalizing ─▶ completed, expired, failed
                                 cancelling ─▶ cancelled

`ALLOWED` has all the transitions. `batch_results` adds results, and writes the files of a batch that is finalizing or
cancelling.
"""

from sqlite3 import Connection
from typing import Any

from scheduler_svc.store import files
from scheduler_svc.store.database import writing
from scheduler_svc.store.errors import Conflict, NotFound, TooManyOpen
from scheduler_svc.store.quotas import check_quota
from scheduler_svc.store.records import RECORD_BYTES, BatchEnd, BatchStatus, Order, Progress, StoredBatch

ALLOWED: dict[BatchStatus, tuple[BatchStatus, ...]] = {
    "validating": ("in_progress", "failed", "cancelling", "finalizing"),
    "in_progress": ("finalizing", "cancelling"),
    "finalizing": ("completed", "expired", "failed"),
    "cancelling": ("cancelled",),
    "completed": (),
    "expired": (),
    "failed": (),
    "cancelled": (),
}

INPUT_KEPT_S = 3600.0  # after its batch is due, as lines without a result are read then

_EXISTS = "owner = :owner AND batch_id = :id AND (expires_at IS NULL OR expires_at > :now)"
_OPEN = "status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
_FIELDS = StoredBatch.__struct_fields__
_WRITTEN_AT_THE_END = ("output_file_id", "error_file_id")  # shown once the files are whole
_COLUMNS = ", ".join(f"CASE WHEN NOT {_OPEN} THEN {f} END" if f in _WRITTEN_AT_THE_END else f for f in _FIELDS)


def add(connection: Connection, batch: StoredBatch, *, limit_bytes: int = 0, max_open: int = 0) -> None:
    """Keep a new batch, which is to be validated, and its input until it is due. `created_at` counts as the present.

    Args:
        limit_bytes: for all that its owner has; 0: no limit.
        max_open: batches of its owner that have not ended, this one included; 0: no limit.

    Raises:
        Conflict: the owner has a batch with this id.
        TooManyOpen: the owner has `max_open` already, and nothing was added.
        QuotaExceeded: nothing was added.
    """
    assert batch.status == "validating", batch.status
    assert batch.output_file_id is None, batch.output_file_id
    assert batch.error_file_id is None, batch.error_file_id
    num_bytes = RECORD_BYTES + len(batch.metadata) + len(batch.errors)
    with writing(connection):
        same_id = "FROM batches WHERE owner = ? AND batch_id = ?"
        connection.execute(f"DELETE {same_id} AND expires_at <= ?", (batch.owner, batch.batch_id, batch.created_at))
        if connection.execute(f"SELECT 1 {same_id}", (batch.owner, batch.batch_id)).fetchone():
            raise Conflict(f"there is a batch {batch.batch_id!r} already")
        if max_open and (num_open := count_open(connection, batch.owner, batch.created_at)) >= max_open:
            raise TooManyOpen(num_open, max_open)
        check_quota(connection, batch.owner, num_bytes, limit_bytes)
        files.keep_until(connection, batch.owner, batch.input_file_id, batch.created_at, batch.due_at + INPUT_KEPT_S)
        connection.execute(
            f"INSERT INTO batches ({', '.join(_FIELDS)}, num_bytes) VALUES ({'?, ' * len(_FIELDS)}?)",
            (*(getattr(batch, field) for field in _FIELDS), num_bytes),
        )


def get(connection: Connection, owner: str, batch_id: str, now: float) -> StoredBatch:
    """A batch, without its results.

    Raises:
        NotFound: the owner has none with this id (any more).
    """
    query = f"SELECT {_COLUMNS} FROM batches WHERE {_EXISTS}"
    row = connection.execute(query, {"owner": owner, "id": batch_id, "now": now}).fetchone()
    if row is None:
        raise NotFound("batch", batch_id)
    return _batch(row)


def list_batches(
    connection: Connection,
    owner: str,
    now: float,
    *,
    after: str | None = None,
    limit: int = 20,
    order: Order = "desc",
) -> list[StoredBatch]:
    """A page of an owner's batches, in order of (created_at, batch_id).

    Args:
        after: the id of the last one of the page before.
        limit: the page's size.
        order: `desc`: the youngest first.

    Raises:
        NotFound: `after` is none of the owner's batches (any more).
    """
    values: dict[str, Any] = {"owner": owner, "now": now, "limit": limit}
    conditions = "owner = :owner AND (expires_at IS NULL OR expires_at > :now)"
    if after is not None:
        values |= {"created_at": get(connection, owner, after, now).created_at, "after": after}
        conditions += f" AND (created_at, batch_id) {'<' if order == 'desc' else '>'} (:created_at, :after)"
    sort = "created_at DESC, batch_id DESC" if order == "desc" else "created_at, batch_id"
    query = f"SELECT {_COLUMNS} FROM batches WHERE {conditions} ORDER BY {sort} LIMIT :limit"
    return [_batch(row) for row in connection.execute(query, values)]


def open_batches(
    connection: Connection, now: float, *, after: StoredBatch | None = None, limit: int = 100
) -> list[StoredBatch]:
    """Batches of all owners that have not ended, oldest first: what the worker has to do.

    Args:
        after: the last one of the page before.
        limit: the page's size.
    """
    place = (after.created_at, after.owner, after.batch_id) if after else (-1.0, "", "")
    query = (
        f"SELECT {_COLUMNS} FROM batches WHERE {_OPEN} AND (expires_at IS NULL OR expires_at > ?) "
        "AND (created_at, owner, batch_id) > (?, ?, ?) ORDER BY created_at, owner, batch_id LIMIT ?"
    )
    return [_batch(row) for row in connection.execute(query, (now, *place, limit))]


def count_open(connection: Connection, owner: str, now: float) -> int:
    """How many batches of an owner have not ended."""
    query = f"SELECT count(*) FROM batches WHERE {_OPEN} AND owner = ? AND (expires_at IS NULL OR expires_at > ?)"
    count: int = connection.execute(query, (owner, now)).fetchone()[0]
    return count


def count_all_open(connection: Connection) -> int:
    """Count the batches of all owners that have not ended, and expired ones until a sweep."""
    count: int = connection.execute(f"SELECT count(*) FROM batches WHERE {_OPEN}").fetchone()[0]
    return count


def start(connection: Connection, owner: str, batch_id: str, now: float, *, total: int) -> None:
    """The input of a batch is valid and has `total` lines: they are computed from now on.

    Raises:
        NotFound: the owner has no such batch (any more).
        Conflict: it is not validating.
    """
    with writing(connection):
        move(connection, owner, batch_id, now, "in_progress", total=total)


def fail(connection: Connection, owner: str, batch_id: str, now: float, *, errors: bytes) -> None:
    """The input of a batch cannot be used: it ends as failed, without results.

    Raises:
        NotFound: the owner has no such batch (any more).
        Conflict: it is not validating.
    """
    with writing(connection):
        if _status(connection, owner, batch_id, now) != "validating":
            raise Conflict(f"batch {batch_id!r} is no longer validating")
        move(connection, owner, batch_id, now, "failed", errors=errors)


def set_progress(connection: Connection, owner: str, batch_id: str, now: float, progress: Progress) -> None:
    """Keep how far the input was taken. What was kept before is never more than `progress` afterwards, nor less.

    Raises:
        NotFound: the owner has no such batch (any more).
    """
    with writing(connection):
        values = {
            "owner": owner,
            "id": batch_id,
            "now": now,
            "offset": progress.next_offset,
            "line": progress.next_line,
        }
        statement = (
            "UPDATE batches SET next_offset = max(next_offset, :offset), next_line = max(next_line, :line) "
            f"WHERE {_EXISTS}"
        )
        if not connection.execute(statement, values).rowcount:
            raise NotFound("batch", batch_id)


def begin_finalizing(
    connection: Connection, owner: str, batch_id: str, now: float, *, ends_as: BatchEnd, errors: bytes = b""
) -> None:
    """No more results will come; `batch_results.finalize` writes the files.

    Args:
        ends_as: what the batch will be after that: `expired` if its window has ended, `failed` if it cannot go on.
        errors: JSON, for one that failed.

    Raises:
        NotFound: the owner has no such batch (any more).
        Conflict: it is neither validating nor in progress.
    """
    with writing(connection):
        move(connection, owner, batch_id, now, "finalizing", ends_as=ends_as, errors=errors, takes_results=0)


def cancel(connection: Connection, owner: str, batch_id: str, now: float) -> StoredBatch:
    """A batch takes no more lines, and will be cancelled once the results so far are in its files.

    Returns:
        The batch; unchanged if it was cancelled before.

    Raises:
        NotFound: the owner has no such batch (any more).
        Conflict: it is finalizing, or has ended otherwise.
    """
    with writing(connection):
        if _status(connection, owner, batch_id, now) not in {"cancelling", "cancelled"}:
            move(connection, owner, batch_id, now, "cancelling")
        return get(connection, owner, batch_id, now)


def fail_all(connection: Connection, owner: str, now: float, errors: bytes) -> int:
    """Inside of a transaction, let all open batches of an owner fail; results that there are will be in their files.
    Return how many failed."""
    query = "SELECT batch_id, status FROM batches WHERE owner = ? AND status IN ('validating', 'in_progress')"
    found = connection.execute(f"{query} AND (expires_at IS NULL OR expires_at > ?)", (owner, now)).fetchall()
    for batch_id, status in found:
        if status == "validating":
            move(connection, owner, batch_id, now, "failed", errors=errors)
        else:
            changes: dict[str, int | str | bytes] = {"ends_as": "failed", "errors": errors, "takes_results": 0}
            move(connection, owner, batch_id, now, "finalizing", **changes)
    return len(found)


def move(
    connection: Connection, owner: str, batch_id: str, now: float, status: BatchStatus, **changes: int | str | bytes
) -> None:
    """Inside of a transaction: go to another state, if `ALLOWED` has the transition, and change other columns.

    Raises:
        NotFound: the owner has no such batch (any more).
        Conflict: there is no such transition.
    """
    present = _status(connection, owner, batch_id, now)
    if status not in ALLOWED[present]:
        raise Conflict(f"batch {batch_id!r} is {present}, and cannot become {status}")
    sets = ", ".join(f"{column} = :{column}" for column in ("status", f"{status}_at", *changes))
    if "errors" in changes:
        sets += ", num_bytes = num_bytes - length(errors) + length(:errors)"
    values = {"owner": owner, "id": batch_id, "now": now, "status": status, f"{status}_at": now, **changes}
    connection.execute(f"UPDATE batches SET {sets} WHERE {_EXISTS}", values)


def _status(connection: Connection, owner: str, batch_id: str, now: float) -> BatchStatus:
    query = f"SELECT status FROM batches WHERE {_EXISTS}"
    row = connection.execute(query, {"owner": owner, "id": batch_id, "now": now}).fetchone()
    if row is None:
        raise NotFound("batch", batch_id)
    status: BatchStatus = row[0]
    return status


def _batch(row: tuple[Any, ...]) -> StoredBatch:
    return StoredBatch(**dict(zip(_FIELDS, row, strict=True)))
