"""A backup is the store of one moment, whole, in one file; restored, it is that store."""

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import pytest
from click.testing import CliRunner

from common.paths import user_name
from scheduler_svc.client.cli import main
from scheduler_svc.server.store_folder import StoreFolder
from scheduler_svc.store import batch_results, batches, files, responses
from scheduler_svc.store.backup import back_up, restore
from scheduler_svc.store.check import check
from scheduler_svc.store.database import FILE_NAME, connect
from scheduler_svc.store.errors import StoreBusy, StoreDamaged, StoreError
from scheduler_svc.store.open_store import OpenStore
from scheduler_svc.store.schema import STEPS
from tests import ROOT
from tests.store import rows
from tests.support.other_user import UID, command_as, folder_of_all, needs_root


@pytest.fixture
def filled(tmp_path):
    """The folder of a store with a record of each kind."""
    folder = tmp_path / "store"
    with closing(connect(folder)) as store:
        responses.add(store, rows.response("r"))
        rows.add_file(store, "f", b"content", b"and more")
        rows.start_batch(store, "b", 2)
        batch_results.add_results(store, "ann", "b", 3.0, [rows.result(0)])
    return folder


@contextmanager
def in_use(folder):
    """A service has it: its scheduler, and a process that has it open."""
    with closing(StoreFolder(folder, durable=False)), closing(OpenStore(folder, durable=False, makes=False)) as store:
        yield store


def content(folder):
    """All rows of all tables."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as store:
        return list(store.iterdump())


def run(*arguments):
    return CliRunner().invoke(main, ["store", *map(str, arguments)])


@needs_root
@pytest.mark.parametrize("command", ["backup", "restore"])
@pytest.mark.parametrize("is_root", [True, False])
def test_the_folder_of_another_user_is_worked_on_as_that_user(command, is_root):
    """Which is said first, with the user's name."""
    with folder_of_all(0o755) as home:
        folder, copy = home / "store", home / "copy.db"
        connect(folder).close()
        connect(home / "one").close()
        back_up(home / "one", copy)
        copy.chmod(0o644)
        owner = UID if is_root else 0
        os.chown(folder, owner, owner)
        words = ["store", command, str(home / "out.db" if command == "backup" else copy), "--store", str(folder)]
        code = f"sys.path.insert(0, {str(ROOT)!r}); from scheduler_svc.client.cli import main; main(sys.argv[1:])"
        before = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import scheduler_svc.client.commands.store"
        before += ", scheduler_svc.store.backup, common.trust"
        line = [sys.executable, "-c", f"import sys; {code}", *words]
        line = line if is_root else command_as(UID, code, *words, before=before)
        done = subprocess.run(line, cwd="/", capture_output=True, text=True, check=False)
        name = user_name(owner)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert done.stderr.startswith(f"Error: run it as user {name}: sudo -u {name} baton store ...; "), done.stderr


def test_it_goes_there_and_back_while_the_service_runs(filled, tmp_path):
    copy, other = tmp_path / "copy.db", tmp_path / "new" / "store"
    with in_use(filled) as store:
        store.call(responses.add, rows.response("later"))  # in the log alone
        done = run("backup", copy, "--store", filled)
        assert (done.exit_code, "responses: 2, files: 1, batches: 1" in done.stderr) == (0, True), done.stderr
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("copy")] == ["copy.db"]
    done = run("restore", copy, "--store", other)
    assert (done.exit_code, "start the service" in done.stderr) == (0, True), done.stderr
    assert (stat.S_IMODE(other.stat().st_mode), stat.S_IMODE((other / FILE_NAME).stat().st_mode)) == (0o700, 0o600)
    assert content(other) == content(filled)
    with in_use(other) as store:
        assert store.call(responses.get_status, "ann", "later", 3.0) == "queued"
        assert store.call(files.read, "ann", "f", 3.0, offset=0, limit=100) == b"contentand more"
        assert store.call(batches.get, "ann", "b", 3.0).completed == 1
        assert store.call(check) == []


def test_what_is_written_meanwhile_is_in_it_whole_or_not_at_all(filled, tmp_path):
    """Its sums are counted again for each copy."""
    is_over = threading.Event()

    def write():
        with closing(connect(filled)) as store:
            for number in range(10_000):
                if is_over.is_set():
                    return
                rows.add_file(store, f"f{number}", b"x" * 5000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        counts = [back_up(filled, tmp_path / f"copy{number}.db")["files"] for number in range(5)]
    finally:
        is_over.set()
        writer.join()
    assert counts == sorted(counts)


def test_a_service_that_owns_the_store_keeps_it(filled, tmp_path):
    back_up(filled, tmp_path / "copy.db")
    with in_use(filled):
        before = content(filled)
        done = run("restore", tmp_path / "copy.db", "--store", filled)
        assert (done.exit_code, f"pid {os.getpid()}" in done.stderr, "stop it" in done.stderr) == (1, True, True)
        assert done.stderr.count("\n") == 1
    with closing(OpenStore(filled, durable=False, makes=False)) as store:
        store.look()
        with pytest.raises(StoreBusy, match="stop it before you restore"):
            restore(tmp_path / "copy.db", filled)
    with pytest.raises(StoreError, match="has a store already"):
        restore(tmp_path / "copy.db", filled)
    assert content(filled) == before


def spoil(path):
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 4)


