"""`baton generate` and `baton chat` through broken connections: everything once, in order, or a clear failure."""

import json
from urllib.parse import urlsplit

import pytest

from scheduler_svc.client.processes.local_fleet import free_ports
from tests.client.fake_server import MODEL, Drop, Refuse
from tests.support.cuttable_proxy import CuttableProxy
from tests.support.eventually import eventually

TEXT = "".join(f"w{index} " for index in range(16))
RESUMED = ["baton: the service is away; waiting up to 1:00 min for it", "baton: the service is back after"]


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch):
    monkeypatch.setattr("scheduler_svc.client.http.patience._FIRST_DELAY_S", 0.001)


def assert_resumed(result):
    """The text is whole, and one line each says that the service was away and is back."""
    assert (result.exit_code, result.stdout.removesuffix("\n")) == (0, TEXT), result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == len(RESUMED)
    assert all(line.startswith(start) for line, start in zip(lines, RESUMED, strict=True))


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    ("drop", "resumes"),
    [
        (Drop(after_tokens=5), ["4"]),
        (Drop(after_tokens=5, cut=True), ["4"]),
        (Drop(after_tokens=5, error_code="unavailable"), ["4"]),
        (Drop(after_tokens=16), ["15"]),
        (Drop(after_tokens=17), ["16"]),
        (Drop(after_tokens=0), [None]),
    ],
    ids=["reset", "in mid-event", "error event", "before usage", "before the end", "before any event"],
)
def test_a_broken_stream_goes_on(baton, server, command, drop, resumes):
    server.script.append(drop)
    assert_resumed(baton(command, "--max-tokens", 16, input="x"))
    assert len(server.requests) == 1
    request_id = server.requests[0]["request_id"]
    assert server.resumed == [(request_id, last) for last in resumes]


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_broken_stream_goes_on_at_the_service_that_answered(baton, server, command):
    """Behind a gateway the others do not know the request."""
    server.session = "c2VydmljZS0x"
    server.script.append(Drop(after_tokens=5))
    assert_resumed(baton(command, "--max-tokens", 16, input="x"))
    assert server.sessions == [server.session]


def test_a_stream_that_breaks_again_and_again_goes_on(baton, server):
    server.script.append(Drop(after_tokens=1))
    server.resume_script.extend([Refuse(503), Drop(after_tokens=1), Drop(after_tokens=7, cut=True), Refuse(502), None])
    result = baton("generate", "x", "--max-tokens", 16)
    assert (result.exit_code, result.stdout) == (0, TEXT + "\n")
    assert [last for _, last in server.resumed] == ["0", "0", "0", "6", "6"]
    assert len(result.stderr.splitlines()) == 4, "two outages"


@pytest.mark.parametrize("lost", [Drop(accepted=False), Refuse(503)], ids=["broken", "503"])
def test_a_request_that_was_not_accepted_is_sent_again_by_the_same_id(baton, server, lost):
    server.script.append(lost)
    assert_resumed(baton("generate", "x", "--max-tokens", 16))
    first, second = server.requests
    assert first == second
    assert server.resumed == [(first["request_id"], None)]


def test_a_request_that_arrived_late_is_not_sent_a_third_time(baton, server):
    server.script.append(Drop())
    server.resume_script.append(Refuse(404, code="request_not_found"))
    assert_resumed(baton("generate", "x", "--max-tokens", 16))
    assert len(server.requests) == 2
    assert len(server.resumed) == 2, "the second POST was told that the request exists"


def test_a_post_that_broke_before_any_answer_is_looked_for(start_baton, server):
    """It is the first thing that the service hears of this command, as the model is named."""
    server.delay_s = 0.2  # no status line comes before
    with CuttableProxy(urlsplit(server.url).port) as proxy:
        process = start_baton(
            "generate", "x", "--model", MODEL, "--max-tokens", 16, "--url", f"http://127.0.0.1:{proxy.port}"
        )
        eventually(lambda: server.open_now == 1)
        proxy.break_all()
        stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout) == (0, TEXT + "\n"), stderr
    assert len(server.requests) == 1
    assert server.resumed == [(server.requests[0]["request_id"], None)]


@pytest.mark.parametrize("arguments", [[], ["--model", MODEL]], ids=["model unknown", "model named"])
def test_a_service_that_was_never_there_is_not_waited_for(baton, arguments):
    (port,) = free_ports(1)
    result = baton("generate", "x", *arguments, "--url", f"http://127.0.0.1:{port}")
    assert result.exit_code == 3
    assert "no service answers" in result.stderr
    assert "waiting" not in result.stderr


def test_a_forgotten_request_fails_and_prints_nothing_twice(baton, server):
    server.script.append(Drop(after_tokens=2))
    server.resume_script.append(Refuse(404, code="request_not_found"))
    result = baton("generate", "x")
    assert (result.exit_code, result.stdout) == (1, "w0 w1 ")
    assert "without a journal" in result.stderr


def test_another_error_in_the_stream_is_final(baton, server):
    server.script.append(Drop(after_tokens=2, error_code="deadline_exceeded"))
    result = baton("generate", "x")
    assert (result.exit_code, result.stderr) == (1, "Error: no more\n")
    assert server.resumed == []


def test_a_service_that_stays_away_is_given_up(baton, server):
    server.script.append(Drop(after_tokens=2))
    server.resume_script.extend([Refuse(503, "still starting")] * 10000)
    result = baton("generate", "x", "--reconnect-timeout", 0.1)
    assert (result.exit_code, result.stdout) == (3, "w0 w1 ")
    assert result.stderr.endswith("Error: still starting (HTTP 503)\n")


@pytest.mark.parametrize("arguments", [["--json"], ["--no-stream"], ["--n", "2"]], ids=" ".join)
def test_answers_that_do_not_stream_survive_too(baton, server, arguments):
    undisturbed = baton("generate", "x", *arguments)
    server.script.append(Drop(after_tokens=3))
    result = baton("generate", "x", *arguments)
    assert result.exit_code == undisturbed.exit_code == 0
    assert without_id(result.stdout) == without_id(undisturbed.stdout)
    assert len(server.resumed) == 1


def without_id(stdout):
    if not stdout.startswith("{"):
        return stdout
    answer = json.loads(stdout)
    assert answer.pop("id").startswith("cmpl-")
    return answer


def test_zero_asks_for_nothing_and_fails_at_once(baton, server):
    server.script.append(Drop(after_tokens=2))
    result = baton("generate", "x", "--reconnect-timeout", 0)
    assert (result.exit_code, result.stdout) == (1, "w0 w1 ")
    assert "broke" in result.stderr
    assert not {"request_id", "resumable"} & server.requests[0].keys()
    assert server.resumed == []


def test_silence_cancels(baton, server):
    server.token_delay_s = 5
    assert baton("generate", "x", "--timeout", 1).exit_code == 1
    eventually(lambda: server.cancelled == 1)
    assert server.known == {}
