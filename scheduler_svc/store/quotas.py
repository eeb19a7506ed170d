"""How much an owner has in the store. Triggers count it, in the transaction that adds or deletes."""

from sqlite3 import Connection

from scheduler_svc.store.errors import QuotaExceeded


def used_bytes(connection: Connection, owner: str) -> int:
    """Bytes of all that an owner has: responses, files (unfinished ones, too) and results of batches.

    Records that have expired count until a sweep has deleted them, and so do contents of files and batches that were
    deleted: until then they take room that nothing else can have.
    """
    row = connection.execute("SELECT used_bytes FROM owners WHERE owner = ?", (owner,)).fetchone()
    return row[0] if row else 0


def fullest(connection: Connection, limit: int) -> tuple[dict[str, int], int]:
    """Return the bytes of the owners that have most, and those of all others together."""
    query = "SELECT owner, used_bytes FROM owners ORDER BY used_bytes DESC, owner LIMIT ?"
    used = dict(connection.execute(query, (limit,)).fetchall())
    total = connection.execute("SELECT coalesce(sum(used_bytes), 0) FROM owners").fetchone()[0]
    return used, total - sum(used.values())


def check_quota(connection: Connection, owner: str, num_bytes: int, limit_bytes: int) -> None:
    """Inside of the transaction that will add `num_bytes`.

    Args:
        limit_bytes: for all that the owner has; 0: no limit.

    Raises:
        QuotaExceeded: it would be more.
    """
    if limit_bytes and (used := used_bytes(connection, owner)) + num_bytes > limit_bytes:
        raise QuotaExceeded("stored bytes", used, limit_bytes, is_passing=is_leaving(connection, owner))


def is_leaving(connection: Connection, owner: str) -> bool:
    """Whether something of what an owner has was deleted, and waits for a sweep."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM discarded_files WHERE owner = :owner) "
        "OR EXISTS (SELECT 1 FROM discarded_batches WHERE owner = :owner)"
    )
    return bool(connection.execute(query, {"owner": owner}).fetchone()[0])
