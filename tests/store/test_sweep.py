"""The sweep deletes what has expired and nothing else, a bounded amount at a time, and gives the space back."""

import itertools

import pytest

from scheduler_svc.store import batch_results, files, responses, sweep
from scheduler_svc.store.database import FILE_NAME
from scheduler_svc.store.errors import QuotaExceeded
from scheduler_svc.store.quotas import check_quota, used_bytes
from scheduler_svc.store.records import RECORD_BYTES, Swept
from tests.store import rows


def test_it_deletes_what_has_expired_and_nothing_else(store):
    for name, expires_at in (("early", 5.0), ("late", 9.0), ("for ever", None)):
        responses.add(store, rows.response(name, expires_at=expires_at, head=bytes(10), input_items=b"", work=b""))
        rows.add_file(store, name, b"12345", expires_at=expires_at)
        rows.start_batch(store, name, 1, expires_at=expires_at)
        batch_results.add_results(store, "ann", name, 3.0, [rows.result(0)])
    assert sweep.sweep(store, 4.9) == Swept(0, 0, 0, 0, is_more=False)
    swept = sweep.sweep(store, 5.0)
    one = rows.result(0)
    assert swept == Swept(1, 1, 1, RECORD_BYTES + 10 + 5 + len(one.body) + len(one.custom_id), is_more=False)
    assert responses.get_status(store, "ann", "late", 6.0) == "queued"
    assert sweep.sweep(store, 1e9) == swept
    assert responses.get_status(store, "ann", "for ever", 1e9) == "queued"
    assert rows.content(store, "for ever", now=1e9) == b"12345"


@pytest.mark.parametrize(("limits", "calls"), [({"max_rows": 3}, 4), ({"max_bytes": 1000}, 6)])
def test_one_call_is_bounded_and_the_quota_is_exact_after_each(store, limits, calls):
    for number in range(11):
        responses.add(store, rows.response(f"r{number}", head=bytes(400), input_items=b"", work=b""))
    done = 0
    for call in range(calls):
        swept = sweep.sweep(store, 200.0, **limits)
        assert swept.is_more == (call < calls - 1)
        done += swept.responses
        assert used_bytes(store, "ann") == (11 - done) * (RECORD_BYTES + 400)
    assert done == 11


def test_a_large_content_goes_piece_by_piece_after_its_file_is_gone(store):
    rows.add_file(store, "f", *[bytes(1000)] * 10)
    files.delete(store, "ann", "f", 2.0)
    sizes, left = [], [used_bytes(store, "ann")]
    while (swept := sweep.sweep(store, 2.0, max_bytes=4000)).is_more:
        sizes.append(swept.num_bytes)
        left.append(used_bytes(store, "ann"))
    assert [*sizes, swept.num_bytes] == [4000, 4000, 2000]
    assert left == [RECORD_BYTES + num_bytes for num_bytes in (10_000, 6000, 2000)], "what is on the disk counts"
    assert used_bytes(store, "ann") == 0


def test_who_deletes_has_no_more_room_until_it_is_swept_and_then_takes_the_same_pages(store, tmp_path):
    """Uploads and deletions in a row: the disk holds what the quota allows, however fast they come."""
    limit = 5_000_000
    sizes, refusals = [], []
    for number in range(20):
        try:
            files.begin(store, rows.file(f"f{number}"), limit_bytes=limit)
            for _ in range(4):
                files.append(store, "ann", f"f{number}", 1.0, bytes(1 << 20), limit_bytes=limit)
        except QuotaExceeded as error:
            refusals.append(error)
        files.delete(store, "ann", f"f{number}", 1.0)
        if number % 3 == 2:
            while used_bytes(store, "ann"):
                sweep.sweep(store, 1.0)
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        sizes.append((tmp_path / "store" / FILE_NAME).stat().st_size)
    assert len(refusals) >= 10
    assert all(error.is_passing for error in refusals)
    assert max(sizes) < 1.1 * limit + 200_000
    with pytest.raises(QuotaExceeded) as caught:
        check_quota(store, "bob", 2, 1)
    assert not caught.value.is_passing


def test_a_call_that_shrinks_is_bounded_too(store):
    rows.add_file(store, "f", *[bytes(1 << 20)] * 3)
    files.delete(store, "ann", "f", 2.0)
    frees = []
    while sweep.sweep(store, 2.0, spare_pages=0).is_more:
        frees.append(store.execute("PRAGMA freelist_count").fetchone()[0])
    assert len(frees) >= 2
    assert all(before - after <= sweep.VACUUM_PAGES for before, after in itertools.pairwise(frees))


def test_empty_contents_count_as_rows(store):
    for number in range(10):
        rows.add_file(store, f"f{number}")
        files.delete(store, "ann", f"f{number}", 2.0)
    calls = [sweep.sweep(store, 2.0, max_rows=4).is_more for _ in range(3)]
    assert calls == [True, True, False]
    assert store.execute("SELECT count(*) FROM discarded_files").fetchone() == (0,)


def test_the_space_is_given_back_but_for_some(store, tmp_path):
    path = tmp_path / "store" / FILE_NAME
    for number in range(50):
        responses.add(store, rows.response(f"r{number}", head=bytes(100_000)))
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    full = path.stat().st_size
    while sweep.sweep(store, 200.0, max_bytes=1 << 20, spare_pages=100).is_more:
        pass
    assert store.execute("PRAGMA freelist_count").fetchone() == (100,)
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert path.stat().st_size < full / 5
