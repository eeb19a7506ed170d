"""Files in chunks: synchronous SQL on a connection of `database.connect`. Times are given, in Unix seconds.

A file is begun, appended to and finished. Until then only `append`, `finish` and `delete` find it; it counts in the
quota, and is swept when nothing was appended for `UNFINISHED_S`.
"""

from sqlite3 import Connection
from typing import Any

from scheduler_svc.store.database import writing
from scheduler_svc.store.errors import Conflict, NotFound
from scheduler_svc.store.quotas import check_quota
from scheduler_svc.store.records import RECORD_BYTES, Order, StoredFile

MAX_CHUNK_BYTES = 1 << 20
MAX_READ_BYTES = 4 << 20
UNFINISHED_S = 3600.0

_EXISTS = "owner = :owner AND file_id = :id AND (expires_at IS NULL OR expires_at > :now)"
_FACTS = "owner, file_id, filename, purpose, content_bytes, created_at"
# One statement, so that no sweep comes between. The first chunk begins at or before the first byte that is wanted; a
# file without such chunks is a row without data.
_READ = f"""
SELECT start, data FROM files LEFT JOIN file_chunks ON file_key = files.key AND start < :end AND start >= coalesce(
    (SELECT max(start) FROM file_chunks WHERE file_key = files.key AND start <= :offset), 0)
WHERE {_EXISTS} AND is_complete ORDER BY start"""


def begin(connection: Connection, file: StoredFile, *, limit_bytes: int = 0) -> None:
    """Begin a file. `created_at` counts as the present; `num_bytes` must be 0.

    Args:
        limit_bytes: for all that its owner has; 0: no limit.

    Raises:
        Conflict: the owner has a file with this id.
        QuotaExceeded: nothing was added.
    """
    assert file.num_bytes == 0, file.num_bytes
    with writing(connection):
        check_quota(connection, file.owner, RECORD_BYTES, limit_bytes)
        insert(connection, file, unfinished_until=file.created_at + UNFINISHED_S)


def append(connection: Connection, owner: str, file_id: str, now: float, data: bytes, *, limit_bytes: int = 0) -> int:
    """Add bytes to the end of an unfinished file, as one chunk: few large ones are cheaper than many small ones.

    Args:
        data: at most `MAX_CHUNK_BYTES`.
        limit_bytes: for all that its owner has; 0: no limit.

    Returns:
        How many bytes the file has now.

    Raises:
        NotFound: the owner has no unfinished file with this id (any more).
        QuotaExceeded: nothing was added.
    """
    assert len(data) <= MAX_CHUNK_BYTES, len(data)
    with writing(connection):
        key, num_bytes = _unfinished(connection, owner, file_id, now)
        if data:
            check_quota(connection, owner, len(data), limit_bytes)
            extend(connection, key, data)
        connection.execute("UPDATE files SET expires_at = ? WHERE key = ?", (now + UNFINISHED_S, key))
        return num_bytes + len(data)


def finish(
    connection: Connection,
    owner: str,
    file_id: str,
    now: float,
    *,
    purpose: str | None = None,
    keep_until: float | None = None,
) -> StoredFile:
    """The file is whole: from now on it can be read, and is not appended to.

    Args:
        purpose, keep_until: its `purpose` and `expires_at`, if they are known only now.

    Raises:
        NotFound: the owner has no unfinished file with this id (any more).
    """
    with writing(connection):
        key, _ = _unfinished(connection, owner, file_id, now)
        statement = (
            "UPDATE files SET purpose = coalesce(?, purpose), keep_until = coalesce(?, keep_until) WHERE key = ?"
        )
        connection.execute(statement, (purpose, keep_until, key))
        complete(connection, key)
        (row,) = connection.execute(f"SELECT {_FACTS}, expires_at FROM files WHERE key = ?", (key,))
        return StoredFile(*row)


def get(connection: Connection, owner: str, file_id: str, now: float) -> StoredFile:
    """A finished file's facts.

    Raises:
        NotFound: the owner has none with this id (any more).
    """
    query = f"SELECT {_FACTS}, expires_at FROM files WHERE {_EXISTS} AND is_complete"
    row = connection.execute(query, {"owner": owner, "id": file_id, "now": now}).fetchone()
    if row is None:
        raise NotFound("file", file_id)
    return StoredFile(*row)


def read(connection: Connection, owner: str, file_id: str, now: float, *, offset: int, limit: int) -> bytes:
    """Bytes of a finished file, from `offset`: `limit` of them, or `MAX_READ_BYTES`, or what is left if that is less.

    Raises:
        NotFound: the owner has none with this id (any more).
    """
    assert offset >= 0, offset
    end = offset + min(limit, MAX_READ_BYTES)
    values = {"owner": owner, "id": file_id, "now": now, "offset": offset, "end": end}
    rows = connection.execute(_READ, values).fetchall()
    if not rows:
        raise NotFound("file", file_id)
    pieces = [data[max(0, offset - start) : end - start] for start, data in rows if data is not None]
    return b"".join(pieces)


