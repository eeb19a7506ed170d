"""`baton batch` against a service that misbehaves."""

import json
import random
import resource
import signal
import subprocess

import pytest
from fastapi.responses import PlainTextResponse

from scheduler_svc.client.batch.sender import RetryPolicy
from tests.client.fake_server import MODEL, NEVER, Drop, Refuse, Wait
from tests.support.eventually import eventually


@pytest.fixture
def files(tmp_path):
    """Paths of an input with the prompts `p0` .. `p9`, alternately completions and chats, and of its output."""
    lines = []
    for index in range(10):
        url, body = "/v1/completions", {"prompt": f"p{index}", "max_tokens": 2}
        if index % 2:
            url, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": f"p{index}"}]}
        lines.append(json.dumps({"custom_id": f"id{index}", "method": "POST", "url": url, "body": body}))
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path, tmp_path / "out.jsonl"


def results(path):
    """Results by custom_id, each of which occurs once, in the order of the file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_id = {line["custom_id"]: line for line in lines}
    assert len(by_id) == len(lines)
    return by_id


def test_every_line_gets_its_answer(baton, server, files):
    done = baton("batch", *files)
    assert done.exit_code == 0
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("10 of 10 lines in ")
    answers = results(files[1])
    assert answers.keys() == {f"id{index}" for index in range(10)}
    assert answers["id0"]["response"]["status_code"] == 200
    assert answers["id0"]["response"]["body"]["choices"][0]["text"] == "w0 w1 "
    assert answers["id1"]["response"]["body"]["choices"][0]["message"]["content"].startswith("w0 w1 w2")
    assert all(request["model"] == MODEL for request in server.requests)


def test_concurrency_is_bounded(baton, server, files):
    server.script.extend([Wait(lambda: server.open_most == 3)] * 3)
    assert baton("batch", *files, "--concurrency", 3).exit_code == 0
    assert server.open_most == 3


def test_overload_restarts_and_broken_connections_are_tried_again(baton, server, files):
    server.script.extend([Refuse(429), Refuse(503), Drop(accepted=False), Refuse(502), Refuse(429, retry_after="0.2")])
    done = baton("batch", *files, "--concurrency", 1)
    assert done.exit_code == 0
    assert "5 retries" in done.stderr
    assert len(server.requests) == 15
    assert all(line["error"] is None for line in results(files[1]).values())


def test_an_accepted_request_is_not_computed_again(baton, server, files):
    """Its answer was on the way when the connection broke: it is fetched, and is what it would have been."""
    assert baton("batch", *files).exit_code == 0
    undisturbed = bodies(files[1])
    files[1].unlink()
    server.requests.clear()
    server.script.extend([Drop(), Drop(), Drop()])
    server.resume_script.extend([Drop(after_tokens=1), Refuse(503), None])
    done = baton("batch", *files, "--concurrency", 1)
    assert done.exit_code == 0
    assert len(server.requests) == 10
    assert [last for _, last in server.resumed] == [None] * 5, "nothing was kept of what broke off"
    assert bodies(files[1]) == undisturbed


def bodies(path):
    """Answers by custom_id, without what differs from run to run."""
    answers = {}
    for custom_id, line in results(path).items():
        body = line["response"]["body"]
        assert body.pop("id") == line["response"]["request_id"]
        answers[custom_id] = body
    return answers


def test_an_answer_that_ends_in_an_error_has_it(baton, server, files):
    server.script.append(Drop())
    server.resume_script.append(Drop(after_tokens=1, error_code="deadline_exceeded"))
    assert baton("batch", *files, "--concurrency", 1).exit_code == 1
    assert results(files[1])["id0"]["error"] == {"code": "deadline_exceeded", "message": "no more"}


def test_silence_is_no_reason_to_compute_it_twice(baton, server, files):
    server.script.append(NEVER)
    done = baton("batch", *files, "--timeout", 2)
    assert done.exit_code == 0
    assert "1 retries" in done.stderr
    assert (len(server.requests), len(server.resumed)) == (10, 1)
    assert all(line["error"] is None for line in results(files[1]).values())
    assert len(server.known) == 10, "each line is one request, however often it was asked for"


def test_without_retries_nothing_is_kept_for_later(baton, server, files):
    server.script.append(Drop())
    assert baton("batch", *files, "--retries", 0).exit_code == 1
    assert not any("resumable" in request for request in server.requests)
    assert server.resumed == []


def test_retry_after_is_a_lower_bound():
    policy = RetryPolicy(5)
    assert policy.delay_s(0, "7") == 7.0
    assert policy.delay_s(0, "Wed, 21 Oct 2026 07:28:00 GMT") < 1
    random.seed(1)
    delays = [policy.delay_s(30, None) for _ in range(100)]
    assert 0 < min(delays) < max(delays) <= 30.0


@pytest.mark.parametrize(
    ("action", "code", "status", "message"),
    [
        (Refuse(400, "too long"), "http_400", 400, "too long"),
        (Refuse(429, "busy"), "http_429", 429, "busy"),
        (Refuse(500, "a bug"), "http_500", 500, "a bug"),
        (PlainTextResponse("<html>hello"), "http_200", 200, "<html>hello"),
        (Drop(accepted=False), "connection_error", None, ""),
    ],
    ids=["400", "429", "500", "no JSON", "no answer"],
)
def test_a_line_that_fails_for_good_has_its_error(baton, server, files, action, code, status, message):
    server.by_prompt["p4"] = action
    done = baton("batch", *files, "--retries", 2)
    assert done.exit_code == 1
    assert "1 of 10 lines failed" in done.stderr
    line = results(files[1])["id4"]
    assert line["error"]["code"] == code
    assert message in line["error"]["message"]
    assert (line["response"] or {"status_code": None})["status_code"] == status
    assert sum(other["error"] is not None for other in results(files[1]).values()) == 1
    again = baton("batch", *files)
    assert again.exit_code == 1, "it still failed"
    assert "10 of 10 lines have a result already, 1 of them a failure" in again.stderr


def test_a_service_that_stays_away_ends_the_run_and_blames_no_line(baton, server, files):
    server.by_prompt["p6"] = Refuse(503, "no executor")
    done = baton("batch", *files, "--retries", 1, "--concurrency", 1)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (3, "Error: no executor (HTTP 503)")
    assert list(results(files[1])) == [f"id{index}" for index in range(6)]
    server.by_prompt.clear()
    assert baton("batch", *files).exit_code == 0
    assert len(results(files[1])) == 10


def test_ordered_keeps_the_order(baton, server, files):
    server.by_prompt["p0"] = Wait(lambda: len(server.requests) == 10)
    assert baton("batch", *files, "--ordered").exit_code == 0
    assert list(results(files[1])) == [f"id{index}" for index in range(10)]


def test_without_ordered_lines_come_as_they_finish(baton, server, files):
    server.by_prompt["p0"] = Wait(lambda: len(server.requests) == 10)
    assert baton("batch", *files, "--concurrency", 2).exit_code == 0
    assert list(results(files[1])) != [f"id{index}" for index in range(10)]


def test_bad_input_is_reported_before_anything_is_sent(baton, server, files):
    files[0].write_text(files[0].read_text() + "oops\n")
    done = baton("batch", *files)
    assert done.exit_code == 2
    assert "line 11: " in done.stderr
    assert server.requests == []
    assert not files[1].exists()


def test_input_that_can_be_read_once_is_refused(start_baton, server, files):
    """It is read several times: what a pipe has was gone after the first."""
    process = start_baton("batch", "--direct", "/dev/stdin", files[1], stdin=subprocess.PIPE)
    _, said = process.communicate(files[0].read_text(), timeout=30)
    assert (process.returncode, "/dev/stdin is no regular file" in said) == (2, True)
    assert (server.requests, files[1].exists()) == ([], False)


def test_lines_that_are_not_there_any_more_are_a_failure(baton, server, files):
    """The input is written again after it was checked, and not while it is read."""
    first_lines = "".join(files[0].read_text().splitlines(keepends=True)[:4])
    server.looked = lambda path: path == "/v1/models" and files[0].write_text(first_lines)
    done = baton("batch", *files)
    assert (done.exit_code, "4 of 10 lines" in done.stderr.splitlines()[-1]) == (1, True)


def test_a_file_of_prompts(baton, server, tmp_path):
    prompts, output = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    prompts.write_text("Who was Romeo?\n\nAnd Juliet?\n")
    done = baton("batch", "--prompts", prompts, output)
    assert (done.exit_code, results(output).keys()) == (0, {"1", "3"})
    asked = {(request["prompt"], request["max_tokens"]) for request in server.requests}
    assert asked == {("Who was Romeo?", 256), ("And Juliet?", 256)}
    done = baton("batch", "--prompts", prompts, "--chat", "--max-tokens", 2, tmp_path / "chats.jsonl")
    assert done.exit_code == 0
    asked = {message["content"] for request in server.requests[2:] for message in request["messages"]}
    assert asked == {"Who was Romeo?", "And Juliet?"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["in", "out", "--prompts", __file__], "an OUT.jsonl, and no IN.jsonl"),
        (["in"], "an IN.jsonl and an OUT.jsonl"),
        (["/nowhere", "out"], "File '/nowhere' does not exist"),
        ([__file__, "out", "--chat"], "--chat and --max-tokens are for --prompts"),
        ([__file__, "out", "--max-tokens", "5"], "--chat and --max-tokens are for --prompts"),
        (["--prompts", __file__, __file__], "are the same file"),
    ],
)
def test_what_is_wrong_usage(baton, server, arguments, told):
    done = baton("batch", *arguments)
    assert (done.exit_code, server.requests) == (2, [])
    assert told in done.stderr


def test_an_output_in_no_folder_is_wrong_usage(baton, server, files):
    path = files[1].parent / "nowhere" / "out.jsonl"
    done = baton("batch", files[0], path)
    assert (done.exit_code, done.stderr, server.requests) == (
        2, f"Error: {path} cannot be written: No such file or directory\n", [],
    )  # fmt: skip


@pytest.mark.parametrize("path", ["", "/dev/full"])
def test_an_output_that_is_no_file_is_wrong_usage(baton, server, files, path):
    done = baton("batch", files[0], path)
    assert (done.exit_code, server.requests) == (2, [])
    assert done.stderr == f"Error: {path or '.'} is no regular file\n"


def test_a_full_disk_ends_the_run_and_the_next_one_goes_on(baton, server, files):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        done = baton("batch", "--direct", *files)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.exit_code == 1
    assert f"Error: {files[1]} cannot be written: File too large; the same command goes on" in done.stderr
    assert baton("batch", "--direct", *files).exit_code == 0
    assert len(results(files[1])) == 10


def test_output_must_not_be_the_input(baton, files):
    before = files[0].read_bytes()
    assert baton("batch", files[0], files[0]).exit_code == 2
    assert files[0].read_bytes() == before


@pytest.mark.parametrize(("number", "ordered"), [(signal.SIGKILL, ["--ordered"]), (signal.SIGINT, [])], ids=str)
def test_a_run_that_was_stopped_goes_on(start_baton, baton, server, files, ordered, number):
    server.delay_s = 0.1
    first = start_baton("batch", *files, "--concurrency", 2, *ordered)
    eventually(lambda: files[1].exists() and files[1].read_bytes().count(b"\n") >= 3)
    first.send_signal(number)
    assert first.wait(10) == (130 if number == signal.SIGINT else -number)
    num_done = len(results(files[1]))
    assert 3 <= num_done < 10
    with files[1].open("ab") as output:
        output.write(
            b'{"id":"batch_req_0123","custom_id":"id9","respon'
        )  # as a kill in the middle of a write leaves it
    sent = len(server.requests)
    server.delay_s = 0
    second = baton("batch", *files, *ordered)
    assert second.exit_code == 0
    assert second.stderr.startswith(f"{num_done} of 10 lines have a result already")
    assert len(server.requests) == sent + 10 - num_done
    assert len(results(files[1])) == 10
    if ordered:
        assert list(results(files[1])) == [f"id{index}" for index in range(10)]


@pytest.mark.timeout(30)
def test_ctrl_c_cancels_what_is_running(start_baton, server, files):
    server.delay_s = 5
    process = start_baton("batch", *files, "--concurrency", 2)
    eventually(lambda: len(server.known) == 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert server.cancelled == 2
    assert server.known == {}


def test_progress_without_a_terminal_is_sparse_lines(baton, server, files):
    server.delay_s = 0.1
    done = baton("batch", *files, "--concurrency", 2)
    assert "of 10 lines, " in done.stderr
    assert "tokens/s" in done.stderr
    assert "\x1b" not in done.stderr
