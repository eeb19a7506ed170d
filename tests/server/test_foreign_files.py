"""A scheduler believes no journal and no store that another user could have put there: prompts would be theirs."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from common.paths import user_name
from common.trust import WAIVED
from scheduler_svc.server.journal import Journal, JournalError
from scheduler_svc.server.store_folder import StoreFolder
from scheduler_svc.store.errors import StoreError
from tests import ROOT
from tests.support.other_user import UID, as_other_user, folder_of_all, needs_root

NAME = user_name(UID)
pytestmark = needs_root
COMMAND = [sys.executable, "-m", "scheduler_svc", "--port", "0", "--executor-endpoint", "tcp://127.0.0.1:0"]


@pytest.fixture
def shared():
    """A folder such as /tmp."""
    with folder_of_all() as folder:
        yield folder


def open_journal(path: Path) -> None:
    Journal(path).close()


def open_store(folder: Path) -> None:
    StoreFolder(folder, durable=False).close()


@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "store.db.lock", "scheduler.lock"])
def test_each_file_of_a_store_has_to_be_ours(shared, name):
    """In a folder in which all may make files, as if it were named by mistake."""
    as_other_user("open(sys.argv[1], 'x'); os.chmod(sys.argv[1], 0o666)", shared / name)
    with pytest.raises(StoreError, match=f"{shared / name} belongs to user {NAME}, .*--store"):
        open_store(shared)
    assert [path.name for path in shared.iterdir()] == [name], "nothing was made there"


@pytest.mark.parametrize("suffix", ["", "-wal", ".lock"])
def test_each_file_of_a_journal_has_to_be_ours(shared, suffix):
    path = shared / "journal"
    as_other_user("open(sys.argv[1], 'x'); os.chmod(sys.argv[1], 0o666)", f"{path}{suffix}")
    with pytest.raises(JournalError, match=f"{path}{suffix} belongs to user {NAME}, .*--journal"):
        open_journal(path)
    assert [found.name for found in shared.iterdir()] == [f"journal{suffix}"]


@pytest.mark.parametrize(("open_it", "refusal"), [(open_store, StoreError), (open_journal, JournalError)])
@pytest.mark.parametrize("what", ["folder", "link", "open parent"])
def test_so_does_all_that_leads_there(shared, open_it, refusal, what):
    place = shared / "place"
    match what:
        case "folder":
            as_other_user("os.mkdir(sys.argv[1], 0o777)", place)
        case "link":
            (shared / "ours").mkdir(mode=0o700)
            as_other_user("os.symlink(sys.argv[1], sys.argv[2])", shared / "ours", place)
        case _:
            place.mkdir(mode=0o700)
            shared.chmod(0o777)
    with pytest.raises(refusal, match=f"{shared}(/place)? (belongs to user {NAME}, |can be changed by others)"):
        open_it(place / "it")
    assert not (place / "it").exists()


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o2775])
def test_what_is_ours_is_opened(shared, mode):
    """Also where others may look in, or make files of their own; and on a volume with a group, as Kubernetes has it."""
    shared.chmod(mode)
    open_store(shared / "store")
    open_journal(shared / "journal")
    if mode == 0o1777:
        with pytest.raises(StoreError, match=f"in {shared} all users may make files: name a folder below it"):
            open_store(shared)  # is to be a folder of its own
    else:
        open_store(shared)
    for path in shared.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_journal_that_others_can_read_is_refused_until_they_cannot(shared):
    """Restored from a backup, for example."""
    path = shared / "journal"
    open_journal(path)
    path.chmod(0o644)
    with pytest.raises(JournalError, match=rf"can be read by others \(mode 0644\): chmod o-rwx {path}"):
        open_journal(path)
    path.chmod(0o600)
    open_journal(path)


def test_no_other_user_reaches_the_workers_socket(shared):
    umask = os.umask(0)
    try:
        with closing(StoreFolder(shared / "store", durable=False)):
            assert (shared / "store" / "worker.sock").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(umask)


@pytest.mark.parametrize("option", ["--journal", "--store"])
def test_the_service_says_so_and_does_not_start(shared, tmp_path, option):
    planted = shared / "planted"
    as_other_user("os.mkdir(sys.argv[1], 0o755)", planted)
    place = planted / ("journal" if option == "--journal" else "store")
    others = [] if option == "--journal" else ["--journal", str(tmp_path / "journal")]
    done = subprocess.run(
        [*COMMAND, "--log-level", "error", option, str(place), *others],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    kind = option.removeprefix("--")
    why = f"{planted} belongs to user {NAME}, not to root, who reads it"
    what = {"journal": "file", "store": "folder"}[kind]
    assert (
        done.stderr
        == f"baton-scheduler: {kind} {place} is refused: {why}; or name another {what} by {option}; or {WAIVED}\n"
    )
