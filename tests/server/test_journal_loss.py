"""A journal whose file is deleted, replaced or cut while it is open: that is noticed, and nothing relies on it."""

import os
import shutil
import sqlite3

import pytest

from common import messages as m
from scheduler_svc.core.requests.group_commit import (
    RETRY_AFTER_S,
    BatchFailed,
    BatchSaved,
    GroupCommit,
    JournalBatch,
    JournalLost,
    JournalState,
)
from scheduler_svc.server import journal as journal_module
from scheduler_svc.server.journal import Journal
from scheduler_svc.server.journal_database import MAX_LOG_BYTES
from tests.support.core import FakeExecutor, running_core
from tests.support.disk import request_record
from tests.support.eventually import eventually
from tests.support.journals import asides, collect, load, log_of, save, writing
from tests.support.service import Service, restart


def delete(path):
    path.unlink()
    log_of(path).unlink()


def delete_database(path):
    path.unlink()


def delete_log(path):
    log_of(path).unlink()


def rename(path):
    path.rename(path.with_name("elsewhere"))


def replace(path):
    """Another journal takes its place."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)


def replace_log(path):
    copy = path.with_name("copy")
    shutil.copy(log_of(path), copy)
    copy.replace(log_of(path))


def truncate(path):
    os.truncate(path, 0)


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def truncate_log(path):
    os.truncate(log_of(path), 0)


def cut_log(path):
    os.truncate(log_of(path), log_of(path).stat().st_size - 1)


HARMS = [delete, delete_database, delete_log, rename, replace, replace_log, truncate, cut, truncate_log, cut_log]


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder / "journal.db"


@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_is_lost_fails_the_next_batch_and_is_begun_anew(path, harm):
    with writing(path) as journal:
        save(journal, 1, b"one")
        harm(path)
        journal.write(JournalBatch(2, b"two", 0, False))
        lost, failed = collect(journal, 2)
        assert isinstance(lost, JournalLost)
        assert failed == BatchFailed(2, lost.reason)
        assert isinstance(save(journal, 3, b"three"), BatchFailed), "a part of the requests is no journal"
        assert save(journal, 4, b"all", reset=True) == BatchSaved(4)
        assert save(journal, 5, b"more") == BatchSaved(5)
    assert load(path) == [(4, b"all"), (5, b"more")]


@pytest.mark.parametrize(
    "harm", [pytest.param(harm, marks=() if harm in (delete, replace_log, cut) else pytest.mark.slow) for harm in HARMS]
)
def test_a_loss_is_noticed_while_nothing_is_written_and_told_once(path, harm):
    with writing(path) as journal:
        save(journal, 1, b"one")
        harm(path)
        (lost,) = collect(journal, 1)
        assert isinstance(lost, JournalLost)
        assert str(path) in lost.reason
        assert not journal.wait(2.2 * journal_module.LOOK_EVERY_S)
        assert save(journal, 2, b"all", reset=True) == BatchSaved(2)
    assert load(path) == [(2, b"all")]


def test_a_file_that_is_lost_while_it_is_written_to_has_saved_nothing(path, monkeypatch):
    """The batch went into a file without a name."""
    with writing(path) as journal:
        save(journal, 1, b"one")
        connection = journal._file._connection

        class Deleting:
            def execute(self, *statement):
                found = connection.execute(*statement)
                delete(path)
                return found

            def close(self):
                connection.close()

        journal._file._connection = Deleting()
        journal.write(JournalBatch(2, b"two", 0, False))
        lost, failed = collect(journal, 2)
        assert (type(lost), type(failed)) == (JournalLost, BatchFailed)
        assert save(journal, 3, b"all", reset=True) == BatchSaved(3)
    assert load(path) == [(3, b"all")]


def test_what_stands_in_the_place_of_a_lost_file_is_kept_under_another_name(path):
    with writing(path) as journal:
        save(journal, 1, b"one")
        delete(path)
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE accounts (name)")
        other.close()
        content = path.read_bytes()
        collect(journal, 1)
        assert save(journal, 2, b"all", reset=True) == BatchSaved(2)
        (aside,) = asides(path)
        assert aside.read_bytes() == content
    assert load(path) == [(2, b"all")]


def test_what_we_do_to_the_files_ourselves_is_no_loss(path):
    """Checkpoints, a log that is cut after a huge batch, pages that are given back."""
    with writing(path) as journal:
        for number in range(1, 300):
            assert save(journal, number, bytes(40_000), keep_from=number - 20) == BatchSaved(number)
        assert save(journal, 300, bytes(2 * MAX_LOG_BYTES), reset=True) == BatchSaved(300)
        for number in range(301, 900):
            assert save(journal, number, bytes(5000), reset=number % 50 == 0) == BatchSaved(number)


# --- the group commit ---


def test_after_a_loss_the_journal_is_begun_anew_at_once_and_after_another_one_later():
    group_commit = GroupCommit(JournalState.OK)
    group_commit.add([request_record(0)], ["a"], 10.0)
    group_commit.saved(group_commit.next_batch(10.0).number)
    assert group_commit.lost(20.0) == []
    assert (group_commit.state, group_commit.num_failures) == (JournalState.FAILED, 1)
    assert group_commit.may_begin_anew(20.0)
    anew = group_commit.begin_anew([request_record(0)], 20.0)
    assert anew.begins
    group_commit.saved(anew.number)
    assert group_commit.state is JournalState.OK
    assert group_commit.add([request_record(1)], ["b"], 21.0) == []
    assert group_commit.lost(21.0) == ["b"], "nobody waits for a journal that does not work"
    assert not group_commit.may_begin_anew(20.9 + RETRY_AFTER_S)
    assert group_commit.may_begin_anew(21.0 + RETRY_AFTER_S)


def test_a_batch_that_is_under_way_at_a_loss_is_waited_for():
    group_commit = GroupCommit(JournalState.OK)
    group_commit.add([request_record(0)], ["a"], 10.0)
    batch = group_commit.next_batch(10.0)
    assert group_commit.lost(10.1) == ["a"]
    assert not group_commit.may_begin_anew(10.1), "its result would be taken for that of another"
    assert group_commit.lost(10.1) == []
    assert group_commit.failed(batch.number, 10.2) == []
    assert group_commit.may_begin_anew(10.2)


def test_a_loss_means_nothing_without_a_journal():
    group_commit = GroupCommit(JournalState.OFF)
    assert group_commit.lost(1.0) == []
    assert group_commit.state is JournalState.OFF


# --- the core ---


def test_the_core_says_that_its_journal_is_lost_and_writes_all_requests_to_a_new_one():
    service = Service(JournalState.OK)
    service.join("one")
    service.submit("a", is_resumable=True)
    service.write()
    service.do(service.core.batch_written(JournalLost("it is gone"), service.now))
    assert service.say(m.StatusQuery(query_id=1)).report.journal == "failed"
    (line,) = service.events("journal lost")
    assert (line.level, line.facts["reason"]) == ("error", "it is gone")
    anew = service.core.next_batch(service.now)
    assert anew.begins
    service.do(service.core.batch_written(BatchSaved(anew.number), service.now))
    assert service.say(m.StatusQuery(query_id=1)).report.journal == "ok"
    assert service.events("journal works again")
    again, _ = restart([anew.payload])
    assert again.say(m.Attach(request_id="a")).found


@pytest.mark.parametrize("harm", [delete, truncate, delete_log])
def test_a_service_whose_journal_is_lost_loses_nothing_when_it_is_killed_after_it(path, harm):
    run_dir = path.parent
    with running_core(run_dir, journal=Journal(path)) as core:
        front = core.frontend()
        front.submit("a", [1, 2, 3], max_tokens=20, is_resumable=True)
        front.send(m.Attach(request_id="a"))
        assert front.receive(m.Attached).found
        harm(path)
        failures = core.core_process.core.requests.group_commit
        eventually(lambda: failures.num_failures == 1 and front.status().journal == "ok")
        kept = path.with_name("kept.db")
        shutil.copy(path, kept)  # what kill -9 would leave
        shutil.copy(log_of(path), log_of(kept))
        front.close()
    with running_core(run_dir, journal=Journal(kept)) as core:
        FakeExecutor(core.back)
        front = core.frontend()
        front.send(m.Attach(request_id="a"))
        assert front.receive(m.Attached).found
        front.gather(("a", 0))
        assert front.ends["a", 0].finish_reason == "length"
        front.close()
