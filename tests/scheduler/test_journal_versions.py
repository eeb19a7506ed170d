"""A journal of every version that ever was is read by this tree, and its records change with a new version only."""

import shutil
from dataclasses import replace

import msgspec
import pytest

from scheduler_svc.core.requests.journal_records import FORMAT_VERSION
from scheduler_svc.core.requests.recovery import Legacy
from tests.scheduler.journals.write import FOLDER, Golden, example, fields_of_records
from tests.support.journals import asides, log_of, read

HOW = (
    "The journal's records have changed. A field may only be added, at the end and with a default that says what "
    "records without it meant. Raise FORMAT_VERSION in scheduler_svc/core/requests/journal_records.py, give the field "
    "a value in tests/scheduler/journals/write.py, run `python -m tests.scheduler.journals.write`, and add the two "
    "files that it writes. Files of earlier versions stay as they are."
)
VERSIONS = range(1, FORMAT_VERSION + 1)


def golden(version):
    path = FOLDER / f"v{version}.json"
    assert path.exists(), f"{path} is missing. {HOW}"
    return msgspec.json.decode(path.read_bytes(), type=Golden)


def test_the_records_are_those_of_this_version():
    assert fields_of_records() == golden(FORMAT_VERSION).fields, HOW


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
    assert (legacy.requests, legacy.crashes) == (expected.requests, expected.crashes)
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
