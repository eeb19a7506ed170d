"""How much an owner has in the store. Triggers count it, in the transaction that adds or deletes."""

from sqlite3 import Connection

from scheduler_svc.store.errors import QuotaExceeded


def used_bytes(connection: Connection, owner: str) -> int:
    """Bytes of all that an owner has: responses, files (unfinished ones, too) and results of batches.

    Records that have expired count until a sweep has deleted them.
    """
    row = connection.execute("SELECT used_bytes FROM owners WHERE owner = ?", (owner,)).fetchone()
    return row[0] if row else 0


def check_quota(connection: Connection, owner: str, num_bytes: int, limit_bytes: int) -> None:
    """Inside of the transaction that will add `num_bytes`.

    Args:
        limit_bytes: for all that the owner has; 0: no limit.

    Raises:
        QuotaExceeded: it would be more.
    """
    if limit_bytes and (used := used_bytes(connection, owner)) + num_bytes > limit_bytes:
        raise QuotaExceeded("stored bytes", used, limit_bytes)
