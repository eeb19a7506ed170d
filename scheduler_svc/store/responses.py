"""Stored responses: synchronous SQL on a connection of `database.connect`. Times are given, in Unix seconds."""

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Any, Literal, NamedTuple

from scheduler_svc.store.database import reading, writing
from scheduler_svc.store.errors import ChainTooLong, Conflict, NotFound
from scheduler_svc.store.quotas import check_quota
from scheduler_svc.store.records import (
    OPEN_RESPONSE,
    RECORD_BYTES,
    AnswerSizes,
    ChainLink,
    OpenResponse,
    ResponseStatus,
    StoredResponse,
)

_EXISTS = "owner = :owner AND response_id = :id AND (expires_at IS NULL OR expires_at > :now)"
_OPEN = "status IN ('queued', 'in_progress')"
_MEASURE = f"""
SELECT status, is_background, length(head), length(input_items), length(output_items), length(tail), length(tokens)
FROM responses JOIN response_contents USING (key) WHERE {_EXISTS}"""
_GET_ITEMS = f"""
SELECT response_id, status, input_items, output_items
FROM responses JOIN response_contents USING (key) WHERE {_EXISTS}"""
_OPEN_BACKGROUND = f"""
SELECT owner, response_id, status, created_at, expires_at FROM responses
WHERE is_background AND {_OPEN} AND (expires_at IS NULL OR expires_at > :now)
    AND (created_at, owner, response_id) > (:created_at, :owner, :id)
ORDER BY created_at, owner, response_id LIMIT :limit"""
# From the youngest: a row is looked at before the walk goes on from it, so neither limit is passed by more than a row.
# CROSS JOIN keeps the order of tables: SQLite 3.53 would else read all of an owner's rows for each step of the walk.
_CHAIN = """
WITH RECURSIVE walk (key, next_id, depth, total_bytes) AS (
    SELECT key, previous_id, 1, length(input_items) + length(output_items)
    FROM responses JOIN response_contents USING (key)
    WHERE owner = :owner AND response_id = :id AND (expires_at IS NULL OR expires_at > :now)
    UNION ALL
    SELECT r.key, previous_id, depth + 1, total_bytes + length(input_items) + length(output_items)
    FROM walk
        CROSS JOIN responses r ON owner = :owner AND response_id = next_id AND (expires_at IS NULL OR expires_at > :now)
        CROSS JOIN response_contents c ON c.key = r.key
    WHERE depth <= :max_responses AND total_bytes <= :max_bytes
)
SELECT depth, total_bytes, next_id, response_id, status, input_items, output_items
FROM walk CROSS JOIN responses USING (key) CROSS JOIN response_contents USING (key) ORDER BY depth DESC"""


class Cut(NamedTuple):
    """Bytes of one part of a response's contents, from `start` to before `stop`."""

    part: Literal["head", "input_items", "output_items", "tail", "tokens"]
    start: int
    stop: int


def add(connection: Connection, response: StoredResponse, *, limit_bytes: int = 0) -> None:
    """Keep a response. `created_at` counts as the present.

    Args:
        limit_bytes: for all that its owner has; 0: no limit.

    Raises:
        Conflict: the owner has a response with this id.
        QuotaExceeded: nothing was added.
    """
    r = response
    num_bytes = RECORD_BYTES + sum(map(len, (r.head, r.input_items, r.output_items, r.tail, r.work, r.tokens)))
    with writing(connection):
        same_id = "FROM responses WHERE owner = ? AND response_id = ?"
        connection.execute(f"DELETE {same_id} AND expires_at <= ?", (r.owner, r.response_id, r.created_at))
        if connection.execute(f"SELECT 1 {same_id}", (r.owner, r.response_id)).fetchone():
            raise Conflict(f"there is a response {r.response_id!r} already")
        check_quota(connection, r.owner, num_bytes, limit_bytes)
        facts = (r.owner, r.response_id, r.status, r.created_at, r.expires_at, r.is_background, r.previous_id)
        key = connection.execute(
            "INSERT INTO responses (owner, response_id, status, created_at, expires_at, is_background, previous_id, "
            "num_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*facts, num_bytes),
        ).lastrowid
        contents = (r.head, r.input_items, r.output_items, r.tail, r.work, r.tokens)
        connection.execute("INSERT INTO response_contents VALUES (?, ?, ?, ?, ?, ?, ?)", (key, *contents))


