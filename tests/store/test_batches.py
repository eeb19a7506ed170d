"""How batches go from state to state, and who finds them."""

import msgspec
import pytest

from scheduler_svc.store import batch_results, batches, files
from scheduler_svc.store.errors import Conflict, NotFound, QuotaExceeded, TooManyOpen
from scheduler_svc.store.quotas import used_bytes
from scheduler_svc.store.records import OPEN_BATCH, RECORD_BYTES, Progress
from tests.store.rows import add_file, batch, file, finalize, result, start_batch

# In which states what `DO` does is allowed.
MAY = {
    "start": {"validating"},
    "fail": {"validating"},
    "cancel": {"validating", "in_progress", "cancelling", "cancelled"},
    "begin_finalizing": {"validating", "in_progress"},
    "add_results": {"in_progress", "cancelling"},
    "finalize": {"finalizing", "cancelling", "completed", "cancelled", "expired", "failed"},
}


def begin_finalizing(store, ends_as="completed"):
    batches.begin_finalizing(store, "ann", "b", 3.0, ends_as=ends_as)


def fail(store):
    batches.fail(store, "ann", "b", 3.0, errors=b'["line 1"]')


def bring(store, status):
    """Bring batch `b` to a state."""
    if status in {"validating", "failed"}:
        batches.add(store, batch("b"))
    else:
        start_batch(store, "b", 2)
    if status == "failed":
        fail(store)
    elif status in {"cancelling", "cancelled"}:
        batches.cancel(store, "ann", "b", 3.0)
    elif status in {"finalizing", "completed", "expired"}:
        begin_finalizing(store, "expired" if status == "expired" else "completed")
    if status in {"cancelled", "completed", "expired"}:
        finalize(store, "b")


# What may be done, with a batch in some states only.
DO = {
    "start": lambda store: batches.start(store, "ann", "b", 4.0, total=2),
    "fail": fail,
    "cancel": lambda store: batches.cancel(store, "ann", "b", 4.0),
    "begin_finalizing": begin_finalizing,
    "add_results": lambda store: batch_results.add_results(store, "ann", "b", 4.0, [result(0)]),
    "finalize": lambda store: finalize(store, "b", now=4.0),
}


@pytest.mark.parametrize("what", DO)
@pytest.mark.parametrize("status", batches.ALLOWED)
def test_each_state_allows_what_it_allows(store, status, what):
    bring(store, status)
    before = batches.get(store, "ann", "b", 4.0)
    assert before.status == status
    if status in MAY[what]:
        DO[what](store)
    else:
        with pytest.raises(Conflict, match=r"batch 'b' is"):
            DO[what](store)
        assert batches.get(store, "ann", "b", 4.0) == before
    if not batches.ALLOWED[status]:
        assert batches.get(store, "ann", "b", 4.0) == before, "what has ended stays as it is"


def test_times_of_a_batch_s_life(store):
    batches.add(store, batch("b", metadata=b'{"k": "v"}'))
    assert batches.get(store, "ann", "b", 1.0) == batch("b", metadata=b'{"k": "v"}')
    batches.start(store, "ann", "b", 2.0, total=2)
    batches.begin_finalizing(store, "ann", "b", 3.0, ends_as="expired")
    finalize(store, "b", now=4.0)
    facts = {"in_progress_at": 2.0, "finalizing_at": 3.0, "expired_at": 4.0, "ends_as": "expired", "total": 2}
    expected = msgspec.structs.replace(batch("b", metadata=b'{"k": "v"}'), status="expired", **facts)
    assert batches.get(store, "ann", "b", 5.0) == expected


def test_a_batch_that_fails_has_its_errors_which_count(store):
    batches.add(store, batch("b", metadata=b"{}"))
    fail(store)
    found = batches.get(store, "ann", "b", 4.0)
    assert (found.status, found.failed_at, found.errors) == ("failed", 3.0, b'["line 1"]')
    assert used_bytes(store, "ann") == RECORD_BYTES + 2 + len(b'["line 1"]')


def test_cancelling_twice_changes_nothing(store):
    start_batch(store, "b", 2)
    first = batches.cancel(store, "ann", "b", 3.0)
    assert (first.status, first.cancelling_at) == ("cancelling", 3.0)
    assert batches.cancel(store, "ann", "b", 9.0) == first


def test_other_owners_find_nothing_and_expired_ones_are_absent(store):
    start_batch(store, "b", 2)
    for owner, now in (("bob", 2.0), ("ann", 101.0)):
        for call in (
            lambda o, n: batches.get(store, o, "b", n),
            lambda o, n: batches.cancel(store, o, "b", n),
            lambda o, n: batches.start(store, o, "b", n, total=1),
            lambda o, n: batches.set_progress(store, o, "b", n, Progress(1, 1)),
            lambda o, n: batches.begin_finalizing(store, o, "b", n, ends_as="failed"),
            lambda o, n: batches.list_batches(store, o, n, after="b"),
            lambda o, n: batch_results.add_results(store, o, "b", n, [result(0)]),
            lambda o, n: batch_results.lines_done(store, o, "b", n, first=0, last=2),
            lambda o, n: batch_results.finalize(store, o, "b", n, output_file_id="o", error_file_id="e"),
        ):
            with pytest.raises(NotFound, match="no batch 'b'"):
                call(owner, now)
        assert batches.list_batches(store, owner, now) == []
        assert batches.count_open(store, owner, now) == 0
    assert batches.open_batches(store, 101.0) == []
    assert batches.count_open(store, "ann", 2.0) == 1


