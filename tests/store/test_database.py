"""How a store is made and opened, and which ones are refused."""

import sqlite3
import stat
import threading
from contextlib import closing
from unittest import mock

import pytest

from scheduler_svc.store import batch_results, check, database, files, responses, sweep
from scheduler_svc.store.database import connect, data_version, writing
from scheduler_svc.store.errors import StoreBusy, StoreDamaged, StoreError
from scheduler_svc.store.quotas import used_bytes
from scheduler_svc.store.records import RECORD_BYTES
from scheduler_svc.store.schema import STEPS
from scheduler_svc.store.store_thread import StoreThread
from tests.store import rows
from tests.store.rows import get_response, response


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_no_other_user_may_read_it(tmp_path):
    folder = tmp_path / "deep" / "store"
    with closing(connect(folder)) as store:
        responses.add(store, response("r"))
        assert mode(folder) == 0o700
        assert {path.name: mode(path) for path in folder.iterdir()} == dict.fromkeys(
            ["store.db", "store.db-wal", "store.db-shm", "store.db.lock"], 0o600
        )


def test_what_was_stored_is_there_when_it_is_opened_again(tmp_path):
    with closing(connect(tmp_path)) as store:
        responses.add(store, response("r"))
    with closing(connect(tmp_path)) as store:
        assert get_response(store, "ann", "r", 2.0) == response("r")


@pytest.mark.parametrize(("durable", "synchronous"), [(False, 1), (True, 2)])
def test_settings_of_a_connection(tmp_path, durable, synchronous):
    with closing(connect(tmp_path, durable=durable)) as store:
        facts = {name: store.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "auto_vacuum")}
        assert facts == {"journal_mode": "wal", "auto_vacuum": 2}
        assert store.execute("PRAGMA synchronous").fetchone() == (synchronous,)


def test_a_newer_release_s_store_is_refused_and_stays_as_it_is(tmp_path):
    with closing(connect(tmp_path)) as store:
        store.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    before = (tmp_path / "store.db").read_bytes()
    with pytest.raises(StoreError, match=f"version {len(STEPS) + 1}, which is newer.*up to version {len(STEPS)}"):
        connect(tmp_path)
    assert (tmp_path / "store.db").read_bytes() == before


def test_an_older_release_s_store_gets_the_steps_that_it_lacks(tmp_path):
    with closing(connect(tmp_path)) as store:
        responses.add(store, response("r"))
    steps = (*STEPS, "ALTER TABLE owners ADD COLUMN nickname TEXT;", "CREATE TABLE extra (a INTEGER);")
    with mock.patch.object(database, "STEPS", steps):
        for _ in range(2):
            with closing(connect(tmp_path)) as store:
                assert store.execute("SELECT nickname FROM owners").fetchall() == [(None,)]
                assert store.execute("SELECT * FROM extra").fetchall() == []
                assert get_response(store, "ann", "r", 2.0) == response("r")
    with pytest.raises(StoreError, match="newer"):
        connect(tmp_path)


def test_what_an_older_release_has_deleted_is_counted_for_nobody_with_a_key_until_it_is_swept(tmp_path):
    with mock.patch.object(database, "STEPS", STEPS[:1]), closing(connect(tmp_path)) as store:
        for name in ("kept", "deleted"):
            rows.add_file(store, name, b"12345")
        files.delete(store, "ann", "deleted", 2.0)
        for name in ("kept", "expired"):
            rows.start_batch(store, name, 1)
            batch_results.add_results(store, "ann", name, 2.0, [rows.result(0)])
        store.execute("DELETE FROM batches WHERE batch_id = 'expired'")
        before = used_bytes(store, "ann")
    with closing(connect(tmp_path)) as store:
        assert check.check(store) == []
        one = rows.result(0)
        assert used_bytes(store, "ann") == before
        assert used_bytes(store, "") == 2 * RECORD_BYTES + 5 + len(one.body) + len(one.custom_id)
        sweep.sweep(store, 3.0)
        assert used_bytes(store, "") == 0
        files.delete(store, "ann", "kept", 3.0)
        assert used_bytes(store, "ann") == before
        assert check.check(store) == []