def measure(connection: Connection, owner: str, response_id: str, now: float) -> AnswerSizes:
    """Where a response stands, and how large its parts are.

    Raises:
        NotFound: the owner has none with this id (any more).
    """
    status, is_background, *sizes = _row(connection, _MEASURE, owner, response_id, now)
    return AnswerSizes(status, bool(is_background), *sizes)


def read(connection: Connection, owner: str, response_id: str, now: float, cuts: Sequence[Cut]) -> list[bytes]:
    """Bytes of a response's contents, those of each cut. What an ended response has does not change any more, nor does
    the head of an open one.

    Raises:
        NotFound: the owner has none with this id (any more).
    """
    found: list[bytes] = []
    with reading(connection):
        key: int = _row(connection, f"SELECT key FROM responses WHERE {_EXISTS}", owner, response_id, now)[0]
        for cut in cuts:  # `substr` would read all that stands before it as well
            with connection.blobopen("response_contents", cut.part, key, readonly=True) as blob:
                blob.seek(cut.start)
                found.append(blob.read(cut.stop - cut.start))
    return found


def get_items(
    connection: Connection, owner: str, response_ids: Sequence[str], now: float, *, max_bytes: int
) -> list[ChainLink]:
    """Items of several responses, in the order of their ids.

    Args:
        max_bytes: how large they may be together.

    Raises:
        NotFound: one of them is missing; `record_id` says which.
        ChainTooLong: they are larger.
    """
    links: list[ChainLink] = []
    num_bytes = 0
    for response_id in response_ids:
        links.append(ChainLink(*_row(connection, _GET_ITEMS, owner, response_id, now)))
        num_bytes += len(links[-1].input_items) + len(links[-1].output_items)
        if num_bytes > max_bytes:
            raise ChainTooLong("bytes", max_bytes)
    return links


def get_status(connection: Connection, owner: str, response_id: str, now: float) -> ResponseStatus | None:
    """Where a response stands, without its contents; None if there is none (any more)."""
    query = f"SELECT status FROM responses WHERE {_EXISTS}"
    row = connection.execute(query, {"owner": owner, "id": response_id, "now": now}).fetchone()
    return row[0] if row else None


def delete(connection: Connection, owner: str, response_id: str, now: float) -> None:
    """Forget a response, also an open one: a later `finish` of it changes nothing.

    Raises:
        NotFound: the owner has none with this id (any more).
    """
    with writing(connection):
        statement = f"DELETE FROM responses WHERE {_EXISTS}"
        if not connection.execute(statement, {"owner": owner, "id": response_id, "now": now}).rowcount:
            raise NotFound("response", response_id)


def begin(connection: Connection, owner: str, response_id: str, now: float) -> bytes | None:
    """A queued response is computed from now on.

    Returns:
        Its `work`; None if it has ended, was cancelled or is not there (any more).
    """
    values = {"owner": owner, "id": response_id, "now": now}
    with writing(connection):
        statement = f"UPDATE responses SET status = 'in_progress' WHERE {_EXISTS} AND {_OPEN} RETURNING key"
        row = connection.execute(statement, values).fetchone()
        if row is None:
            return None
        work: bytes = connection.execute("SELECT work FROM response_contents WHERE key = ?", row).fetchone()[0]
        return work


def finish(
    connection: Connection,
    owner: str,
    response_id: str,
    now: float,
    *,
    status: ResponseStatus,
    output_items: bytes,
    tail: bytes,
    tokens: bytes,
) -> bool:
    """Keep how a response has ended, and forget its `work`. What it has become counts, but is never refused.

    Args:
        status: one that is not open.

    Returns:
        Whether it did; False if the response has ended already, was cancelled or is not there (any more).
    """
    assert status not in OPEN_RESPONSE, status
    with writing(connection):
        key = _end(connection, owner, response_id, now, status)
        if key is None:
            return False
        connection.execute(
            "UPDATE response_contents SET output_items = ?, tail = ?, work = x'', tokens = ? WHERE key = ?",
            (output_items, tail, tokens, key),
        )
        _count(connection, key)
        return True


def cancel(connection: Connection, owner: str, response_id: str, now: float) -> bool:
    """An open response ends as cancelled, and its `work` is forgotten.

    Returns:
        Whether it did; False if it has ended already.

    Raises:
        NotFound: the owner has none with this id (any more).
    """
    with writing(connection):
        is_ended = _cancel(connection, owner, response_id, now)
        if not is_ended and get_status(connection, owner, response_id, now) is None:
            raise NotFound("response", response_id)
        return is_ended


