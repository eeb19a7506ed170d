"""The end of a log is told from damage in it: what a kill leaves behind the end is none."""

import shutil
import sqlite3
from contextlib import closing, contextmanager

import pytest

from scheduler_svc.server.journal_wal import damage_of
from tests.support.journals import log_of

FRAME_BYTES = 24 + 4096
PAGE = bytes(range(256)) * 16


@contextmanager
def database(path):
    """A database in WAL mode whose log is never copied, and which spills what does not fit its cache."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode = WAL", "wal_autocheckpoint = 0", "cache_size = 1", "cache_spill = 1"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("CREATE TABLE IF NOT EXISTS rows (content BLOB)")
        yield connection


def insert(connection, num_pages=1):
    for _ in range(num_pages):
        connection.execute("INSERT INTO rows VALUES (?)", (PAGE,))


def killed(path, name):
    """The files as they are now, which is as a kill would leave them."""
    copy = path.with_name(name)
    shutil.copy(path, copy)
    shutil.copy(log_of(path), log_of(copy))
    return copy


def frames(path):
    log = log_of(path).read_bytes()[32:]
    return [log[at : at + FRAME_BYTES] for at in range(0, len(log), FRAME_BYTES)]


def num_rows(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM rows").fetchone()[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.db"


@pytest.fixture
def cut_short(path):
    """What a kill leaves in the middle of a transaction: frames that are not committed."""
    with database(path) as connection:
        insert(connection)
        committed = len(frames(path))
        connection.execute("BEGIN")
        insert(connection, 20)
        copy = killed(path, "killed.db")
    assert len(frames(copy)) > committed + 5
    return copy


def test_a_transaction_that_a_kill_cut_short_is_no_damage(cut_short):
    assert damage_of(log_of(cut_short)) == ""
    assert num_rows(cut_short) == 1


def test_nor_is_what_is_left_of_it_behind_what_the_next_life_has_written(cut_short):
    num_frames = len(frames(cut_short))
    with database(cut_short) as connection:
        insert(connection)
        copy = killed(cut_short, "killed-again.db")
    assert len(frames(copy)) == num_frames, "it is written over the first frames of what was cut short"
    assert damage_of(log_of(copy)) == ""
    assert num_rows(copy) == 2


def test_nor_is_a_frame_of_which_only_the_head_was_written_over_one_of_a_former_round(path):
    with database(path) as connection:
        insert(connection, 5)
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        insert(connection)
        before = killed(path, "before.db")
        num_frames = len(frames(before))
        insert(connection)
        written = frames(path)
    changed = next(i for i, (old, new) in enumerate(zip(frames(before), written, strict=True)) if old != new)
    log = bytearray(log_of(before).read_bytes())
    at = 32 + changed * FRAME_BYTES
    log[at : at + 24] = written[changed][:24]
    log_of(before).write_bytes(log)
    assert len(frames(before)) == num_frames
    assert damage_of(log_of(before)) == ""
    assert num_rows(before) == 6


@pytest.mark.parametrize("at", [3, 9, 18, 500])
def test_damage_before_a_transaction_that_was_committed_is_noticed(path, at):
    """In a frame's page number, salts, checksum and page."""
    with database(path) as connection:
        insert(connection, 3)
        copy = killed(path, "copy.db")
    num_frames = len(frames(copy))
    log = log_of(copy).read_bytes()
    for number in range(1, num_frames):
        here = 32 + (number - 1) * FRAME_BYTES + at
        log_of(copy).write_bytes(log[:here] + bytes([log[here] ^ 1]) + log[here + 1 :])
        assert damage_of(log_of(copy)) == f"frame {number} of its log is damaged"


def test_damage_to_the_header_is_noticed(path):
    with database(path) as connection:
        insert(connection)
        copy = killed(path, "copy.db")
    log = log_of(copy).read_bytes()
    log_of(copy).write_bytes(log[:20] + b"?" + log[21:])
    assert damage_of(log_of(copy)) == "the header of its log is damaged"


def test_no_log_is_whole(path):
    assert damage_of(log_of(path)) == ""
