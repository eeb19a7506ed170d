"""Records for tests: whole ones, of which a test says only what matters to it."""

from scheduler_svc.store import batch_results, batches, files, responses
from scheduler_svc.store.records import BatchResult, StoredBatch, StoredFile, StoredResponse


def response(response_id, owner="ann", **facts):
    """A queued response in the background, kept for 100 s from second 1."""
    facts = {
        "status": "queued",
        "created_at": 1.0,
        "expires_at": 101.0,
        "is_background": True,
        "previous_id": None,
        "head": b'{"model": "m"}',
        "input_items": b"[1]",
        "work": b"work",
        **facts,
    }
    return StoredResponse(owner, response_id, **facts)


def file(file_id, owner="ann", **facts):
    """An empty file, kept for 100 s from second 1."""
    facts = {
        "filename": "lines.jsonl",
        "purpose": "batch",
        "num_bytes": 0,
        "created_at": 1.0,
        "expires_at": 101.0,
    } | facts
    return StoredFile(owner, file_id, **facts)


def batch(batch_id, owner="ann", **facts):
    """A batch that is to be validated, kept for 100 s from second 1."""
    facts = {
        "endpoint": "/v1/chat/completions",
        "input_file_id": "file-in",
        "completion_window": "24h",
        "created_at": 1.0,
        "due_at": 51.0,
        "expires_at": 101.0,
        **facts,
    }
    return StoredBatch(owner=owner, batch_id=batch_id, **facts)


def result(line, *, is_error=False, body=b""):
    """The result of a line."""
    return BatchResult(line, f"custom-{line}", is_error, body or b'{"line": %d}' % line)


def add_file(store, file_id, *pieces, owner="ann", now=1.0, **facts):
    """Keep a whole file whose chunks are `pieces`."""
    files.begin(store, file(file_id, owner, created_at=now, **facts))
    for piece in pieces:
        files.append(store, owner, file_id, now, piece)
    return files.finish(store, owner, file_id, now)


def start_batch(store, batch_id, total, owner="ann", **facts):
    """Keep a batch that is in progress since second 2."""
    batches.add(store, batch(batch_id, owner, **facts))
    batches.start(store, owner, batch_id, 2.0, total=total)


def finalize(store, batch_id, owner="ann", now=3.0, **limits):
    """Finalize a batch to its end. Returns how many calls that took."""
    calls = 1
    while batch_results.finalize(
        store, owner, batch_id, now, output_file_id=f"{batch_id}-out", error_file_id=f"{batch_id}-err", **limits
    ):
        calls += 1
    return calls


def content(store, file_id, owner="ann", now=3.0):
    """All of a file."""
    return files.read(store, owner, file_id, now, offset=0, limit=1 << 20)


def get_response(connection, owner, response_id, now):
    """A response with all that it has. Raises NotFound as the store does."""
    sizes = responses.measure(connection, owner, response_id, now)
    query = """
        SELECT expires_at, created_at, previous_id, head, input_items, output_items, tail, work, tokens
        FROM responses JOIN response_contents USING (key) WHERE owner = ? AND response_id = ?"""
    (row,) = connection.execute(query, (owner, response_id))
    expires_at, created_at, *rest = row
    found = StoredResponse(owner, response_id, sizes.status, created_at, expires_at, sizes.is_background, *rest)
    for part in ("head", "input_items", "output_items", "tail", "tokens"):
        assert getattr(sizes, part) == len(getattr(found, part)), part
    return found
