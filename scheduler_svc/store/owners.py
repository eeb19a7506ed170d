"""Owners of records whose keys are revoked, or were names once: synchronous SQL, as in `responses.py`.

A revocation ends what an owner has open at once. Its records stay for `KEPT_S`, in which the key may come back, and are
deleted by sweeps after that.
"""

from collections.abc import Collection, Mapping
from sqlite3 import Connection

from scheduler_svc.store import batches, responses
from scheduler_svc.store.database import writing

KEPT_S = 86_400.0

_TABLES = ("responses", "files", "batches", "discarded_files", "discarded_batches")


def revoke(connection: Connection, owner: str, now: float, *, errors: bytes) -> int:
    """End what an owner has open, as its key is gone: responses are cancelled, and batches fail. Its records are due in
    `KEPT_S`. Several processes may call this; the first one sets the time.

    Args:
        errors: of the batches, as JSON.

    Returns:
        How many responses and batches were ended.
    """
    with writing(connection):
        connection.execute("INSERT INTO revoked_owners VALUES (?, ?) ON CONFLICT (owner) DO NOTHING", (owner, now))
        return responses.cancel_all(connection, owner, now) + batches.fail_all(connection, owner, now, errors)


def due(connection: Connection, now: float, known: Collection[str]) -> list[str]:
    """Inside of a transaction, find the owners whose records are to be deleted now. Those whose keys have come back are
    forgotten, and so are those that have nothing any more.

    Args:
        known: owners that have a key.
    """
    revoked = connection.execute("SELECT owner, revoked_at FROM revoked_owners").fetchall()
    connection.executemany(
        "DELETE FROM revoked_owners WHERE owner = ?", [(owner,) for owner, _ in revoked if owner in known]
    )
    late = [(owner,) for owner, revoked_at in revoked if owner not in known and revoked_at + KEPT_S <= now]
    statement = "DELETE FROM revoked_owners WHERE owner = ? AND NOT EXISTS (SELECT 1 FROM owners WHERE owner = ?1)"
    connection.executemany(statement, late)
    return [owner for (owner,) in late]


def take_over(connection: Connection, ids: Mapping[str, str]) -> tuple[int, int]:
    """Give the records that an earlier release kept by the names of keys to the ids of these. That is done once: who
    gets a name later gets nothing by it.

    Args:
        ids: by name, of all keys that there are.

    Returns:
        How many owners were taken over, and how many names are no key's: their records stay until they expire.
    """
    with writing(connection):
        names = [name for (name,) in connection.execute("SELECT owner FROM named_owners")]
        known = [(ids[name], name) for name in names if name in ids]
        for table in _TABLES:
            connection.executemany(f"UPDATE {table} SET owner = ? WHERE owner = ?", known)
        statement = "INSERT INTO owners SELECT ?, used_bytes FROM owners WHERE owner = ? ON CONFLICT (owner) "
        statement += "DO UPDATE SET used_bytes = used_bytes + excluded.used_bytes"
        connection.executemany(statement, known)
        connection.executemany("DELETE FROM owners WHERE owner = ?", [(name,) for _, name in known])
        connection.execute("DELETE FROM named_owners")
    return len(known), len(names) - len(known)
