"""Results: each exactly once, in the quota, and in files in the order of lines, wherever the writing is cut."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from scheduler_svc.store import batch_results, batches, check, files, sweep
from scheduler_svc.store.database import connect
from scheduler_svc.store.errors import Conflict, NotFound, QuotaExceeded
from scheduler_svc.store.quotas import used_bytes
from scheduler_svc.store.records import RECORD_BYTES, BatchResult, Progress
from tests.store.rows import content, finalize, result, start_batch


def add(store, *results, **facts):
    return batch_results.add_results(store, "ann", "b", 3.0, results, **facts)


def counts(store):
    found = batches.get(store, "ann", "b", 3.0)
    return found.completed, found.failed


def test_a_line_s_first_result_stays_and_counts_once(store):
    start_batch(store, "b", 5)
    assert add(store, result(3), result(1, is_error=True), result(3, is_error=True)) == 2
    assert counts(store) == (1, 1)
    used = used_bytes(store, "ann")
    assert used == RECORD_BYTES + 2 * (len(b'{"line": 3}') + len("custom-3"))
    assert add(store, result(3, is_error=True, body=b"longer than the first"), result(1)) == 0
    assert (counts(store), used_bytes(store, "ann")) == ((1, 1), used)
    assert add(store, result(1), result(2)) == 1
    assert batch_results.lines_done(store, "ann", "b", 3.0, first=0, last=5) == [1, 2, 3]
    assert batch_results.lines_done(store, "ann", "b", 3.0, first=2, last=3) == [2]


def test_progress_is_kept_with_the_results(store):
    start_batch(store, "b", 5)
    add(store, result(0), progress=Progress(120, 2))
    add(store, result(1), progress=Progress(60, 1))
    add(store, result(2))
    found = batches.get(store, "ann", "b", 3.0)
    assert (found.next_offset, found.next_line, found.completed) == (120, 2, 3)


def test_a_group_that_passes_the_quota_adds_none_of_it(store):
    start_batch(store, "b", 5)
    size = len(b'{"line": 0}') + len("custom-0")
    limit = RECORD_BYTES + 2 * size
    add(store, result(0), limit_bytes=limit)
    with pytest.raises(QuotaExceeded) as caught:
        add(store, result(1), result(2), progress=Progress(9, 9), limit_bytes=limit)
    assert caught.value.used == RECORD_BYTES + size
    assert (counts(store), batches.get(store, "ann", "b", 3.0).next_line) == ((1, 0), 0)
    assert add(store, result(0), result(1), limit_bytes=limit) == 1, "the one that it has is not counted again"


@pytest.mark.parametrize("bad", [result(5), result(-1), BatchResult(0, "x", False, b"two\nlines")])
def test_what_would_spoil_the_files_is_refused(store, bad):
    start_batch(store, "b", 5)
    with pytest.raises(AssertionError):
        add(store, result(1), bad)
    assert counts(store) == (0, 0)


def test_files_have_the_lines_in_order_and_only_those_that_are_needed(store):
    start_batch(store, "b", 4, output_expires_after_s=50.0)
    add(store, result(2), result(0))
    add(store, result(1))
    batches.begin_finalizing(store, "ann", "b", 3.0, ends_as="completed")
    finalize(store, "b", now=4.0)
    found = batches.get(store, "ann", "b", 5.0)
    assert (found.output_file_id, found.error_file_id) == ("b-out", None)
    output = files.get(store, "ann", "b-out", 5.0)
    facts = (output.filename, output.purpose, output.created_at, output.expires_at)
    assert facts == ("b_output.jsonl", "batch_output", 4.0, 54.0)
    assert content(store, "b-out") == b'{"line": 0}\n{"line": 1}\n{"line": 2}\n'
    assert used_bytes(store, "ann") == 2 * RECORD_BYTES + output.num_bytes


def test_no_file_is_seen_or_deleted_before_the_batch_has_ended(store):
    start_batch(store, "b", 4)
    add(store, result(0), result(1), result(2, is_error=True))
    batches.begin_finalizing(store, "ann", "b", 3.0, ends_as="completed")
    is_more = True
    while is_more:
        assert files.list_files(store, "ann", 3.0) == []
        for function in (files.get, files.delete, files.finish):
            with pytest.raises(NotFound):
                function(store, "ann", "out", 3.0)
        assert batches.get(store, "ann", "b", 3.0).output_file_id is None
        ids = {"output_file_id": "out", "error_file_id": "err", "max_rows": 1}
        is_more = batch_results.finalize(store, "ann", "b", 3.0, **ids)
    assert {one.file_id for one in files.list_files(store, "ann", 3.0)} == {"out", "err"}


def test_a_cancelled_batch_keeps_what_it_has_until_its_files_are_begun(store):
    start_batch(store, "b", 4)
    add(store, result(0))
    batches.cancel(store, "ann", "b", 3.0)
    assert add(store, result(1)) == 1, "it was under way"
    assert batch_results.finalize(store, "ann", "b", 3.0, output_file_id="out", error_file_id="err", max_rows=1)
    for line in (0, 2):
        with pytest.raises(Conflict, match="takes no results"):
            add(store, result(line))
    finalize(store, "b")
    found = batches.get(store, "ann", "b", 3.0)
    assert (found.status, found.completed, found.output_file_id) == ("cancelled", 2, "out")
    assert content(store, "out") == b'{"line": 0}\n{"line": 1}\n'


def test_one_call_takes_a_bounded_amount(store):
    start_batch(store, "b", 10)
    add(store, *(result(line, body=b"x" * 1000) for line in range(10)))
    batches.begin_finalizing(store, "ann", "b", 3.0, ends_as="completed")
    assert finalize(store, "b", max_bytes=3000) == 4
    assert content(store, "b-out") == (b"x" * 1000 + b"\n") * 10


def test_a_result_may_be_larger_than_a_chunk(store):
    start_batch(store, "b", 2)
    body = b"x" * (files.MAX_CHUNK_BYTES * 2 + 5)
    add(store, result(0, body=body), result(1))
    batches.begin_finalizing(store, "ann", "b", 3.0, ends_as="completed")
    finalize(store, "b")
    part = files.read(store, "ann", "b-out", 3.0, offset=len(body) - 2, limit=100)
    assert part == b'xx\n{"line": 1}\n'


def test_finalizing_that_is_cut_anywhere_goes_on_and_doubles_nothing(tmp_path):
    """Cut before each of its statements in turn, in a copy of the same store, and then called until it is done."""
    with closing(connect(tmp_path / "origin")) as store:
        start_batch(store, "b", 6)
        add(store, *(result(line, is_error=line % 2 == 1) for line in (4, 0, 3, 1)))
        batches.begin_finalizing(store, "ann", "b", 3.0, ends_as="expired")
    cuts = 1
    while True:
        shutil.copytree(tmp_path / "origin", tmp_path / f"cut-{cuts}")
        with closing(connect(tmp_path / f"cut-{cuts}")) as store:
            left = [cuts]
            store.set_authorizer(lambda *_, left=left: permit(left))
            try:
                calls = finalize(store, "b", max_rows=2)
            except sqlite3.DatabaseError:
                calls = 0
            store.set_authorizer(None)
            assert check.check(store) == []
            finalize(store, "b", max_rows=2)
            assert content(store, "b-out") == b'{"line": 0}\n{"line": 4}\n'
            assert content(store, "b-err") == b'{"line": 1}\n{"line": 3}\n'
            assert used_bytes(store, "ann") == 3 * RECORD_BYTES + 4 * len(b'{"line": 0}\n')
            assert check.check(store) == []
        if calls:
            break
        cuts += 7
    assert cuts > 50
    assert calls == 2


def permit(left):
    """SQLite asks about each thing that a statement does: refuse one of them, once."""
    left[0] -= 1
    return sqlite3.SQLITE_DENY if left[0] == 0 else sqlite3.SQLITE_OK


def test_a_batch_that_expires_while_it_is_finalized_takes_its_unfinished_files_along(store):
    start_batch(store, "b", 4)
    add(store, result(0), result(1))
    batches.begin_finalizing(store, "ann", "b", 3.0, ends_as="completed")
    batch_results.finalize(store, "ann", "b", 3.0, output_file_id="out", error_file_id="err", max_rows=1)
    swept = sweep.sweep(store, 101.0)
    assert (swept.batches, swept.files, swept.is_more) == (1, 0, False)
    assert used_bytes(store, "ann") == 0
    for table in ("files", "file_chunks", "batch_results", "discarded_files", "discarded_batches"):
        assert store.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_files_of_a_batch_outlive_it(store):
    start_batch(store, "b", 1)
    add(store, result(0))
    batches.begin_finalizing(store, "ann", "b", 3.0, ends_as="completed")
    finalize(store, "b")
    assert sweep.sweep(store, 101.0).batches == 1
    assert content(store, "b-out", now=102.0) == b'{"line": 0}\n'
