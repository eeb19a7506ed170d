"""A journal of every version that ever was is read by this tree, and its records change with a new version only."""

import shutil
from dataclasses import replace

import msgspec
import pytest

from scheduler_svc.core.requests.group_commit import GroupCommit, JournalState
from scheduler_svc.core.requests.journal_records import (
    FORMAT_VERSION,
    Ending,
    EndRecord,
    Record,
    RequestRecord,
    version_of,
)
from scheduler_svc.core.requests.recovery import Legacy
from scheduler_svc.server import journal_database
from tests.server.journals.write import FOLDER, Golden, example, fields_of_records
from tests.support.disk import request_record
from tests.support.journals import asides, collect, log_of, read, save, version_in, writing

HOW = (
    "The journal's records have changed. A field may only be added, at the end and with a default that says what "
    "records without it meant. Raise FORMAT_VERSION in scheduler_svc/core/requests/journal_records.py, give the field "
    "a value in tests/server/journals/write.py, run `python -m tests.server.journals.write`, and add the two "
    "files that it writes. Files of earlier versions stay as they are."
)
VERSIONS = range(1, FORMAT_VERSION + 1)
RENAMED = {"CrashRecord": "LifeRecord"}
# What an older release may drop without harm was added without a version: it can go on with such a journal.
HARMLESS_FIELDS, HARMLESS_KINDS = {("LifeRecord", "executors"), ("LifeRecord", "tasks")}, {"ExecutorRecord"}


def golden(version):
    path = FOLDER / f"v{version}.json"
    assert path.exists(), f"{path} is missing. {HOW}"
    read = msgspec.json.decode(path.read_bytes(), type=Golden)
    read.fields = {RENAMED.get(kind, kind): fields for kind, fields in read.fields.items()}
    return read


def versioned(fields_of):
    """The fields of each kind of record, but for the harmless ones."""
    return {
        kind: [field for field in fields if (kind, field.split(":")[0]) not in HARMLESS_FIELDS]
        for kind, fields in fields_of.items()
        if kind not in HARMLESS_KINDS
    }


def test_the_records_are_those_of_this_version():
    assert versioned(fields_of_records()) == versioned(golden(FORMAT_VERSION).fields), HOW


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_were_only_added_at_the_end_with_defaults(version):
    now = fields_of_records()
    for kind, fields in golden(version).fields.items():
        assert now[kind][: len(fields)] == fields, HOW
        assert all("=" in field for field in now[kind][len(fields) :]), HOW


@pytest.mark.parametrize("version", VERSIONS)
def test_a_journal_of_each_version_is_read(version, tmp_path):
    path = tmp_path / "journal.db"
    shutil.copy(FOLDER / f"v{version}.db", path)
    before, expected = path.read_bytes(), golden(version)
    legacy = Legacy.of(replace(read(path), age_s=0.0))
    assert (legacy.requests, legacy.life.crashes) == (expected.requests, expected.crashes)
    assert not legacy.damage
    assert not asides(path)
    assert not log_of(path).exists()
    assert path.read_bytes() == before, "reading changes nothing"


def test_the_example_leaves_no_field_at_its_default():
    """Or a golden journal would not show whether the field is read."""
    seen = set()

    def look(record):
        for field in msgspec.structs.fields(record):
            value = getattr(record, field.name)
            if field.required or value != field.default:
                seen.add((type(record).__name__, field.name))
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, msgspec.Struct):
                    look(part)

    for batch in example():
        for record in batch:
            look(record)
    fields = {(kind, field.split(":")[0]) for kind, fields in fields_of_records().items() for field in fields}
    assert seen == fields


def fields_by_version():
    """Of each kind of record: its fields, each with the version that added it."""
    added = {}
    for version in VERSIONS:
        for kind, fields in golden(version).fields.items():
            for field in fields:
                added.setdefault((kind, field.split(":")[0]), version)
    harmless = HARMLESS_FIELDS | {
        (kind, field.split(":")[0]) for kind in HARMLESS_KINDS for field in fields_of_records()[kind]
    }
    return added | dict.fromkeys(harmless, 1)


ADDED = fields_by_version()


def as_of(record, version):
    """A record as it would be had nothing been asked for that a later version added."""
    kept = {}
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Record):
            value = as_of(value, version)
        elif isinstance(value, tuple):
            value = tuple(as_of(part, version) if isinstance(part, Record) else part for part in value)
        kept[field.name] = value if ADDED[type(record).__name__, field.name] <= version else field.default
    return type(record)(**kept)


def needed(record):
    """The version that added the last of the fields that say something, or the kind of the record."""
    versions = [min(v for (kind, _), v in ADDED.items() if kind == type(record).__name__)]
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        if field.required or value != field.default:
            versions.append(ADDED[type(record).__name__, field.name])
        parts = value if isinstance(value, tuple) else (value,)
        versions += [needed(part) for part in parts if isinstance(part, Record)]
    return max(versions)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_record_needs_the_version_of_what_it_says(version):
    records = [as_of(r, version) for batch in example() for r in batch if needed(as_of(r, version)) <= version]
    assert max(map(needed, records)) == version, HOW
    for record in records:
        assert version_of(record) == needed(record), HOW


def records_that_need(version):
    """Of one request, and of its end."""
    request = next(r for batch in example() for r in batch if isinstance(r, RequestRecord) and r.submit.is_resumable)
    if version in (4, 6):
        requests = (r for batch in example() for r in batch if isinstance(r, RequestRecord))
        request = next(r for r in requests if version_of(as_of(r, version)) == version)
    records = [as_of(request, version), EndRecord(request.arrival, 0, Ending("stop"), 0)]
    assert version_of(records[0]) == version
    return records


@pytest.mark.parametrize("later", VERSIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_has_the_version_that_its_records_need(version, later, tmp_path):
    """So an older release goes on with it, unless something was asked for that it would drop."""
    path = tmp_path / "journal.db"
    shutil.copy(FOLDER / f"v{version}.db", path)
    with writing(path) as journal:
        group_commit = GroupCommit(JournalState.OK, first_number=1000)
        group_commit.add(records_that_need(1), [], 0.0)
        journal.write(group_commit.next_batch(0.0))
        collect(journal, 1)
        group_commit.saved(1000)
        assert version_in(path) == version, "neither opening the file nor what that version knows changes it"
        group_commit.add(records_that_need(later), [], 1.0)
        journal.write(group_commit.next_batch(1.0))
        collect(journal, 1)
        assert version_in(path) == max(version, later)


def test_a_new_file_is_of_the_first_version(tmp_path):
    path = tmp_path / "journal.db"
    with writing(path) as journal:
        assert version_in(path) == 1
        save(journal, 1, version=3)
        save(journal, 2, version=2, keep_from=2)
        assert version_in(path) == 3, "it is not known what the row before needed"


def test_a_version_that_no_row_needs_any_more_goes_with_the_last_row_that_did(tmp_path):
    path = tmp_path / "journal.db"
    with writing(path) as journal:
        save(journal, 1, version=FORMAT_VERSION)
        group_commit = GroupCommit(JournalState.OK, first_number=2)
        journal.write(group_commit.begin_anew([request_record(0)], 0.0))
        collect(journal, 1)
        assert version_in(path) == 1


def test_a_row_that_is_not_written_raises_no_version(tmp_path, monkeypatch):
    path = tmp_path / "journal.db"
    monkeypatch.setattr(journal_database, "INSERT", "INSERT INTO batches VALUES (?, ?, ?, NULL, ?)")
    with writing(path) as journal:
        assert "has 4 columns" in save(journal, 1, version=2).reason
        assert version_in(path) == 1
