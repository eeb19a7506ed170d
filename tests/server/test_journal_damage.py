"""A journal that was damaged at rest: what is whole is used, the rest is a loss that is logged, nothing is wrong."""

import shutil
import sqlite3
from array import array

import pytest

from common import messages as m
from scheduler_svc.core.requests.group_commit import BatchSaved
from scheduler_svc.core.requests.journal_records import (
    FORMAT_VERSION,
    Ending,
    EndRecord,
    Progress,
    RequestRecord,
    StepRecord,
    SubmitRecord,
    encode,
)
from scheduler_svc.core.requests.recovery import Legacy
from scheduler_svc.server import journal_file
from scheduler_svc.server.journal import Journal
from tests.support.core import FakeExecutor, running_core
from tests.support.journals import asides, fill, load, log_of, read, save, version_in, writing

PARTS = 64  # of the bytes of a file; `make test` flips those of one, `make test-slow` a third
FRAME_BYTES = 24 + 4096  # of the log, behind its header of 32
LOGPROBS = [2, 0, 21]  # of each request
PROMPTS = {f"r{i}": array("i", range(100 * i + 1, 100 * i + 41)).tobytes() for i in range(3)}


def request(arrival):
    name = f"r{arrival}"
    params = m.SamplingParams(max_tokens=90, logprobs=LOGPROBS[arrival])
    submit = m.Submit(request_id=name, prompt=PROMPTS[name], params=params, is_resumable=True)
    return RequestRecord(arrival, 1000.0, SubmitRecord.of(submit), (Progress(),), tokenizer="t")


def step(token, *arrivals, position):
    columns = (array("q", arrivals), array("i", [token] * len(arrivals)), array("i", [position] * len(arrivals)))
    counts = array("i", [LOGPROBS[arrival] for arrival in arrivals])
    entries = range(sum(counts))
    ids, values = array("i", [token + i for i in entries]), array("f", [-token - i / 32 for i in entries])
    return StepRecord("model", *(column.tobytes() for column in (*columns, counts, ids, values)))


BATCHES = [
    [request(0), request(1)],
    [step(7, 0, 1, position=0), request(2)],
    *([step(10 + i, 0, 1, position=i)] for i in range(1, 5)),
    [step(50, 2, position=0), EndRecord(1, 5, Ending("stop"), 5)],
]


def requests_of(batches):
    """What a journal of these gives."""
    return Legacy.of(journal_file.Loaded([(i, encode(batch)) for i, batch in enumerate(batches)], 0.0, 0.0)).requests


TRUTH = requests_of(BATCHES)


def make(path):
    """A database in which all is, and the same as a process leaves it that was killed: most is in the log."""
    fill(path, [encode(batch) for batch in BATCHES])
    killed = path.with_name("killed.db")
    with writing(killed) as journal:
        for number, batch in enumerate(BATCHES, 1):
            save(journal, number, encode(batch))
        copy = path.with_name("copy.db")
        shutil.copy(killed, copy)
        shutil.copy(log_of(killed), log_of(copy))
    return {"database": (path.read_bytes(), b""), "log": (copy.read_bytes(), log_of(copy).read_bytes())}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make(tmp_path_factory.mktemp("whole") / "journal.db")


def take_up(path):
    """What a new life does with a file. Returns what it takes up."""
    journal = Journal(path)
    try:
        loaded = journal.load()
        legacy = Legacy.of(loaded)
        if legacy.damage:
            journal.set_aside(legacy.damage, loaded.batches)
        journal.start()
        assert save(journal, 1000, b"", reset=True) == BatchSaved(1000), "a new life can write"
    finally:
        journal.close()
    return legacy


def check_true(requests):
    """Each is as it was, or lacks tokens at its end, or its end."""
    truth = {request.submit.request_id: request for request in TRUTH}
    for found in requests:
        true = truth[found.submit.request_id]
        assert found.submit == true.submit
        (progress,), (whole,) = found.progress, true.progress
        assert whole.token_ids.startswith(progress.token_ids)
        assert whole.logprob_ids.startswith(progress.logprob_ids)
        assert whole.logprobs.startswith(progress.logprobs)
        width = len(progress.token_ids) * true.submit.params.logprobs
        assert len(progress.logprob_ids) == len(progress.logprobs) == width
        assert progress.ending in (None, whole.ending)


def in_a_header(at):
    """Whether a byte of the log is in its header or in that of a frame; damage to the others is all of one kind."""
    return at < 32 or (at - 32) % FRAME_BYTES < 24


@pytest.mark.parametrize("which", ["database", "log"])
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS, 3))])
def test_a_flipped_bit_is_a_logged_loss_or_none_at_all(files, tmp_path, which, part):
    database, log = files[which]
    target = log or database
    for at in [at for at in range(len(target)) if not log or in_a_header(at) or at % 97 == 0][part::PARTS]:
        folder = tmp_path / str(at)
        folder.mkdir()
        path = folder / "journal.db"
        flipped = target[:at] + bytes([target[at] ^ 1 << at * 7 % 8]) + target[at + 1 :]
        path.write_bytes(database if log else flipped)
        if log:
            log_of(path).write_bytes(flipped)
        legacy = take_up(path)
        check_true(legacy.requests)
        if legacy.damage:
            assert asides(path)
        elif legacy.requests != TRUTH:
            is_in_last_frame = log and at >= len(log) - FRAME_BYTES  # then it may be a kill that cut the log short
            assert is_in_last_frame, at
            assert legacy.requests == requests_of(BATCHES[:-1])
        shutil.rmtree(folder)


