"""`baton batch` with a service that runs batches: stopped anywhere, and with files that change meanwhile."""

import json
import os
import signal

import pytest

from tests.client.fake_batches import FakeBatches, Made
from tests.client.fake_server import MODEL, FakeServer
from tests.support.eventually import eventually

IDS = [f"id{index}" for index in range(5)]


@pytest.fixture
def batches():
    return FakeBatches()


@pytest.fixture
def server(batches):
    fake = FakeServer(batches=batches)
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def files(tmp_path):
    """Paths of an input with a prompt for each of `IDS`, and of its output."""
    path = tmp_path / "in.jsonl"
    path.write_text("".join(map(line, IDS)))
    return path, tmp_path / "out.jsonl"


@pytest.fixture
def note(files):
    """The file beside the output."""
    return files[1].with_name("out.jsonl.batch")


def line(custom_id, prompt=None):
    body = {"prompt": prompt or custom_id}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}) + "\n"


def answers(path):
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    return [(row["custom_id"], row["response"]["body"]["text"]) for row in rows]


ALL_ANSWERS = [(custom_id, f"answer to {custom_id}") for custom_id in IDS]


class Killed(BaseException):
    """The end of a command that nothing in it takes notice of."""


@pytest.fixture
def stop_while_it_runs(baton, clock, batches, files):
    """Run the command, and end it when it waits for the service's batch."""

    def kill(seconds):
        raise Killed

    def stop(*options):
        batches.is_held, clock.sleep = True, kill
        with pytest.raises(Killed):
            baton("batch", *files, *options)
        batches.is_held = False
        del clock.sleep

    return stop


def test_the_service_answers_and_forgets(baton, batches, files, note):
    done = baton("batch", *files)
    assert done.exit_code == 0, done.stderr
    assert answers(files[1]) == ALL_ANSWERS
    assert not note.exists()
    assert sorted(batches.deleted) == ["file-0", "file-1"]
    assert not batches.files


def test_a_killed_run_goes_on_with_its_batch(baton, batches, files, stop_while_it_runs):
    stop_while_it_runs()
    done = baton("batch", *files)
    assert (done.exit_code, "going on with batch_0" in done.stderr) == (0, True)
    assert answers(files[1]) == ALL_ANSWERS
    assert (batches.num_uploads, len(batches.made)) == (1, 1)


@pytest.mark.parametrize(
    "change",
    [lambda text: text + line("id5"), lambda text: text.replace('"id3"}', '"other"}'), lambda text: line("id0")],
    ids=["grown", "changed", "shorter"],
)
def test_a_batch_of_another_input_is_left_alone(baton, batches, files, note, stop_while_it_runs, change):
    stop_while_it_runs()
    before = files[0].read_text()
    files[0].write_text(change(before))
    done = baton("batch", *files)
    assert done.exit_code == 2
    assert "batch_0" in done.stderr
    assert "the input has changed" in done.stderr
    assert f"delete {note}" in done.stderr
    assert (batches.deleted, answers(files[1])) == ([], [])
    files[0].write_text(before)
    assert baton("batch", *files).exit_code == 0
    assert answers(files[1]) == ALL_ANSWERS


def test_without_its_note_a_changed_input_is_sent(baton, batches, files, note, stop_while_it_runs):
    stop_while_it_runs()
    files[0].write_text(line("id0", "other"))
    note.unlink()
    assert baton("batch", *files).exit_code == 0
    assert answers(files[1]) == [("id0", "answer to other")]
    assert len(batches.made) == 2


def test_a_batch_of_another_model_is_left_alone(baton, batches, files, stop_while_it_runs):
    stop_while_it_runs()
    done = baton("batch", *files, "--model", "other")
    assert done.exit_code == 2
    assert f"--model {MODEL}" in done.stderr
    assert batches.deleted == []
    assert baton("batch", *files, "--model", MODEL).exit_code == 0


def test_a_model_that_no_line_takes_from_the_option_changes_nothing(baton, files, stop_while_it_runs):
    files[0].write_text(line("id0").replace('{"prompt"', '{"model": "own", "prompt"'))
    stop_while_it_runs()
    assert baton("batch", *files, "--model", "other").exit_code == 0


