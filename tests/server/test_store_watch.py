"""How full the store is: as /status and metrics tell it, of real stores, also of those that cannot be read."""

import re
import shutil
from contextlib import closing

import pytest

from common import messages as m
from scheduler_svc.api_key_file import read_key_file
from scheduler_svc.client.keys.key_ring import KeyRing
from scheduler_svc.server import store_watch
from scheduler_svc.store import batches, responses
from scheduler_svc.store.database import connect
from scheduler_svc.store_options import StoreOptions
from tests.store import rows
from tests.support.core import running_core
from tests.support.eventually import eventually

LIMIT = 1 << 20
CANNOT = "the store cannot be measured"
GONE = "the store is gone"


@pytest.fixture
def store(tmp_path):
    """A connection to a store as a frontend has one."""
    with closing(connect(tmp_path / "store")) as connection:
        yield connection


class Told:
    """A core that watches the store, and what it says of it."""

    def __init__(self, core):
        self.front = core.frontend()

    def status(self):
        report = self.front.status()
        return report.store, report.store_unreadable

    def clients(self):
        store, _ = self.status()
        return {} if store is None else {name: used for name, used in store.clients.items() if used}

    def metrics(self):
        self.front.send(m.MetricsQuery(query_id=1))
        text = self.front.receive(m.Metrics).text.decode()
        return {name: float(value) for name, value in re.findall(r"^(baton_store\S+) (\S+)$", text, re.MULTILINE)}


@pytest.fixture
def start(tmp_path):
    """Starts such a core, which is closed before the store is."""
    cores = []

    def start(**settings):
        cores.append(running_core(tmp_path, store=StoreOptions(tmp_path / "store", limit_bytes=LIMIT), **settings))
        return Told(cores[-1].__enter__())

    yield start
    for core in cores:
        core.__exit__(None, None, None)


def test_status_and_metrics_have_sizes_quotas_and_what_is_open(store, start, tmp_path):
    responses.add(store, rows.response("one", "id-ann", head=bytes(5000)))
    responses.add(store, rows.response("done", "id-ann", status="completed"))
    rows.start_batch(store, "open", 3, "id-bob")
    rows.start_batch(store, "ended", 3, "id-bob")
    batches.cancel(store, "id-bob", "ended", 3.0)
    rows.finalize(store, "ended", "id-bob", 4.0)
    responses.add(store, rows.response("of a key that is gone", "id-eve"))
    used = dict(store.execute("SELECT owner, used_bytes FROM owners"))
    told = start(client_ids={"ann": "id-ann", "bob": "id-bob"})

    by_name = {"ann": used["id-ann"], "bob": used["id-bob"], "other": used["id-eve"]}
    eventually(lambda: told.clients() == by_name)
    status, _ = told.status()
    assert (status.open_batches, status.open_responses, status.limit_bytes) == (1, 2, LIMIT)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "store").glob("store.db*"))
    disk = shutil.disk_usage(tmp_path)
    assert status.bytes_on_disk == on_disk
    assert status.disk_bytes == disk.total
    assert status.free_bytes == pytest.approx(disk.free, abs=1e9)
    metrics = told.metrics()
    assert {name: metrics[f'baton_store_client_bytes{{client="{name}"}}'] for name in by_name} == by_name
    assert metrics["baton_store_bytes"] == on_disk
    assert metrics["baton_store_limit_bytes"] == LIMIT
    assert metrics["baton_store_open_batches"] == 1
    assert metrics["baton_store_open_responses"] == 2
    assert metrics['baton_store_worker_state{state="idle"}'] == 1

    batches.cancel(store, "id-bob", "open", 5.0)
    rows.finalize(store, "open", "id-bob", 6.0)
    eventually(lambda: told.status()[0].open_batches == 0)


def test_without_keys_all_is_of_one_client(store, start):
    responses.add(store, rows.response("one", ""))
    told = start()
    eventually(lambda: told.clients().keys() == {""})


def test_only_the_fullest_have_values_of_their_own(store, start):
    ids = {f"key-{number:03}": f"id-{number:03}" for number in range(store_watch.MAX_CLIENTS + 6)}
    for number, owner in enumerate(ids.values()):
        responses.add(store, rows.response("one", owner, head=bytes(100 * number)))
    told = start(client_ids=ids)
    eventually(lambda: told.clients().keys() == {*sorted(ids)[6:], "other"})
    rest = "SELECT sum(used_bytes) FROM owners WHERE owner < 'id-006'"
    assert told.clients()["other"] == store.execute(rest).fetchone()[0]


def test_a_key_that_is_made_while_it_runs_has_its_name(store, start, tmp_path):
    ring = KeyRing(tmp_path / "keys")
    ring.init()
    ring.add_api_key("ann")
    told = start(client_ids={"ann": "id-ann"}, api_keys_file=ring.api_keys)
    ring.add_api_key("bob")
    bob = next(key for key in read_key_file(ring.api_keys) if key.name == "bob")
    responses.add(store, rows.response("one", bob.client_id))
    eventually(lambda: told.clients().keys() == {"bob"})


def test_a_store_that_cannot_be_read_has_no_values_and_one_line(store, start, capfd):
    """It belongs to a newer release, until it is put right."""
    (version,) = store.execute("PRAGMA user_version").fetchone()
    store.execute("PRAGMA user_version = 99")
    told = start()
    eventually(lambda: "has version 99, which is newer" in told.status()[1])
    assert told.status()[0] is None
    assert told.metrics() == {}
    store.execute(f"PRAGMA user_version = {version}")
    eventually(lambda: told.status()[0] is not None)
    assert told.status()[1] == ""
    assert capfd.readouterr().out.count(CANNOT) == 1


def test_a_query_that_fails_ends_nothing(store, start, capfd):
    told = start()
    eventually(lambda: told.status()[0] is not None)
    store.execute("ALTER TABLE owners RENAME TO elsewhere")
    eventually(lambda: "no such table: owners" in told.status()[1])
    assert told.metrics() == {}
    store.execute("ALTER TABLE elsewhere RENAME TO owners")
    eventually(lambda: told.status()[0] is not None)
    assert capfd.readouterr().out.count(CANNOT) == 1


def test_a_folder_that_vanished_is_not_made_anew(store, start, tmp_path, capfd):
    told = start()
    eventually(lambda: told.status()[0] is not None)
    shutil.move(tmp_path / "store", tmp_path / "away")
    eventually(lambda: "is gone" in told.status()[1])
    assert told.status()[0] is None
    assert told.metrics() == {}
    assert not (tmp_path / "store").exists()
    shutil.move(tmp_path / "away", tmp_path / "store")
    eventually(lambda: told.status()[0] is not None)
    assert told.status()[1] == ""
    said = capfd.readouterr().out
    assert said.count(GONE) == 1
    assert CANNOT not in said


def test_it_keeps_no_damaged_store_in_its_place(store, start, tmp_path):
    for number in range(20):
        responses.add(store, rows.response(f"old-{number}", head=bytes(20_000)))
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    told = start()
    eventually(told.clients)
    path = tmp_path / "store" / "store.db"
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    (tmp_path / "store" / "store.db.damaged").touch()  # as the one that met the damage does
    eventually(lambda: list((tmp_path / "store").glob("store.db.corrupt-*")))
    eventually(lambda: told.status()[0] is not None and not told.clients())