def move_a_count(path):
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("UPDATE owners SET used_bytes = used_bytes + 1")


def empty(path):
    path.write_bytes(b"")


def another_programs(path):
    path.unlink()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE t (x)")


def no_database(path):
    path.write_bytes(b"no database" * 1000)


def newer(path):
    with closing(sqlite3.connect(path)) as store, store:
        store.execute(f"PRAGMA user_version = {len(STEPS) + 1}")


@pytest.mark.parametrize("damage", [spoil, move_a_count, empty, another_programs, no_database, newer, os.unlink])
def test_what_is_no_whole_store_is_neither_copied_nor_restored(filled, tmp_path, damage):
    back_up(filled, copy := tmp_path / "copy.db")
    for path in (filled / FILE_NAME, copy):
        damage(path)
    for work in (lambda: back_up(filled, tmp_path / "other.db"), lambda: restore(copy, tmp_path / "new")):
        with pytest.raises(StoreError):
            work()
    assert not (tmp_path / "other.db").exists()
    assert not list(tmp_path.glob("*.part"))
    assert not (tmp_path / "new" / FILE_NAME).exists()


def test_one_of_several_stores_is_asked_for(filled, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "baton").mkdir(mode=0o700)
    filled.rename(tmp_path / "baton" / "journal-8001.store")
    (tmp_path / "baton" / "journal-8000.store").mkdir(mode=0o700)
    done = run("backup", tmp_path / "copy.db")
    assert (done.exit_code, "journal-8001.store: name the one" in done.stderr) == (2, True), done.stderr
    assert run("backup", tmp_path / "copy.db", "--port", 8001).exit_code == 0


def test_nothing_is_overwritten(filled, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("taken", "link"):
        done = run("backup", tmp_path / name, "--store", filled)
        assert (done.exit_code, "is not overwritten" in done.stderr) == (1, True)
    assert (tmp_path / "taken").read_text() == "mine"
    monkeypatch.setattr(os, "fsync", lambda _: (tmp_path / "late").write_text("mine"))  # while the copy is made
    with pytest.raises(StoreError, match="is not overwritten"):
        back_up(filled, tmp_path / "late")
    assert (tmp_path / "late").read_text() == "mine"
    (tmp_path / "copy.db.part").write_text("")
    done = run("backup", tmp_path / "copy.db", "--store", filled)
    assert (done.exit_code, f"rm {tmp_path}/copy.db.part" in done.stderr) == (1, True)


def test_a_place_that_cannot_be_written_is_one_line(filled, tmp_path):
    done = run("backup", tmp_path / "nowhere" / "copy.db", "--store", filled)
    assert (done.exit_code, done.stderr) == (
        1, f"Error: {tmp_path}/nowhere/copy.db cannot be written: No such file or directory\n",
    )  # fmt: skip


def test_the_store_of_an_older_release_stays_as_it_is(tmp_path):
    """Services of that release may have it open; the copy becomes this release's when a scheduler starts."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    with closing(sqlite3.connect(folder / FILE_NAME)) as store:
        store.executescript(f"{STEPS[0]} PRAGMA application_id = {0x42617453}; PRAGMA user_version = 1;")
    before = content(folder)
    back_up(folder, tmp_path / "copy.db")
    assert content(folder) == before
    restore(tmp_path / "copy.db", tmp_path / "new")
    with closing(connect(tmp_path / "new")) as store:
        assert check(store) == []


def test_the_default_folder_is_the_services(filled, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "baton").mkdir(mode=0o700)
    filled.rename(tmp_path / "baton" / "journal-8123.store")
    assert run("backup", tmp_path / "copy.db", "--port", 8123).exit_code == 0
    done = run("backup", tmp_path / "other.db")
    assert (done.exit_code, done.stderr) == (1, f"Error: there is no {tmp_path}/baton/journal-8000.store/store.db\n")


def test_damage_is_told(filled, tmp_path):
    move_a_count(filled / FILE_NAME)
    with pytest.raises(StoreDamaged, match="owner with a wrong sum: ann"):
        back_up(filled, tmp_path / "copy.db")