def test_direct_does_not_compute_what_the_service_computes(baton, server, files, note, stop_while_it_runs):
    stop_while_it_runs()
    done = baton("batch", *files, "--direct")
    assert (done.exit_code, str(note) in done.stderr, server.requests) == (2, True, [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=str)
def test_stopped_before_the_answer_it_finds_its_batch(start_baton, baton, batches, files, note, number):
    batches.delay_s = 1.0
    for _ in range(3):  # those of others
        batches.make({"input_file_id": "file-x"})
    first = start_baton("batch", *files)
    eventually(lambda: len(batches.made) == 4)
    first.send_signal(number)
    assert first.wait(10) == (130 if number == signal.SIGINT else -number)
    if number == signal.SIGINT:
        assert "batch_3 goes on" in first.stderr.read()
    for _ in range(3):
        batches.make({"input_file_id": "file-y"})
    done = baton("batch", *files)
    assert (done.exit_code, "going on with batch_3" in done.stderr) == (0, True)
    assert answers(files[1]) == ALL_ANSWERS
    assert (batches.num_uploads, len(batches.made)) == (1, 7)
    assert not note.exists()


@pytest.mark.parametrize("is_made", [True, False])
def test_a_batch_whose_answer_is_lost_is_made_once(baton, batches, files, is_made):
    batches.script.append(Made(is_made=is_made))
    done = baton("batch", *files)
    assert done.exit_code == 0, done.stderr
    assert (batches.num_uploads, len(batches.made)) == (1, 1)
    assert answers(files[1]) == ALL_ANSWERS


@pytest.mark.parametrize("is_made", [True, False])
def test_an_upload_is_used_by_the_next_run(baton, batches, files, is_made):
    batches.script.append(Made(is_made=is_made))
    assert baton("batch", *files, "--reconnect-timeout", 0).exit_code == 1
    done = baton("batch", *files)
    assert done.exit_code == 0, done.stderr
    assert (batches.num_uploads, len(batches.made)) == (1, 1)
    assert answers(files[1]) == ALL_ANSWERS


def test_an_upload_of_another_input_is_not_used(baton, batches, files):
    batches.script.append(Made(is_made=False))
    assert baton("batch", *files, "--reconnect-timeout", 0).exit_code == 1
    files[0].write_text(line("id0", "other"))
    assert baton("batch", *files).exit_code == 0
    assert answers(files[1]) == [("id0", "answer to other")]
    assert not batches.files


def test_an_upload_that_is_gone_is_sent_again(baton, batches, files):
    batches.script.append(Made(is_made=False))
    assert baton("batch", *files, "--reconnect-timeout", 0).exit_code == 1
    batches.files.clear()
    assert baton("batch", *files).exit_code == 0
    assert answers(files[1]) == ALL_ANSWERS


@pytest.mark.parametrize("status", [400, 507])
def test_a_refused_batch_leaves_nothing(baton, batches, files, note, status):
    batches.script.append(status)
    done = baton("batch", *files)
    assert (done.exit_code, "no such batches" in done.stderr) == (1, True)
    assert (batches.files, note.exists()) == ({}, False)
    assert baton("batch", *files).exit_code == 0


def test_lines_without_a_result_keep_the_files(baton, batches, files, note):
    batches.without = {"id3"}
    done = baton("batch", *files)
    assert done.exit_code == 1
    assert "without a result of 1 line" in done.stderr
    assert f"delete {note}" in done.stderr.lower()
    assert (batches.deleted, note.exists()) == ([], True)
    batches.without = set()
    note.unlink()
    assert baton("batch", *files).exit_code == 0
    assert sorted(answers(files[1])) == ALL_ANSWERS


def test_a_note_that_is_left_when_all_is_done_is_said_to_be(baton, batches, files, note):
    """The run was killed after the last result, before the service was told to forget the batch."""
    assert baton("batch", *files).exit_code == 0
    for batch_id in ("batch_0", None):
        content = {"url": "u", "input_file_id": "file-0", "input_digest": "", "model": "m", "batch_id": batch_id}
        note.write_text(json.dumps(content))
        done = baton("batch", *files)
        assert done.exit_code == 0
        assert f"{note} is left of {batch_id or 'file-0'}" in done.stderr


def test_a_cancelled_batch_is_forgotten_and_the_rest_sent(baton, batches, files, note):
    batches.without, batches.status = {"id3"}, "cancelled"
    done = baton("batch", *files)
    assert (done.exit_code, "batch_0 is cancelled" in done.stderr, note.exists()) == (1, True, False)
    batches.without, batches.status = set(), "completed"
    assert baton("batch", *files).exit_code == 0
    assert sorted(answers(files[1])) == ALL_ANSWERS


def test_results_that_are_gone_are_said_to_be(baton, batches, files, note, stop_while_it_runs):
    stop_while_it_runs()
    batches.end(batches.made["batch_0"])
    batches.files.clear()
    done = baton("batch", *files)
    assert done.exit_code == 1
    assert "the results of batch_0 are gone" in done.stderr
    assert f"delete {note}" in done.stderr.lower()
    note.unlink()
    assert baton("batch", *files).exit_code == 0
    assert answers(files[1]) == ALL_ANSWERS


def test_a_batch_that_is_forgotten_is_sent_again(baton, batches, files, stop_while_it_runs):
    stop_while_it_runs()
    batches.made.clear()
    done = baton("batch", *files)
    assert (done.exit_code, "batch_0 is not there any more" in done.stderr) == (0, True)
    assert answers(files[1]) == ALL_ANSWERS


def test_a_batch_of_another_service_is_left_alone(baton, server, batches, files, note, stop_while_it_runs):
    stop_while_it_runs()
    with FakeServer(batches=FakeBatches()) as other:
        done = baton("batch", *files, "--url", other.url)
        assert (done.exit_code, f"--url {server.url}" in done.stderr) == (2, True)
        other.batches.made = batches.made  # the same service under another address
        other.batches.files = batches.files
        assert baton("batch", *files, "--url", other.url).exit_code == 0
    assert answers(files[1]) == ALL_ANSWERS


def test_a_note_of_something_else_is_left_alone(baton, batches, files, note):
    for content in ("", "my notes", '{"url": "http://x", "batch_id": "batch_0"}'):
        note.write_text(content)
        done = baton("batch", *files)
        assert (done.exit_code, str(note) in done.stderr, note.read_text()) == (2, True, content)
    assert batches.num_uploads == 0


def test_results_are_on_the_disk_before_the_service_forgets_them(baton, batches, files, monkeypatch):
    synced_at = []

    def noted(descriptor):
        if os.path.samestat(os.fstat(descriptor), files[1].stat()):
            synced_at.append((len(files[1].read_text().splitlines()), len(batches.deleted)))

    monkeypatch.setattr(os, "fsync", noted)
    assert baton("batch", *files).exit_code == 0
    assert synced_at[0] == (5, 0)
