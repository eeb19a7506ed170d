"""The tables of the store, as the steps that lead from one version to the next.

A step is never changed once it is in a release: every later release makes an empty store by the same steps. Triggers
keep `owners` equal to the sums over records and over what was deleted and is not swept yet, so no statement can add or
delete without them.
"""

APPLICATION_ID = 0x42617453  # "BatS": tells our file from another program's

_COUNT = """
CREATE TRIGGER {table}_added AFTER INSERT ON {table} BEGIN
    INSERT INTO owners VALUES (NEW.owner, NEW.num_bytes)
    ON CONFLICT (owner) DO UPDATE SET used_bytes = used_bytes + excluded.used_bytes;
END;
CREATE TRIGGER {table}_changed AFTER UPDATE OF num_bytes ON {table} BEGIN
    UPDATE owners SET used_bytes = used_bytes + NEW.num_bytes - OLD.num_bytes WHERE owner = NEW.owner;
END;
CREATE TRIGGER {table}_removed AFTER DELETE ON {table} BEGIN
    UPDATE owners SET used_bytes = used_bytes - OLD.num_bytes WHERE owner = OLD.owner;
    DELETE FROM owners WHERE owner = OLD.owner AND used_bytes = 0;
    {and_then}
END;
"""

# Contents stand apart from what is scanned and updated often. Keys of files and batches are never given again, because
# contents of deleted ones stay until a sweep has removed them.
_FIRST = f"""
CREATE TABLE owners (owner TEXT PRIMARY KEY, used_bytes INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE responses (
    key INTEGER PRIMARY KEY, owner TEXT NOT NULL, response_id TEXT NOT NULL, status TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL, is_background INTEGER NOT NULL, previous_id TEXT,
    num_bytes INTEGER NOT NULL, UNIQUE (owner, response_id));
CREATE TABLE response_contents (
    key INTEGER PRIMARY KEY, head BLOB NOT NULL, input_items BLOB NOT NULL, output_items BLOB NOT NULL,
    tail BLOB NOT NULL, work BLOB NOT NULL, tokens BLOB NOT NULL);
CREATE INDEX responses_expire ON responses (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX responses_open ON responses (created_at, owner, response_id)
    WHERE is_background AND status IN ('queued', 'in_progress');
{_COUNT.format(table="responses", and_then="DELETE FROM response_contents WHERE key = OLD.key;")}

CREATE TABLE files (
    key INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, file_id TEXT NOT NULL, filename TEXT NOT NULL,
    purpose TEXT NOT NULL, content_bytes INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL,
    is_complete INTEGER NOT NULL, keep_until REAL, num_bytes INTEGER NOT NULL, UNIQUE (owner, file_id));
CREATE TABLE file_chunks (
    key INTEGER PRIMARY KEY, file_key INTEGER NOT NULL, start INTEGER NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX file_chunks_in_order ON file_chunks (file_key, start);
CREATE TABLE discarded_files (file_key INTEGER PRIMARY KEY);
CREATE INDEX files_listed ON files (owner, created_at, file_id) WHERE is_complete;
CREATE INDEX files_expire ON files (expires_at) WHERE expires_at IS NOT NULL;
{_COUNT.format(table="files", and_then="INSERT INTO discarded_files VALUES (OLD.key);")}

CREATE TABLE batches (
    key INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, batch_id TEXT NOT NULL, endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL, completion_window TEXT NOT NULL, created_at REAL NOT NULL, due_at REAL NOT NULL,
    expires_at REAL, output_expires_after_s REAL, metadata BLOB NOT NULL, errors BLOB NOT NULL, status TEXT NOT NULL,
    ends_as TEXT, in_progress_at REAL, finalizing_at REAL, completed_at REAL, failed_at REAL, expired_at REAL,
    cancelling_at REAL, cancelled_at REAL, total INTEGER NOT NULL, completed INTEGER NOT NULL,
    failed INTEGER NOT NULL, output_file_id TEXT, error_file_id TEXT, next_offset INTEGER NOT NULL,
    next_line INTEGER NOT NULL, takes_results INTEGER NOT NULL DEFAULT 1, num_bytes INTEGER NOT NULL,
    UNIQUE (owner, batch_id));
CREATE TABLE batch_results (
    key INTEGER PRIMARY KEY, batch_key INTEGER NOT NULL, line INTEGER NOT NULL, custom_id TEXT NOT NULL,
    is_error INTEGER NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX batch_results_in_order ON batch_results (batch_key, line);
CREATE TABLE discarded_batches (batch_key INTEGER PRIMARY KEY);
CREATE INDEX batches_listed ON batches (owner, created_at, batch_id);
CREATE INDEX batches_expire ON batches (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX batches_open ON batches (created_at, owner, batch_id)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
{
    _COUNT.format(
        table="batches",
        and_then='''INSERT INTO discarded_batches VALUES (OLD.key);
    DELETE FROM files
    WHERE owner = OLD.owner AND file_id IN (OLD.output_file_id, OLD.error_file_id) AND NOT is_complete;''',
    )
}
"""