def test_a_step_that_fails_leaves_the_old_version_whole(tmp_path):
    connect(tmp_path).close()
    steps = (*STEPS, "CREATE TABLE extra (a INTEGER);", "CREATE TABLE extra (a INTEGER);")
    with mock.patch.object(database, "STEPS", steps), pytest.raises(StoreError, match="already exists"):
        connect(tmp_path)
    with closing(connect(tmp_path)) as store:
        assert check.check(store) == []


def test_another_program_s_database_is_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / "store.db")) as other:
        other.execute("CREATE TABLE theirs (a)")
    with pytest.raises(StoreError, match="another program's database"):
        connect(tmp_path)


@pytest.mark.parametrize(
    ("offset", "damage"),
    [(0, b"not a database, but a long text "), (100, bytes(60))],
    ids=["header", "schema"],
)
def test_damage_where_the_opening_looks_is_told_at_once(tmp_path, offset, damage):
    with closing(connect(tmp_path)) as store:
        responses.add(store, response("r"))
    path = tmp_path / "store.db"
    content = bytearray(path.read_bytes())
    content[offset : offset + len(damage)] = damage
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"store\.db"):
        connect(tmp_path)


def test_a_file_that_nothing_says_is_ours_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database, but a long text " * 200)
    for open_it in (connect, StoreThread):
        with pytest.raises(StoreError, match=r"store\.db is not a store.*move it away, or name another folder") as told:
            open_it(tmp_path)
        assert not isinstance(told.value, StoreDamaged)
    assert path.read_bytes() == b"not a database, but a long text " * 200


def test_lost_tables_are_damage(tmp_path):
    with closing(connect(tmp_path)) as store:
        store.execute("DROP TRIGGER files_removed")
    with pytest.raises(StoreDamaged, match=f"its tables are not those of version {len(STEPS)}"):
        connect(tmp_path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be opened: Not a directory"):
        connect(tmp_path / "file" / "store")


def test_threads_that_open_a_new_store_at_once_all_find_it_whole(tmp_path):
    faults, gate = [], threading.Barrier(8)

    def open_it():
        gate.wait()
        try:
            with closing(connect(tmp_path)) as store:
                responses.add(store, response(threading.current_thread().name))
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=open_it, name=f"r{i}") for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    with closing(connect(tmp_path)) as store:
        assert store.execute("SELECT count(*) FROM responses").fetchone() == (8,)
        assert check.check(store) == []


def test_an_opening_waits_only_so_long_for_another(tmp_path):
    connect(tmp_path).close()
    with (tmp_path / "store.db.lock").open("w") as lock:
        database.fcntl.flock(lock, database.fcntl.LOCK_EX)
        with pytest.raises(StoreBusy, match="another process has been opening it"):
            connect(tmp_path, open_timeout_s=0.0)


def test_a_writer_that_waits_too_long_is_told_that_it_is_busy(tmp_path):
    with closing(connect(tmp_path)) as one, closing(connect(tmp_path)) as other, writing(one):
        other.execute("PRAGMA busy_timeout = 0")
        assert responses.open_background(other, 1.0) == [], "readers do not wait"
        with pytest.raises(sqlite3.OperationalError) as caught:
            responses.add(other, response("r"))
        assert isinstance(database.explained(caught.value, "adding"), StoreBusy)


def test_a_transaction_that_raises_is_undone(store):
    with pytest.raises(sqlite3.IntegrityError), writing(store):
        store.executemany("INSERT INTO owners VALUES ('bob', ?)", [(1,), (2,)])
    assert store.execute("SELECT * FROM owners").fetchall() == []
    assert not store.in_transaction


def test_a_full_disk_undoes_the_transaction_and_the_store_goes_on(store):
    (pages,) = store.execute("PRAGMA page_count").fetchone()
    store.execute(f"PRAGMA max_page_count = {pages + 5}")
    with pytest.raises(sqlite3.OperationalError, match="full") as caught:
        responses.add(store, response("large", head=bytes(100_000)))
    told = database.explained(caught.value, "the store failed")
    assert str(told) == "the store failed: database or disk is full (SQLITE_FULL)"
    store.execute("PRAGMA max_page_count = 1000000")
    responses.add(store, response("large", head=bytes(100_000)))


def test_the_data_version_changes_when_another_has_written(tmp_path):
    with closing(connect(tmp_path)) as one, closing(connect(tmp_path)) as other:
        before = data_version(one)
        assert data_version(one) == before
        responses.add(other, response("r"))
        assert data_version(one) != before