# --- what is whole is used ---


def flip(path, old):
    """Damage the one place in a file where these bytes stand."""
    content = path.read_bytes()
    assert content.count(old) == 1
    at = content.index(old) + len(old) // 2
    path.write_bytes(content[:at] + bytes([content[at] ^ 0x04]) + content[at + 1 :])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.db"


def test_a_flipped_bit_in_a_prompt_costs_this_request_and_no_other(path):
    """It used to answer another prompt."""
    fill(path, [encode(batch) for batch in BATCHES])
    flip(path, PROMPTS["r1"][8:])
    legacy = take_up(path)
    assert [request.submit.request_id for request in legacy.requests] == ["r0", "r2"]
    assert legacy.requests == [TRUTH[0], TRUTH[2]]
    assert (legacy.damage, legacy.num_damaged, legacy.cut) == ("records are damaged", 1, [])


def test_requests_on_both_sides_of_a_broken_page_are_taken_up(path):
    fill(path, [encode([request(0)]), *([bytes(3000)] * 40), encode([request(2)])])
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(4096))
    legacy = take_up(path)
    assert legacy.damage
    assert [request.submit.request_id for request in legacy.requests] == ["r0", "r2"]


def test_an_error_while_rows_are_read_is_damage_and_no_reason_to_stay_down(path, monkeypatch):
    """An I/O error, or damage that SQLite does not look for at the opening."""
    fill(path, [encode(batch) for batch in BATCHES])

    def broken(connection):
        rows, _ = journal_file_read_rows(connection)
        return rows[:2], "disk I/O error"

    journal_file_read_rows = journal_file.read_rows
    monkeypatch.setattr(journal_file, "read_rows", broken)
    legacy = take_up(path)
    assert legacy.damage == "disk I/O error"
    assert [request.submit.request_id for request in legacy.requests] == ["r0", "r1", "r2"]


def test_a_missing_batch_is_noticed(path):
    fill(path, [encode(batch) for batch in BATCHES])
    with sqlite3.connect(path) as thief:
        thief.execute("DELETE FROM batches WHERE number = 4")
    thief.close()
    legacy = take_up(path)
    assert legacy.damage == "batches are missing between 1 and 7"
    assert legacy.cut == ["r0", "r1"]
    check_true(legacy.requests)


@pytest.mark.parametrize("harm", ["prompt", "header", "log"])
def test_a_service_with_a_damaged_journal_starts_says_so_once_and_serves_what_is_whole(path, capsys, harm):
    make_killed = make(path)
    database, log = make_killed["database" if harm != "log" else "log"]
    path.write_bytes(database)
    if log:
        log_of(path).write_bytes(log[:40] + bytes([log[40] ^ 1]) + log[41:])
    if harm == "prompt":
        flip(path, PROMPTS["r0"][8:])
    if harm == "header":
        path.write_bytes(database[:70] + b"\xff" + database[71:])
    with running_core(path.parent, journal=Journal(path)) as core:
        FakeExecutor(core.back)
        front = core.frontend()
        front.send(m.Attach(request_id="r1"))
        found = front.receive(m.Attached).found
        assert found == (harm != "log")
        if found:
            front.gather(("r1", 0))
            assert front.tokens["r1", 0][:5] == [7, 11, 12, 13, 14]
        assert front.status().journal == "ok"
        front.close()
    assert capsys.readouterr().out.count("journal damaged") == 1
    assert asides(path)
    assert not read(path).damage


# --- whose file it is ---


def test_a_header_that_is_damaged_is_not_taken_for_another_programs_or_versions(path):
    for at in (3, 63, 70):
        fill(path, [encode(batch) for batch in BATCHES])
        content = path.read_bytes()
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert take_up(path).damage
        path.unlink()


def test_a_whole_journal_is_not_moved_aside(path):
    fill(path, [encode(batch) for batch in BATCHES])
    assert take_up(path).requests == TRUTH
    assert not asides(path)
    assert load(path) == [(1000, b"")]


def test_what_is_whole_of_a_damaged_file_survives_until_the_journal_is_begun_anew(files, tmp_path):
    """A life that is killed before that loses nothing more."""
    path = tmp_path / "journal.db"
    database, log = files["log"]
    path.write_bytes(database)
    log_of(path).write_bytes(log[:-9000] + bytes(100) + log[-8900:])
    journal = Journal(path)
    loaded = journal.load()
    legacy = Legacy.of(loaded)
    assert legacy.damage
    assert legacy.requests
    journal.set_aside(legacy.damage, loaded.batches)
    journal.close()
    again = read(path)
    assert (again.batches, again.damage) == (loaded.batches, "")
    assert version_in(path) == FORMAT_VERSION
    assert len(asides(path)) == 2
