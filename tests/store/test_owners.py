"""What an owner has is its own: it ends with its key, stays for a day, and no namesake ever gets it."""

import pytest

from scheduler_svc.store import batch_results, batches, check, database, files, owners, responses, sweep
from scheduler_svc.store.database import connect
from scheduler_svc.store.quotas import used_bytes
from scheduler_svc.store.schema import STEPS
from tests.store import rows

ERRORS = b'[{"code": "invalid_api_key"}]'


def fill(store, owner):
    """Something of everything."""
    responses.add(store, rows.response("ended", owner, status="completed", expires_at=None))
    responses.add(store, rows.response("waits", owner, expires_at=None))
    responses.add(store, rows.response("runs", owner, expires_at=None))
    responses.begin(store, owner, "runs", 2.0)
    responses.add(store, rows.response("read", owner, status="in_progress", is_background=False, expires_at=None))
    rows.add_file(store, "f", b"12345", owner=owner, expires_at=None)
    files.begin(store, rows.file("unfinished", owner, expires_at=None))
    batches.add(store, rows.batch("checked", owner, expires_at=None))
    rows.start_batch(store, "computed", 5, owner=owner, expires_at=None)
    batch_results.add_results(store, owner, "computed", 3.0, [rows.result(0)])


def status_of(store, owner):
    """Of all responses and batches."""
    query = "SELECT response_id, status FROM responses WHERE owner = ? UNION ALL SELECT batch_id, status FROM batches"
    return dict(store.execute(f"{query} WHERE owner = ?", (owner, owner)))


def swept(store, now, known=()):
    while sweep.sweep(store, now, known=known, max_rows=3).is_more:
        pass
    assert check.check(store) == []


def test_a_revocation_ends_what_is_open_and_nothing_of_others(store):
    for owner in ("ann", "bob"):
        fill(store, owner)
    before = status_of(store, "bob")
    assert owners.revoke(store, "ann", 4.0, errors=ERRORS) == 4
    assert status_of(store, "ann") == {
        "ended": "completed",
        "waits": "cancelled",
        "runs": "cancelled",
        "read": "in_progress",  # not in the background: whoever computes it keeps its end
        "checked": "failed",
        "computed": "finalizing",
    }
    assert status_of(store, "bob") == before
    assert responses.begin(store, "ann", "waits", 5.0) is None
    rows.finalize(store, "computed", now=5.0)
    computed = batches.get(store, "ann", "computed", 6.0)
    assert (computed.status, computed.errors) == ("failed", ERRORS)
    assert owners.revoke(store, "ann", 9.0, errors=ERRORS) == 0, "each frontend says so"
    assert check.check(store) == []


def test_what_a_revoked_owner_has_goes_after_a_day(store):
    for owner in ("ann", "bob"):
        fill(store, owner)
    owners.revoke(store, "ann", 4.0, errors=ERRORS)
    had = status_of(store, "ann")
    owners.revoke(store, "ann", 50.0, errors=ERRORS)
    swept(store, 3.9 + owners.KEPT_S)
    assert status_of(store, "ann") == had
    assert rows.content(store, "f", now=3.9 + owners.KEPT_S) == b"12345"
    swept(store, 4.0 + owners.KEPT_S)
    assert used_bytes(store, "ann") == 0
    assert rows.content(store, "f", owner="bob") == b"12345"
    assert status_of(store, "bob")["waits"] == "queued"
    swept(store, 5.0 + owners.KEPT_S)
    assert store.execute("SELECT count(*) FROM revoked_owners").fetchone() == (0,)


@pytest.mark.parametrize("known", [["ann"], None])
def test_nothing_goes_if_the_key_is_back_or_it_is_not_known_who_has_one(store, known):
    fill(store, "ann")
    owners.revoke(store, "ann", 4.0, errors=ERRORS)
    swept(store, 5.0, known)
    swept(store, 5.0 + owners.KEPT_S, known)
    assert rows.content(store, "f", now=5.0 + owners.KEPT_S) == b"12345"
    swept(store, 6.0 + owners.KEPT_S, [])
    assert (used_bytes(store, "ann") > 0) == (known is not None), "who came back has to be revoked anew"


@pytest.fixture
def named(tmp_path, monkeypatch):
    """A store of the release before, whose owners are names."""
    with monkeypatch.context() as patch:
        patch.setattr(database, "STEPS", STEPS[:2])
        store = connect(tmp_path)
        for owner in ("", "ann", "bob"):
            fill(store, owner)
        files.delete(store, "ann", "f", 3.0)
        store.close()
    with connect(tmp_path) as store:
        yield store
    store.close()


def test_a_store_by_names_is_taken_over_once_for_those_that_have_keys(named):
    before = {owner: used_bytes(named, owner) for owner in ("", "ann", "bob")}
    assert owners.take_over(named, {"ann": "a" * 32, "carol": "c" * 32}) == (1, 1)
    assert used_bytes(named, "a" * 32) == before["ann"]
    assert used_bytes(named, "ann") == 0
    assert status_of(named, "a" * 32)["waits"] == "queued"
    assert (used_bytes(named, ""), used_bytes(named, "bob")) == (before[""], before["bob"])
    assert check.check(named) == []
    assert owners.take_over(named, {"bob": "b" * 32, "a" * 32: "d" * 32}) == (0, 0), "a key of that name came later"
    assert used_bytes(named, "b" * 32) == 0
    swept(named, 5.0)


def test_two_names_may_be_one_client(named):
    """A key that is in the environment and in the file, for example."""
    both = used_bytes(named, "ann") + used_bytes(named, "bob")
    for table in ("responses", "files", "batches"):
        named.execute(f"DELETE FROM {table} WHERE owner = 'bob'")  # ids of theirs are equal in this store
    left = used_bytes(named, "bob")
    assert owners.take_over(named, {"ann": "a" * 32, "bob": "a" * 32}) == (2, 0)
    assert both > used_bytes(named, "a" * 32) > left > 0
    assert check.check(named) == []


def test_a_list_without_keys_leaves_all_names_to_nobody(named):
    assert owners.take_over(named, {}) == (0, 2)
    assert owners.take_over(named, {"bob": "b" * 32}) == (0, 0), "he came later"


def test_a_store_of_this_release_has_nothing_to_be_taken_over(store):
    fill(store, "ann")
    assert owners.take_over(store, {"ann": "a" * 32}) == (0, 0)
    assert used_bytes(store, "ann") > 0
