"""What becomes of a store whose file is damaged, taken away or put back while real processes have it open."""

import shutil
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from scheduler_svc.store import check, responses
from scheduler_svc.store.database import MARK_NAME, connect
from scheduler_svc.store.errors import StoreError
from scheduler_svc.store.open_store import OpenStore
from tests import ROOT
from tests.store.rows import response
from tests.support.eventually import eventually


class Asked:
    """One such process."""

    def __init__(self, folder: Path, kind: str, log: Path):
        command = [sys.executable, "-m", "tests.store.asked_process", folder, kind]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with log.open("a") as stderr:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=stderr, bufsize=1, **pipes)

    def ask(self, line: str) -> str:
        self.process.stdin.write(f"{line}\n")
        return self.process.stdout.readline().strip()


@pytest.fixture
def asked(tmp_path):
    """Starts a process; all write one log."""
    with ExitStack() as stack:

        def start(kind="finds"):
            one = Asked(tmp_path / "store", kind, tmp_path / "log")
            stack.enter_context(one.process)
            stack.callback(one.process.kill)
            return one

        yield start


def overwrite_pages(folder: Path, first: int = 2) -> None:
    """From this page on, of which the first is the header's."""
    path = folder / "store.db"
    with path.open("r+b") as file:
        file.seek((first - 1) * 4096)
        file.write(b"\xff" * (path.stat().st_size - (first - 1) * 4096))


def fill(folder: Path) -> None:
    with closing(connect(folder)) as store:
        for number in range(20):
            responses.add(store, response(f"old-{number}", head=bytes(20_000)))


def events(log: Path) -> list[str]:
    names = ["the store is damaged", "a new store is begun", "the store is gone", "the store is back"]
    return [name for line in log.read_text().splitlines() for name in names if name in line]


def test_processes_go_on_with_a_new_store_after_damage_and_lose_nothing_of_it(asked, tmp_path):
    """The old one is kept, with its log; an idle process does not keep it in its place."""
    folder = tmp_path / "store"
    fill(folder)
    one, other, idle = asked("makes"), asked(), asked()
    for process in (one, other, idle):
        assert process.ask("get old-1") == "done"
    overwrite_pages(folder, first=2)
    assert one.ask("get old-19") == "StoreDamaged"
    assert eventually(lambda: one.ask("get old-19")) in ("NotFound", "StoreDamaged")
    assert eventually(lambda: one.ask("add new") == "done")
    for number in range(30):
        assert other.ask(f"add other-{number}") == "done", "no process is left with the old one, nor deletes a log"
    assert idle.ask("get new") == "done"
    assert idle.ask("get other-29") == "done"
    assert events(tmp_path / "log") == ["the store is damaged", "a new store is begun"], "once, whoever notices it"
    [kept] = folder.glob("store.db.corrupt-*Z")
    assert kept.stat().st_size > 20 * 20_000
    assert f"damaged_one={kept}" in (tmp_path / "log").read_text()
    for process in (one, other, idle):
        process.process.stdin.close()
        assert process.process.wait(60) == 0
    with closing(connect(folder)) as store:
        assert check.check(store) == []
        assert store.execute("SELECT count(*) FROM responses").fetchone() == (31,)


@pytest.mark.parametrize("first", [1, 2])
def test_damage_of_a_store_that_no_process_has_open_is_met_at_the_opening(tmp_path, first):
    """Its header still says that it is ours, or the mark of the process does that met the damage and died."""
    folder = tmp_path / "store"
    fill(folder)
    overwrite_pages(folder, first)
    if first == 1:
        (folder / MARK_NAME).touch()
    with closing(OpenStore(folder, durable=False, makes=True)) as store:
        store.call(responses.add, response("new"))
        assert [each.response_id for each in store.call(responses.open_background, 2.0)] == ["new"]
    assert not (folder / MARK_NAME).exists()
    assert len([*folder.glob("store.db.corrupt-*Z")]) == 1


def test_a_new_store_that_cannot_be_begun_is_tried_again_and_takes_nothing_of_the_room(tmp_path, monkeypatch):
    folder = tmp_path / "store"
    fill(folder)
    overwrite_pages(folder)
    (folder / MARK_NAME).touch()
    store = OpenStore(folder, durable=False, makes=False)
    store.close()
    with closing(connect(folder)) as whole:  # as the new one; a disk without room for its tables
        assert whole.execute("SELECT count(*) FROM responses").fetchone() == (0,)
    (folder / MARK_NAME).touch()
    with monkeypatch.context() as patch:
        patch.setattr("scheduler_svc.store.database.STEPS", ("CREATE TABLE no (",))
        for _ in range(3):
            with pytest.raises(StoreError):
                store.call(responses.open_background, 2.0)
    assert len([*folder.glob("store.db.corrupt-*")]) == 2, "of the two that were there"
    assert store.call(responses.open_background, 2.0) == []
    store.close()


@pytest.mark.parametrize("what", ["moved", "removed", "replaced"])
def test_a_store_that_is_gone_is_told_once_and_comes_back(asked, tmp_path, what):
    folder, aside = tmp_path / "store", tmp_path / "aside"
    process = asked("makes")
    assert process.ask("add kept") == "done"
    folder.rename(aside)
    if what == "replaced":
        shutil.copytree(aside, folder)
    late = asked()  # as a frontend that is started again: it makes nothing where nothing is
    for _ in range(3):
        assert process.ask("add lost") == "StoreGone"
        assert process.ask("get kept") == "StoreGone"
        assert what == "replaced" or late.ask("get kept") == "StoreGone"
    assert folder.exists() == (what == "replaced")
    assert events(tmp_path / "log").count("the store is gone") == (1 if what == "replaced" else 2)
    if what == "removed":
        return
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
    assert process.ask("get kept") == "done"
    assert process.ask("get lost") == "NotFound"
    assert process.ask("add more") == "done"
    assert "the store is back" in events(tmp_path / "log")
    if what == "moved":
        assert late.ask("get more") == "done"
