"""The journal on real files: what was saved is there, whatever happens to the process, the disk or the file."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from scheduler_svc.core.requests.group_commit import JournalBatch
from scheduler_svc.core.requests.journal_records import FORMAT_VERSION
from scheduler_svc.server.journal import MAX_UNDER_WAY, BatchFailed, BatchSaved, Journal, JournalError
from scheduler_svc.server.journal_database import CHECKPOINT_PAGES, MAX_LOG_BYTES
from scheduler_svc.server.journal_file import SPARE_PAGES
from tests.support.journals import collect, fill, load, log_of, save, writing

PAGE_BYTES = 4096

# Goes on where the file ends, keeps two batches under way and the last 100 in the file, prints what is saved.
ENDLESS_WRITER = """
import sys
from pathlib import Path
from scheduler_svc.server.journal import Journal
from scheduler_svc.core.requests.group_commit import JournalBatch

journal = Journal(Path(sys.argv[1]))
last = told = max((number for number, _ in journal.load().batches), default=0)
journal.start()
print("ready", flush=True)
while True:
    last += 1
    journal.write(JournalBatch(last, b"%d," % last * (last * 7 % 4000), max(1, last - 99), False))
    while last - told >= 2 and journal.wait(60):
        for result in journal.results():
            told = result.number
            print(told, flush=True)
"""

# A file may not grow beyond 256 KiB; then it may again.
WRITER_WITH_A_LIMIT = """
import resource, sys
from pathlib import Path
from scheduler_svc.server.journal import Journal
from scheduler_svc.core.requests.group_commit import JournalBatch

journal = Journal(Path(sys.argv[1]))
journal.start()

def write(batch):
    journal.write(batch)
    journal.wait(60)
    return journal.results()[0]

hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, hard_limit))
saved = sum(type(write(JournalBatch(n, bytes(20_000), 0, False))).__name__ == "BatchSaved" for n in range(1, 30))
print(saved, write(JournalBatch(100, bytes(300_000), 0, False)).reason)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
print(write(JournalBatch(101, b"all", 101, True)))
journal.close()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.db"


def refusal(path):
    with pytest.raises(JournalError) as error:
        Journal(path)
    return str(error.value)


def log_bytes(path):
    return log_of(path).stat().st_size


@pytest.mark.parametrize("durable", [False, True])
def test_what_was_written_is_loaded_in_order(path, durable):
    payloads = [b"", b"one", bytes(range(256)) * 1000]
    with writing(path, durable=durable) as journal:
        for number, payload in enumerate(payloads, 7):
            journal.write(JournalBatch(number, payload, 0, False))
        assert collect(journal, 3) == [BatchSaved(7), BatchSaved(8), BatchSaved(9)]
    assert load(path) == list(enumerate(payloads, 7))
    with writing(path) as journal:
        save(journal, 10, b"later")
    assert load(path) == [*enumerate(payloads, 7), (10, b"later")]


def test_keep_from_forgets_what_is_older(path):
    with writing(path) as journal:
        for number in range(1, 6):
            save(journal, number)
        save(journal, 6, keep_from=4)
    assert [number for number, _ in load(path)] == [4, 5, 6]
    with writing(path) as journal:
        save(journal, 7, b"all", reset=True)
        save(journal, 8, b"more")
    assert load(path) == [(7, b"all"), (8, b"more")]


def test_a_number_that_comes_again_replaces(path):
    fill(path, [b"first"])
    fill(path, [b"second"])
    assert load(path) == [(1, b"second")]


def test_nobody_else_may_read_it(path):
    fill(path, [b"a prompt"])
    assert path.stat().st_mode & 0o777 == 0o600


# --- never waiting ---


def test_write_takes_batches_that_nobody_fetches(path):
    journal = Journal(path)
    for number in range(MAX_UNDER_WAY):
        journal.write(JournalBatch(number, b"x", 0, False))
    with pytest.raises(AssertionError):
        journal.write(JournalBatch(MAX_UNDER_WAY, b"x", 0, False))
    journal.start()
    assert collect(journal, MAX_UNDER_WAY) == [BatchSaved(number) for number in range(MAX_UNDER_WAY)]
    journal.close()


def test_close_writes_what_is_queued(path):
    with writing(path) as journal:
        for number in range(MAX_UNDER_WAY):
            journal.write(JournalBatch(number, bytes(100_000), 0, False))
    assert len(load(path)) == MAX_UNDER_WAY