def cancel_all(connection: Connection, owner: str, now: float) -> int:
    """Inside of a transaction, cancel all open responses of an owner in the background. Return how many these were."""
    query = f"SELECT response_id FROM responses WHERE owner = ? AND is_background AND {_OPEN}"
    ids = [response_id for (response_id,) in connection.execute(query, (owner,))]
    return sum(_cancel(connection, owner, response_id, now) for response_id in ids)


def open_background(
    connection: Connection, now: float, *, after: OpenResponse | None = None, limit: int = 100
) -> list[OpenResponse]:
    """Responses of all owners that are in the background and have not ended, oldest first.

    Args:
        after: the last one of the page before.
        limit: the page's size.
    """
    place = {"created_at": after.created_at, "owner": after.owner, "id": after.response_id} if after else {}
    values = {"created_at": -1.0, "owner": "", "id": "", "now": now, "limit": limit, **place}
    return [OpenResponse(*row) for row in connection.execute(_OPEN_BACKGROUND, values)]


def count_open(connection: Connection, owner: str, now: float) -> int:
    """How many responses of an owner are in the background and have not ended."""
    query = (
        f"SELECT count(*) FROM responses WHERE is_background AND {_OPEN} AND owner = ? "
        "AND (expires_at IS NULL OR expires_at > ?)"
    )
    count: int = connection.execute(query, (owner, now)).fetchone()[0]
    return count


def count_all_open(connection: Connection) -> int:
    """Count the responses in the background of all owners that have not ended, and expired ones until a sweep."""
    count: int = connection.execute(f"SELECT count(*) FROM responses WHERE is_background AND {_OPEN}").fetchone()[0]
    return count


def chain(
    connection: Connection, owner: str, response_id: str, now: float, *, max_responses: int, max_bytes: int
) -> list[ChainLink]:
    """A response and all its predecessors, oldest first.

    Args:
        max_responses: how many there may be.
        max_bytes: how large their items may be together.

    Raises:
        NotFound: one of them is missing; `record_id` says which.
        ChainTooLong: there are more, or they are larger.
    """
    values = {"owner": owner, "id": response_id, "now": now, "max_responses": max_responses, "max_bytes": max_bytes}
    links: list[ChainLink] = []
    missing: str | None = response_id
    for depth, total_bytes, previous_id, *link in connection.execute(_CHAIN, values):
        if not links:
            missing = previous_id
            if depth > max_responses:
                raise ChainTooLong("responses", max_responses)
            if total_bytes > max_bytes:
                raise ChainTooLong("bytes", max_bytes)
        links.append(ChainLink(*link))
    if missing is not None:
        raise NotFound("response", missing)
    return links


def _row(connection: Connection, query: str, owner: str, response_id: str, now: float) -> tuple[Any, ...]:
    """What a query says of one response. Raises NotFound if the owner has none with this id (any more)."""
    row: tuple[Any, ...] | None = connection.execute(query, {"owner": owner, "id": response_id, "now": now}).fetchone()
    if row is None:
        raise NotFound("response", response_id)
    return row


def _end(connection: Connection, owner: str, response_id: str, now: float, status: ResponseStatus) -> int | None:
    """Change the status of an open response. Returns its key, or None if there is no such open one."""
    values = {"owner": owner, "id": response_id, "now": now, "status": status}
    query = f"SELECT key FROM responses WHERE {_EXISTS} AND {_OPEN}"
    row = connection.execute(query, values).fetchone()
    if row is None:
        return None
    key: int = row[0]
    connection.execute("UPDATE responses SET status = ? WHERE key = ?", (status, key))
    return key


def _cancel(connection: Connection, owner: str, response_id: str, now: float) -> bool:
    """End an open response as cancelled. Returns whether there is such an open one."""
    key = _end(connection, owner, response_id, now, "cancelled")
    if key is None:
        return False
    connection.execute("UPDATE response_contents SET work = x'' WHERE key = ?", (key,))
    _count(connection, key)
    return True


def _count(connection: Connection, key: int) -> None:
    """Bring a response's number of bytes up to its contents."""
    connection.execute(
        "UPDATE responses SET num_bytes = ? + (SELECT length(head) + length(input_items) + length(output_items) "
        "+ length(tail) + length(work) + length(tokens) FROM response_contents c WHERE c.key = responses.key) "
        "WHERE key = ?",
        (RECORD_BYTES, key),
    )