def list_files(
    connection: Connection,
    owner: str,
    now: float,
    *,
    after: str | None = None,
    limit: int = 100,
    order: Order = "desc",
    purpose: str | None = None,
) -> list[StoredFile]:
    """A page of an owner's finished files, in order of (created_at, file_id).

    Args:
        after: the id of the last one of the page before.
        limit: the page's size.
        order: `desc`: the youngest first.
        purpose: only files with this one.

    Raises:
        NotFound: `after` is none of the owner's finished files (any more).
    """
    values: dict[str, Any] = {"owner": owner, "now": now, "limit": limit, "purpose": purpose}
    conditions = "owner = :owner AND is_complete AND (expires_at IS NULL OR expires_at > :now)"
    if purpose is not None:
        conditions += " AND purpose = :purpose"
    if after is not None:
        place = get(connection, owner, after, now)
        values |= {"created_at": place.created_at, "after": after}
        conditions += f" AND (created_at, file_id) {'<' if order == 'desc' else '>'} (:created_at, :after)"
    sort = "created_at DESC, file_id DESC" if order == "desc" else "created_at, file_id"
    query = f"SELECT {_FACTS}, expires_at FROM files WHERE {conditions} ORDER BY {sort} LIMIT :limit"
    return [StoredFile(*row) for row in connection.execute(query, values)]


def delete(connection: Connection, owner: str, file_id: str, now: float) -> None:
    """Forget a file, also an unfinished one. A sweep frees the space of its content, which counts for its owner until
    then.

    Raises:
        NotFound: the owner has none with this id (any more).
    """
    with writing(connection):
        # What a batch's end is written into (never to expire, not complete) is the batch's until then.
        statement = f"DELETE FROM files WHERE {_EXISTS} AND (is_complete OR expires_at IS NOT NULL)"
        if not connection.execute(statement, {"owner": owner, "id": file_id, "now": now}).rowcount:
            raise NotFound("file", file_id)


def keep_until(connection: Connection, owner: str, file_id: str, now: float, until: float) -> None:
    """Inside of a transaction: a finished file, if there is one, is not forgotten before this time."""
    statement = f"UPDATE files SET expires_at = :until WHERE {_EXISTS} AND is_complete AND expires_at < :until"
    connection.execute(statement, {"owner": owner, "id": file_id, "now": now, "until": until})


def insert(connection: Connection, file: StoredFile, *, unfinished_until: float | None) -> int:
    """Inside of a transaction: an empty, unfinished file. Returns its key.

    Args:
        unfinished_until: when it is forgotten if it is not finished; None: never.

    Raises:
        Conflict: the owner has a file with this id.
    """
    same_id = "FROM files WHERE owner = ? AND file_id = ?"
    connection.execute(f"DELETE {same_id} AND expires_at <= ?", (file.owner, file.file_id, file.created_at))
    if connection.execute(f"SELECT 1 {same_id}", (file.owner, file.file_id)).fetchone():
        raise Conflict(f"there is a file {file.file_id!r} already")
    key = connection.execute(
        "INSERT INTO files (owner, file_id, filename, purpose, content_bytes, created_at, expires_at, is_complete, "
        "keep_until, num_bytes) VALUES (?, ?, ?, ?, 0, ?, ?, 0, ?, ?)",
        (
            *(file.owner, file.file_id, file.filename, file.purpose, file.created_at),
            *(unfinished_until, file.expires_at, RECORD_BYTES),
        ),
    ).lastrowid
    assert key is not None
    return key


def extend(connection: Connection, key: int, data: bytes) -> None:
    """Inside of a transaction: add bytes to the end of an unfinished file, in chunks."""
    (start,) = connection.execute("SELECT content_bytes FROM files WHERE key = ?", (key,)).fetchone()
    for first in range(0, len(data), MAX_CHUNK_BYTES):
        connection.execute(
            "INSERT INTO file_chunks (file_key, start, data) VALUES (?, ?, ?)",
            (key, start + first, data[first : first + MAX_CHUNK_BYTES]),
        )
    connection.execute(
        "UPDATE files SET content_bytes = content_bytes + ?, num_bytes = num_bytes + ? WHERE key = ?",
        (len(data), len(data), key),
    )


def complete(connection: Connection, key: int) -> None:
    """Inside of a transaction: an unfinished file is whole."""
    connection.execute("UPDATE files SET is_complete = 1, expires_at = keep_until WHERE key = ?", (key,))


def _unfinished(connection: Connection, owner: str, file_id: str, now: float) -> tuple[int, int]:
    """Key and size of a file that its owner is still adding to."""
    query = f"SELECT key, content_bytes FROM files WHERE {_EXISTS} AND NOT is_complete AND expires_at IS NOT NULL"
    row = connection.execute(query, {"owner": owner, "id": file_id, "now": now}).fetchone()
    if row is None:
        raise NotFound("file", file_id)
    key, num_bytes = row
    return key, num_bytes