def works(*command):
    """Whether a command is there, and allowed, and succeeds."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextmanager
def mounted(*arguments):
    """A file system of our own."""
    if not works("mount", *arguments):
        pytest.skip("needs root and a machine that lets it mount file systems")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", arguments[-1]], check=True)


@pytest.fixture
def disk(tmp_path):
    """The folder of a file system that can be frozen: then it is a disk that hangs."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    if not works("mkfs.ext4", "-q", image):
        pytest.skip("needs mkfs.ext4")
    with mounted("-o", "loop", image, folder):
        if not works("fsfreeze", "--freeze", folder):
            pytest.skip("needs root and a machine that lets it freeze a file system")
        # A process that waits for a frozen disk cannot be killed; so a test that goes wrong must leave none behind.
        watchdog = f"trap 'fsfreeze --unfreeze {folder}; exit' TERM; sleep 20 & wait; fsfreeze --unfreeze {folder}"
        with subprocess.Popen(
            ["sh", "-c", watchdog], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as unfreezer:
            works("fsfreeze", "--unfreeze", folder)
            yield folder
            unfreezer.terminate()


def test_a_disk_that_hangs_does_not_hold_up_write(disk):
    with writing(disk / "journal.db") as journal:
        save(journal, 1)
        assert works("fsfreeze", "--freeze", disk)
        for number in (2, 3):
            journal.write(JournalBatch(number, b"x", 0, False))
        assert not journal.wait(0.1)
        assert journal.results() == []
        assert works("fsfreeze", "--unfreeze", disk)
        assert collect(journal, 2) == [BatchSaved(2), BatchSaved(3)]


def test_close_gives_up_on_a_disk_that_hangs(disk):
    with writing(disk / "journal.db", close_timeout_s=0.2) as journal:
        save(journal, 1)
        assert works("fsfreeze", "--freeze", disk)
        journal.write(JournalBatch(2, b"x", 0, False))
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "journal"]
    assert "in use" in refusal(disk / "journal.db"), "the thread may still write"
    assert works("fsfreeze", "--unfreeze", disk)
    thread.join()


# --- the process dies ---


