"""The check finds what is wrong: each of its counts, moved by hand."""

import subprocess
import sys
from contextlib import closing

import pytest

from scheduler_svc.store import batch_results, check, files, responses
from scheduler_svc.store.database import connect
from tests.store import rows

FAULTS = {
    "response with a wrong size: ann/r": "UPDATE response_contents SET tail = x'00'",
    "contents without a response: 9": "INSERT INTO response_contents VALUES (9, x'', x'', x'', x'', x'', x'')",
    "file with a wrong size: ann/f": "UPDATE file_chunks SET data = x'00'",
    "chunk at a wrong place: 1": "UPDATE file_chunks SET start = 7",
    "chunk without a file: 9": "INSERT INTO file_chunks VALUES (9, 9, 0, x'00')",
    "deleted file with a wrong size: ann/3": "UPDATE discarded_files SET num_bytes = 0",
    "deleted batch with a wrong size: ann/2": "UPDATE discarded_batches SET num_bytes = 0",
    "batch with a wrong size: ann/b": "UPDATE batch_results SET custom_id = 'ü'",
    "batch with a wrong count: ann/b": "UPDATE batches SET failed = 1",
    "result without a batch: 9": "INSERT INTO batch_results VALUES (9, 9, 0, '', 0, x'')",
    "owner with a wrong sum: ann": "UPDATE owners SET used_bytes = used_bytes + 1",
    "owner with a wrong sum: bob": "INSERT INTO owners VALUES ('bob', 1)",
}


@pytest.fixture
def filled(tmp_path):
    with closing(connect(tmp_path)) as store:
        responses.add(store, rows.response("r"))
        rows.add_file(store, "f", b"content")
        rows.start_batch(store, "b", 2)
        batch_results.add_results(store, "ann", "b", 3.0, [rows.result(0)])
        files.begin(store, rows.file("unfinished"))
        rows.add_file(store, "deleted", b"content")
        files.delete(store, "ann", "deleted", 3.0)
        rows.start_batch(store, "expired", 2, expires_at=2.5)
        batch_results.add_results(store, "ann", "expired", 2.0, [rows.result(0)])
        store.execute("DELETE FROM batches WHERE batch_id = 'expired'")
        yield store


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(filled, fault):
    assert check.check(filled) == []
    filled.execute(FAULTS[fault])
    assert fault in check.check(filled)


def test_the_command(filled, tmp_path):
    command = [sys.executable, "-m", "scheduler_svc.store.check", str(tmp_path)]
    whole = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (whole.returncode, whole.stdout) == (0, "the store is whole\n")
    filled.execute(FAULTS["owner with a wrong sum: ann"])
    broken = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (broken.returncode, broken.stdout) == (1, "owner with a wrong sum: ann\n")