# Deleted contents count for their owner until a sweep has removed them; what an earlier release has deleted counts for
# the owner "", as whose it was is not known any more. A list of the files of one purpose does not look at the others.
_SECOND = f"""
ALTER TABLE discarded_files ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE discarded_files ADD COLUMN num_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE discarded_batches ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE discarded_batches ADD COLUMN num_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE discarded_files SET num_bytes = 256
    + (SELECT coalesce(sum(length(data)), 0) FROM file_chunks WHERE file_key = discarded_files.file_key);
UPDATE discarded_batches SET num_bytes = 256
    + (SELECT coalesce(sum(length(body) + length(CAST(custom_id AS BLOB))), 0)
        FROM batch_results WHERE batch_key = discarded_batches.batch_key);
INSERT INTO owners SELECT owner, sum(num_bytes) FROM
    (SELECT owner, num_bytes FROM discarded_files UNION ALL SELECT owner, num_bytes FROM discarded_batches)
    WHERE true GROUP BY owner ON CONFLICT (owner) DO UPDATE SET used_bytes = used_bytes + excluded.used_bytes;
{_COUNT.format(table="discarded_files", and_then="")}
{_COUNT.format(table="discarded_batches", and_then="")}
CREATE INDEX discarded_files_of_owner ON discarded_files (owner);
CREATE INDEX discarded_batches_of_owner ON discarded_batches (owner);

DROP TRIGGER files_added; DROP TRIGGER files_changed; DROP TRIGGER files_removed;
{_COUNT.format(table="files", and_then="INSERT INTO discarded_files VALUES (OLD.key, OLD.owner, OLD.num_bytes);")}
DROP TRIGGER batches_added; DROP TRIGGER batches_changed; DROP TRIGGER batches_removed;
{
    _COUNT.format(
        table="batches",
        and_then='''INSERT INTO discarded_batches
        VALUES (OLD.key, OLD.owner, OLD.num_bytes - length(OLD.metadata) - length(OLD.errors));
    DELETE FROM files
    WHERE owner = OLD.owner AND file_id IN (OLD.output_file_id, OLD.error_file_id) AND NOT is_complete;''',
    )
}

CREATE INDEX files_of_purpose ON files (owner, purpose, created_at, file_id) WHERE is_complete;
"""

# Owners are ids of keys, and were their names before: `owners.take_over` knows by `named_owners` which still are. The
# clock has what the machine's clocks showed when the store was last looked at, and by how much the wall's is held back:
# one row, or none.
_THIRD = """
CREATE TABLE revoked_owners (owner TEXT PRIMARY KEY, revoked_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE named_owners (owner TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO named_owners SELECT owner FROM owners WHERE owner <> '';

CREATE TABLE clock (
    key INTEGER PRIMARY KEY CHECK (key = 1), wall_s REAL NOT NULL, uptime_s REAL NOT NULL, boot BLOB NOT NULL,
    held_s REAL NOT NULL, hold_left_s REAL NOT NULL, latest_s REAL NOT NULL);
"""

STEPS = (_FIRST, _SECOND, _THIRD)  # STEPS[n] leads from version n to version n + 1