@contextmanager
def endless_writer(path):
    """The process, killed at the end of the block."""
    process = subprocess.Popen([sys.executable, "-c", ENDLESS_WRITER, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_every_saved_batch_survives_kill_9(path):
    for num_lines in (1, 60, 333, 1200):
        with endless_writer(path) as process:
            saved = [process.stdout.readline() for _ in range(num_lines)]
            process.kill()
            saved += process.stdout.readlines()
        last_saved = int(saved[-1])
        batches = load(path)
        numbers = [number for number, _ in batches]
        assert numbers[-1] >= last_saved
        assert numbers == list(range(max(1, numbers[-1] - 99), numbers[-1] + 1))
        assert all(payload == b"%d," % number * (number * 7 % 4000) for number, payload in batches)


def test_the_lock_names_its_holder_and_dies_with_it(path):
    with endless_writer(path) as process:
        assert f"{path} is in use by another scheduler (pid {process.pid} on " in refusal(path)
        process.stdout.readline()
    assert load(path)


def test_one_process_cannot_open_it_twice_either(path):
    with writing(path) as journal:
        assert "in use" in refusal(path)
        assert save(journal, 1) == BatchSaved(1), "the attempt did no harm"
    assert load(path) == [(1, b"x")]


def test_a_log_that_lost_its_end_gives_the_first_batches(path, tmp_path):
    """What a power cut leaves."""
    with writing(path) as journal:
        for number in range(1, 41):
            save(journal, number, bytes(1000 * (number % 7)))
        database, log = path.read_bytes(), path.with_name(path.name + "-wal").read_bytes()
    lengths = []
    for i in range(9):
        cut = tmp_path / f"cut-{i}.db"
        cut.write_bytes(database)
        cut.with_name(cut.name + "-wal").write_bytes(log[: len(log) * i // 8])
        numbers = [number for number, _ in load(cut)]
        assert numbers == list(range(1, len(numbers) + 1))
        lengths.append(len(numbers))
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (0, 40)
    assert 10 < lengths[4] < 30


# --- the disk ---


def test_a_full_disk_fails_batches_until_there_is_room(tmp_path):
    with mounted("-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path):
        path, ballast = tmp_path / "journal.db", tmp_path / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        with writing(path) as journal:
            number, result = 0, None
            while not isinstance(result, BatchFailed):
                number += 1
                result = save(journal, number, bytes(20_000))
            assert 1 < number < 100
            assert "full" in result.reason
            assert "full" in save(journal, number + 1, bytes(2 << 20), reset=True).reason
            ballast.unlink()
            assert save(journal, number + 2, b"all", reset=True) == BatchSaved(number + 2)
            assert save(journal, number + 3, b"more") == BatchSaved(number + 3)
        assert load(path) == [(number + 2, b"all"), (number + 3, b"more")]


def test_a_failed_batch_changes_nothing(tmp_path):
    with mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path):
        path = tmp_path / "journal.db"
        with writing(path) as journal:
            save(journal, 1, b"one")
            assert "full" in save(journal, 2, bytes(2 << 20), reset=True).reason
        assert load(path) == [(1, b"one")]


def test_a_full_disk_does_not_keep_from_resuming(tmp_path):
    with mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path):
        path = tmp_path / "journal.db"
        with endless_writer(path) as process:
            saved = int(process.stdout.readline())
        with pytest.raises(OSError, match="No space"):
            (tmp_path / "ballast").write_bytes(bytes(1 << 20))
        assert load(path)[-1][0] >= saved


def test_an_io_error_fails_batches_until_it_is_gone(path):
    """A limit on the file's size gives an I/O error to a process that writes beyond it."""
    command = [sys.executable, "-c", WRITER_WITH_A_LIMIT, path]
    lines = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    num_saved, reason = lines[0].split(" ", 1)
    assert 1 < int(num_saved) < 29
    assert "I/O error" in reason
    assert lines[1] == "BatchSaved(number=101)"
    assert load(path) == [(101, b"all")]


def test_the_file_shrinks_after_a_burst_and_the_log_stays_small(path):
    with writing(path) as journal:
        for number in range(1, 400):
            save(journal, number, bytes(40_000))
            assert log_bytes(path) < MAX_LOG_BYTES
        assert path.stat().st_size > 2 * SPARE_PAGES * PAGE_BYTES
        assert path.stat().st_size < journal.num_bytes < path.stat().st_size + MAX_LOG_BYTES
        save(journal, 400, reset=True)
        for number in range(401, 1400):
            save(journal, number, keep_from=number - 10)
    assert path.stat().st_size < 1.1 * SPARE_PAGES * PAGE_BYTES


def test_the_log_of_a_huge_batch_is_cut(path):
    with writing(path) as journal:
        save(journal, 1, bytes(3 * MAX_LOG_BYTES))
        assert log_bytes(path) > MAX_LOG_BYTES
        save(journal, 2, reset=True)
        save(journal, 3, bytes(CHECKPOINT_PAGES * PAGE_BYTES))
        save(journal, 4)
        assert log_bytes(path) <= MAX_LOG_BYTES


# --- the file is not what it should be ---


def damage(path):
    """Zeros over everything but the header's page and the next one."""
    with path.open("r+b") as file:
        file.seek(2 * PAGE_BYTES)
        file.write(bytes(path.stat().st_size - 2 * PAGE_BYTES))


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("harm", [damage, cut])
def test_a_damaged_file_is_moved_aside(path, harm):
    fill(path, [bytes(5000)] * 50)
    harm(path)
    content = path.read_bytes()
    with writing(path) as journal:
        save(journal, 1, b"anew")
    assert load(path) == [(1, b"anew")]
    (moved,) = path.parent.glob("journal.db.corrupt-*")
    assert moved.read_bytes() == content


def test_a_file_damaged_while_it_is_open_is_begun_anew(path):
    with writing(path) as journal:
        for number in range(1, 300):  # more than SQLite keeps in memory
            save(journal, number, bytes(40_000))
        damage(path)
        assert "malformed" in save(journal, 300, b"all", reset=True).reason
        assert save(journal, 301, b"all", reset=True) == BatchSaved(301)
    assert load(path) == [(301, b"all")]
    assert list(path.parent.glob("journal.db.corrupt-*"))


def test_a_file_of_another_kind_is_left_alone(path):
    path.write_text("[scheduler]\nport = 8000\n" * 50)
    assert f"{path} is not a journal" in refusal(path)
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE accounts (name)")
    other.close()
    content = path.read_bytes()
    assert f"{path} is another program's database" in refusal(path)
    assert path.read_bytes() == content


def set_version(path, stored):
    with sqlite3.connect(path) as later:
        later.execute(f"PRAGMA user_version = {stored}")
    later.close()


@pytest.mark.parametrize("version", [101, 104])
def test_a_journal_of_messages_of_the_protocol_is_refused(path, version):
    fill(path, [b"x"])
    set_version(path, version)
    assert f"has version {version}, this release reads version {FORMAT_VERSION}" in refusal(path)
    assert "has version" in refusal(path), "a refusal does not keep the lock"


def test_a_newer_version_is_refused_with_a_message_that_says_so(path):
    fill(path, [b"x"])
    newer = FORMAT_VERSION + 1
    set_version(path, newer << 16 | newer)
    assert f"has version {newer}, which is newer than this release (it reads up to version" in refusal(path)
    set_version(path, FORMAT_VERSION << 16 | FORMAT_VERSION)
    assert load(path) == [(1, b"x")]


def test_one_that_died_while_it_was_made_is_made_anew(path):
    with sqlite3.connect(path) as unfinished:
        unfinished.execute("PRAGMA auto_vacuum = INCREMENTAL")
        unfinished.execute("PRAGMA journal_mode = WAL")
    unfinished.close()
    fill(path, [b"x"])
    assert load(path) == [(1, b"x")]


def test_a_folder_that_cannot_be_written_to(tmp_path):
    assert f"there is no folder {tmp_path / 'missing'}" in refusal(tmp_path / "missing" / "journal.db")
    (tmp_path / "file").touch()
    assert "Not a directory" in refusal(tmp_path / "file" / "journal.db")
    (tmp_path / "journal.db").mkdir()
    assert "Is a directory" in refusal(tmp_path / "journal.db")
    read_only = tmp_path / "read-only"
    read_only.mkdir()
    with mounted("-t", "tmpfs", "-o", "ro", "tmpfs", read_only):
        assert "Read-only file system" in refusal(read_only / "journal.db")


def test_a_reader_in_the_way_is_named(path):
    """An operator looks at the file with SQLite's shell while we start."""
    fill(path, [b"x"])
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM batches").fetchone()
    assert "database is locked" in refusal(path)
    reader.close()
    assert load(path) == [(1, b"x")]