def test_an_id_is_taken_until_its_batch_has_expired(store):
    start_batch(store, "b", 2)
    batch_results.add_results(store, "ann", "b", 3.0, [result(0)])
    with pytest.raises(Conflict):
        batches.add(store, batch("b"))
    start_batch(store, "b", 2, created_at=101.0, expires_at=None)
    assert batch_results.lines_done(store, "ann", "b", 102.0, first=0, last=2) == [], "results of the other one"


def test_the_quota_refuses_a_batch(store):
    with pytest.raises(QuotaExceeded):
        batches.add(store, batch("b", metadata=b"{}"), limit_bytes=RECORD_BYTES + 1)
    batches.add(store, batch("b", metadata=b"{}"), limit_bytes=RECORD_BYTES + 2)


def test_progress_never_goes_back(store):
    start_batch(store, "b", 10)
    batches.set_progress(store, "ann", "b", 3.0, Progress(500, 5))
    batches.set_progress(store, "ann", "b", 3.0, Progress(300, 3))
    found = batches.get(store, "ann", "b", 3.0)
    assert (found.next_offset, found.next_line) == (500, 5)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_are_in_order_of_time_and_id(store, order):
    for name, created_at in (("b", 1.0), ("a", 1.0), ("c", 3.0), ("d", 2.0)):
        batches.add(store, batch(name, created_at=created_at))
    batches.add(store, batch("of another", "bob"))
    found, page = [], None
    while page := batches.list_batches(
        store, "ann", 5.0, after=page[-1].batch_id if page else None, limit=3, order=order
    ):
        found += [one.batch_id for one in page]
    assert found == (["a", "b", "d", "c"] if order == "asc" else ["c", "d", "b", "a"])


def test_the_worker_finds_the_open_ones_of_all_owners_oldest_first(store):
    for status in batches.ALLOWED:
        bring(store, status)
        store.execute("UPDATE batches SET batch_id = status, owner = status WHERE batch_id = 'b'")
    store.execute("DELETE FROM owners")
    store.execute("INSERT INTO owners SELECT owner, sum(num_bytes) FROM batches GROUP BY owner")
    store.execute("UPDATE batches SET created_at = 100 - key")
    found, page = [], None
    while page := batches.open_batches(store, 50.0, after=page[-1] if page else None, limit=3):
        found += [one.batch_id for one in page]
    assert found == ["cancelling", "finalizing", "in_progress", "validating"]
    assert set(found) == set(OPEN_BATCH)


def test_a_batch_keeps_nothing_of_a_file_that_it_does_not_own(store):
    """A file that has the id which a batch proposes for its output is left alone."""
    add_file(store, "b-out", b"mine")
    start_batch(store, "b", 1)
    batch_results.add_results(store, "ann", "b", 3.0, [result(0)])
    begin_finalizing(store)
    with pytest.raises(Conflict, match="there is a file 'b-out' already"):
        finalize(store, "b")
    assert files.get(store, "ann", "b-out", 3.0).num_bytes == 4
    assert not batch_results.finalize(store, "ann", "b", 3.0, output_file_id="other", error_file_id="e")
    assert batches.get(store, "ann", "b", 3.0).output_file_id == "other"


def test_no_more_are_open_than_allowed(store):
    """Counted where they are added, so that two processes cannot add one too many."""
    batches.add(store, batch("old", expires_at=1.5), max_open=2)
    batches.add(store, batch("b1", created_at=2.0), max_open=2)
    batches.add(store, batch("b2", created_at=2.0), max_open=2)
    batches.add(store, batch("b3", "bob", created_at=2.0), max_open=2)
    with pytest.raises(TooManyOpen, match="2 batches have not ended, the limit is 2"):
        batches.add(store, batch("b3", created_at=2.0), max_open=2)
    with pytest.raises(NotFound):
        batches.get(store, "ann", "b3", 2.0)
    batches.fail(store, "ann", "b1", 2.0, errors=b"")
    batches.add(store, batch("b3", created_at=2.0), max_open=2)


def test_an_input_is_kept_until_its_batch_is_due_and_a_little_longer(store):
    until = 51.0 + batches.INPUT_KEPT_S
    lives = {"short": 5.0, "long": until + 1, "endless": None}
    for name, expires_at in lives.items():
        add_file(store, name, expires_at=expires_at)
    add_file(store, "short", owner="bob", expires_at=5.0)
    for name in lives:
        batches.add(store, batch(name, input_file_id=name))
    kept = {name: files.get(store, "ann", name, 2.0).expires_at for name in lives}
    assert kept == lives | {"short": until}
    assert files.get(store, "bob", "short", 2.0).expires_at == 5.0
    files.delete(store, "ann", "short", 3.0)


def test_an_input_that_has_expired_stays_so(store):
    add_file(store, "in", expires_at=2.0)
    batches.add(store, batch("b", input_file_id="in", created_at=3.0))
    with pytest.raises(NotFound):
        files.get(store, "ann", "in", 3.0)


def test_an_upload_is_not_kept_for_a_batch(store):
    files.begin(store, file("in"))
    batches.add(store, batch("b", input_file_id="in"))
    with pytest.raises(NotFound):
        files.append(store, "ann", "in", 2.0 + files.UNFINISHED_S, b"x")
