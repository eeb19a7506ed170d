"""Rules of files, one by one."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.store import database, files, sweep
from scheduler_svc.store.errors import Conflict, NotFound, QuotaExceeded
from scheduler_svc.store.quotas import used_bytes
from scheduler_svc.store.records import RECORD_BYTES
from tests.store.rows import add_file, content, file
from tests.support.effort import examples


def test_a_file_is_there_once_it_is_finished(store):
    files.begin(store, file("f"))
    assert files.append(store, "ann", "f", 2.0, b"abc") == 3
    assert files.append(store, "ann", "f", 2.0, b"") == 3
    for function in (files.get, files.list_files):
        with pytest.raises(NotFound):
            function(store, "ann", 2.0, after="f") if function is files.list_files else function(store, "ann", "f", 2.0)
    with pytest.raises(NotFound):
        files.read(store, "ann", "f", 2.0, offset=0, limit=10)
    assert files.list_files(store, "ann", 2.0) == []
    assert used_bytes(store, "ann") == RECORD_BYTES + 3
    assert files.finish(store, "ann", "f", 3.0) == file("f", num_bytes=3)
    assert files.get(store, "ann", "f", 3.0) == file("f", num_bytes=3)
    assert content(store, "f") == b"abc"
    with pytest.raises(NotFound):
        files.append(store, "ann", "f", 3.0, b"more")
    with pytest.raises(NotFound):
        files.finish(store, "ann", "f", 3.0)


def test_what_a_file_is_for_may_be_known_at_its_end_only(store):
    files.begin(store, file("f"))
    finished = files.finish(store, "ann", "f", 3.0, purpose="other", keep_until=50.0)
    assert (
        finished
        == files.get(store, "ann", "f", 3.0)
        == msgspec.structs.replace(file("f"), purpose="other", expires_at=50.0)
    )
    with pytest.raises(NotFound):
        files.get(store, "ann", "f", 50.0)


def test_other_owners_find_nothing(store):
    add_file(store, "f", b"abc")
    files.begin(store, file("g"))
    for call in (
        lambda: files.get(store, "bob", "f", 2.0),
        lambda: files.read(store, "bob", "f", 2.0, offset=0, limit=1),
        lambda: files.delete(store, "bob", "f", 2.0),
        lambda: files.append(store, "bob", "g", 2.0, b"x"),
        lambda: files.finish(store, "bob", "g", 2.0),
        lambda: files.list_files(store, "bob", 2.0, after="f"),
    ):
        with pytest.raises(NotFound):
            call()
    assert files.list_files(store, "bob", 2.0) == []


def test_an_id_is_taken_until_its_file_has_gone(store):
    add_file(store, "f", b"old")
    with pytest.raises(Conflict):
        files.begin(store, file("f"))
    files.delete(store, "ann", "f", 2.0)
    add_file(store, "f", b"new")
    assert content(store, "f") == b"new"
    add_file(store, "f", b"newer", now=101.0, expires_at=300.0)
    assert content(store, "f", now=102.0) == b"newer"


def test_an_unfinished_file_is_forgotten_an_hour_after_its_last_bytes(store):
    files.begin(store, file("f", expires_at=None))
    files.append(store, "ann", "f", 3000.0, b"abc")
    files.append(store, "ann", "f", 6599.0, b"def")
    with pytest.raises(NotFound):
        files.append(store, "ann", "f", 6599.0 + files.UNFINISHED_S, b"late")
    assert sweep.sweep(store, 6599.0 + files.UNFINISHED_S).files == 1
    assert used_bytes(store, "ann") == 0
    assert store.execute("SELECT count(*) FROM file_chunks").fetchone() == (0,)


def test_an_unfinished_file_can_be_deleted(store):
    files.begin(store, file("f"))
    files.append(store, "ann", "f", 2.0, b"abc")
    files.delete(store, "ann", "f", 2.0)
    assert used_bytes(store, "ann") == RECORD_BYTES + 3, "until it is swept"
    sweep.sweep(store, 2.0)
    assert used_bytes(store, "ann") == 0
    with pytest.raises(NotFound):
        files.append(store, "ann", "f", 2.0, b"more")


def test_the_quota_stops_an_upload_and_keeps_what_was_there(store):
    files.begin(store, file("f"), limit_bytes=RECORD_BYTES + 5)
    files.append(store, "ann", "f", 2.0, b"12345", limit_bytes=RECORD_BYTES + 5)
    with pytest.raises(QuotaExceeded) as caught:
        files.append(store, "ann", "f", 2.0, b"6", limit_bytes=RECORD_BYTES + 5)
    assert caught.value.used == RECORD_BYTES + 5
    with pytest.raises(QuotaExceeded):
        files.begin(store, file("g"), limit_bytes=RECORD_BYTES + 5)
    assert files.finish(store, "ann", "f", 2.0).num_bytes == 5


def test_a_chunk_is_of_bounded_size(store):
    files.begin(store, file("f"))
    with pytest.raises(AssertionError):
        files.append(store, "ann", "f", 2.0, bytes(files.MAX_CHUNK_BYTES + 1))
    assert files.append(store, "ann", "f", 2.0, bytes(files.MAX_CHUNK_BYTES)) == files.MAX_CHUNK_BYTES


def test_one_read_is_of_bounded_size(store):
    add_file(store, "f", *[bytes(files.MAX_CHUNK_BYTES)] * 5)
    assert len(files.read(store, "ann", "f", 2.0, offset=1, limit=1 << 40)) == files.MAX_READ_BYTES


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    connection = database.connect(tmp_path_factory.mktemp("store"))
    yield connection
    connection.close()


@settings(max_examples=examples(100))
@given(
    pieces=st.lists(st.binary(min_size=0, max_size=20), max_size=6),
    ranges=st.lists(st.tuples(st.integers(0, 130), st.integers(0, 130)), max_size=8),
)
def test_any_part_of_any_file_is_what_was_written(shared, pieces, ranges):
    add_file(shared, "f", *pieces)
    whole = b"".join(pieces)
    for offset, limit in ranges:
        part = files.read(shared, "ann", "f", 2.0, offset=offset, limit=limit)
        assert part == whole[offset : offset + limit]
    files.delete(shared, "ann", "f", 2.0)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_are_in_order_of_time_and_id(store, order):
    for name, created_at in (("b", 1.0), ("a", 1.0), ("c", 3.0), ("d", 2.0)):
        add_file(store, name, now=created_at, purpose="user_data" if name == "d" else "batch")
    add_file(store, "of another", owner="bob")
    add_file(store, "expired", expires_at=3.0)
    expected = ["a", "b", "d", "c"] if order == "asc" else ["c", "d", "b", "a"]
    found, page = [], None
    while page := files.list_files(store, "ann", 5.0, after=page[-1].file_id if page else None, limit=2, order=order):
        found += [one.file_id for one in page]
    assert found == expected
    batch = files.list_files(store, "ann", 5.0, order=order, purpose="batch")
    assert [one.file_id for one in batch] == [name for name in expected if name != "d"]
    with pytest.raises(NotFound, match="no file 'expired'"):
        files.list_files(store, "ann", 5.0, after="expired")


def test_a_key_is_never_given_again_while_a_deleted_file_s_chunks_are_there(store):
    add_file(store, "f", b"old" * 10)
    files.delete(store, "ann", "f", 2.0)
    add_file(store, "g", b"new")
    assert content(store, "g") == b"new"
    sweep.sweep(store, 2.0)
    assert content(store, "g") == b"new"
