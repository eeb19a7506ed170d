"""A journal on real files, and what a test does with it."""

import shutil
import sqlite3
from contextlib import closing, contextmanager

from scheduler_svc.core.requests.group_commit import BatchFailed, BatchSaved, JournalBatch
from scheduler_svc.server.journal import Journal

DEADLINE_S = 60.0


@contextmanager
def writing(path, **options):
    """A journal that has been started. Afterwards it is closed."""
    journal = Journal(path, **options)
    journal.start()
    try:
        yield journal
    finally:
        journal.close()


def collect(journal, count):
    """So many results, or more if they come together."""
    results = []
    while len(results) < count:
        assert journal.wait(DEADLINE_S), f"{len(results)} results of {count}"
        results += journal.results()
    return results


def save(journal, number, payload=b"x", keep_from=0, reset=False, version=1):
    """Write a batch and wait for what becomes of it."""
    journal.write(JournalBatch(number, payload, number if reset else keep_from, reset, reset, version))
    result = None
    while not isinstance(result, BatchSaved | BatchFailed):
        *_, result = collect(journal, 1)
    assert result.number == number
    return result


def fill(path, payloads):
    """A journal with these batches, closed in order."""
    with writing(path) as journal:
        for number, payload in enumerate(payloads, 1):
            assert save(journal, number, payload) == BatchSaved(number)


def read(path, **options):
    """What a new life finds in a file, which stays as it is."""
    journal = Journal(path, **options)
    try:
        return journal.load()
    finally:
        journal.close()


def load(path):
    """Numbers and payloads in a file that is whole."""
    loaded = read(path)
    assert not loaded.damage
    return loaded.batches


def version_in(path):
    """Of the format, as a file says it that may be open."""
    copy = path.with_name("copy.db")
    for suffix in ("", "-wal"):
        if (source := path.with_name(path.name + suffix)).exists():
            shutil.copy(source, copy.with_name(copy.name + suffix))
    with closing(sqlite3.connect(copy)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0] & 0xFFFF


def log_of(path):
    """The database's write-ahead log."""
    return path.with_name(path.name + "-wal")


def asides(path):
    """What was moved aside, databases and logs."""
    return sorted(path.parent.glob(f"{path.name}.corrupt-*"))
