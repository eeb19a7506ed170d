"""Says whether a store is whole: SQLite's structure, and our counts against a recount.

    python -m scheduler_svc.store.check FOLDER

Reads the whole file (some seconds for each GB), and may run beside a service.
"""

import sys
from pathlib import Path
from sqlite3 import Connection

from scheduler_svc.store.database import FILE_NAME, connect
from scheduler_svc.store.errors import StoreError
from scheduler_svc.store.records import RECORD_BYTES

# Each query names the records whose count is wrong, or the rows that belong to no record.
_WRONG = {
    "response with a wrong size": f"""
        SELECT owner || '/' || response_id FROM responses LEFT JOIN response_contents USING (key)
        WHERE num_bytes IS NOT {RECORD_BYTES} + length(head) + length(input_items) + length(output_items)
            + length(tail) + length(work) + length(tokens)""",
    "contents without a response": "SELECT key FROM response_contents WHERE key NOT IN (SELECT key FROM responses)",
    "file with a wrong size": f"""
        SELECT owner || '/' || file_id FROM files f WHERE num_bytes <> {RECORD_BYTES} + content_bytes OR content_bytes
            <> (SELECT coalesce(sum(length(data)), 0) FROM file_chunks WHERE file_key = f.key)""",
    "chunk at a wrong place": """
        SELECT key FROM (SELECT key, start, lag(start + length(data), 1, 0) OVER
            (PARTITION BY file_key ORDER BY start) AS due FROM file_chunks
            WHERE file_key NOT IN (SELECT file_key FROM discarded_files)) WHERE start <> due""",
    "chunk without a file": """
        SELECT key FROM file_chunks WHERE file_key NOT IN (SELECT key FROM files)
            AND file_key NOT IN (SELECT file_key FROM discarded_files)""",
    "deleted file with a wrong size": f"""
        SELECT owner || '/' || file_key FROM discarded_files f WHERE num_bytes <> {RECORD_BYTES}
            + (SELECT coalesce(sum(length(data)), 0) FROM file_chunks WHERE file_key = f.file_key)""",
    "batch with a wrong size": f"""
        SELECT owner || '/' || batch_id FROM batches b WHERE num_bytes <> {RECORD_BYTES} + length(metadata)
            + length(errors) + (SELECT coalesce(sum(length(body) + length(CAST(custom_id AS BLOB))), 0)
                FROM batch_results WHERE batch_key = b.key)""",
    "deleted batch with a wrong size": f"""
        SELECT owner || '/' || batch_key FROM discarded_batches b WHERE num_bytes <> {RECORD_BYTES}
            + (SELECT coalesce(sum(length(body) + length(CAST(custom_id AS BLOB))), 0)
                FROM batch_results WHERE batch_key = b.batch_key)""",
    "batch with a wrong count": """
        SELECT owner || '/' || batch_id FROM batches b WHERE takes_results AND completed + failed
            <> (SELECT count(*) FROM batch_results WHERE batch_key = b.key)""",
    "result without a batch": """
        SELECT key FROM batch_results WHERE batch_key NOT IN (SELECT key FROM batches)
            AND batch_key NOT IN (SELECT batch_key FROM discarded_batches)""",
    "owner with a wrong sum": """
        WITH records AS (SELECT owner, num_bytes FROM responses UNION ALL SELECT owner, num_bytes FROM files
            UNION ALL SELECT owner, num_bytes FROM batches UNION ALL SELECT owner, num_bytes FROM discarded_files
            UNION ALL SELECT owner, num_bytes FROM discarded_batches),
        sums AS (SELECT owner, sum(num_bytes) AS used_bytes FROM records GROUP BY owner)
        SELECT DISTINCT owner FROM (SELECT * FROM sums EXCEPT SELECT * FROM owners
            UNION SELECT * FROM (SELECT * FROM owners EXCEPT SELECT * FROM sums))""",
}


def check(connection: Connection) -> list[str]:
    """What is wrong with a store: a line for each fault; empty if it is whole."""
    faults = [verdict for (verdict,) in connection.execute("PRAGMA integrity_check(20)") if verdict != "ok"]
    if faults:
        return faults  # what is counted in a broken file says nothing
    connection.execute("BEGIN")  # all counts are of one moment
    try:
        for fault, query in _WRONG.items():
            faults += [f"{fault}: {name}" for (name,) in connection.execute(f"{query} LIMIT 20")]
    finally:
        connection.execute("ROLLBACK")
    return faults


def main() -> None:
    """Print the faults of the store in the folder that the command names; exit code 1 if there are any."""
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / FILE_NAME).is_file():
        sys.exit("usage: python -m scheduler_svc.store.check FOLDER, in which there is a store")
    try:
        faults = check(connect(Path(sys.argv[1])))
    except StoreError as error:
        faults = [str(error)]
    print("\n".join(faults) or "the store is whole")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
