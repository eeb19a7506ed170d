"""The frontend as a process: how it starts, what it tells operators, and when it ends."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from common import messages as m
from tests.frontend.sse import events_after, events_in, events_of, text_of
from tests.support.eventually import eventually
from tests.support.fake_core import REPORT, FakeCore, Step, say, silence
from tests.support.frontend_process import MODEL, REPOSITORY, Frontend, running_frontend
from tests.support.plain_http import http
from tests.support.processes import is_running

STREAM = {"model": MODEL, "prompt": "x", "stream": True, "max_tokens": 2000}
REMEMBER_MODULES = """
import atexit, os, sys
atexit.register(lambda: open(os.environ["MODULES_PATH"], "w").write("\\n".join(sys.modules)))
"""


@pytest.fixture
def own() -> Iterator[Frontend]:
    with running_frontend() as frontend:
        yield frontend


@pytest.fixture(scope="module")
def one_for_all() -> Iterator[Frontend]:
    with running_frontend() as frontend:
        yield frontend
        frontend.core.close()  # a test may have started it


@pytest.fixture
def shared(one_for_all: Frontend) -> Iterator[Frontend]:
    """A frontend that serves, and a core that nothing has been sent yet."""
    one_for_all.core.forget()
    fleet = one_for_all.core.fleet
    yield one_for_all
    one_for_all.core.fleet = fleet
    one_for_all.wait_until_ready()


def open_stream(frontend: Frontend, body: dict) -> socket.socket:
    """A connection that has sent a request and reads nothing."""
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}"
    )
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", int(frontend.url.rsplit(":", 1)[1])))
    connection.sendall(head.encode() + b"\r\n\r\n" + content)
    return connection


def test_without_requests_it_ends_at_once_and_has_never_imported_torch_or_transformers(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(REMEMBER_MODULES)
    modules_path = tmp_path / "modules"
    environment = {"PYTHONPATH": str(tmp_path), "MODULES_PATH": str(modules_path)}
    with running_frontend("--stop-grace", "60", forked=False, **environment) as frontend:
        with frontend.client() as client:
            client.completions.create(model=MODEL, prompt="x")
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
        assert frontend.stop() == 0, "long before the grace is over"
    modules = {name.partition(".")[0] for name in modules_path.read_text().split()}
    assert {"tokenizers", "scheduler_svc"} <= modules
    assert not modules & {"torch", "transformers", "executor_svc", "kernels"}


def test_what_operators_and_probes_see(shared: Frontend):
    assert http.get(f"{shared.url}/health").json() == {"status": "ok"}
    assert http.get(f"{shared.url}/ready").json() == {"status": "ready", "executors": 1}
    status = http.get(f"{shared.url}/status").json()
    assert (status["model"], status["requests_finished"]) == (REPORT.model, 3)
    metrics = http.get(f"{shared.url}/metrics")
    assert metrics.text == "baton_running 0\n"
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    shared.core.fleet = type(shared.core.fleet)(num_ready=0, fingerprint="", max_model_len=0)
    eventually(lambda: http.get(f"{shared.url}/ready").status_code == 503)
    assert http.get(f"{shared.url}/health").status_code == 200
    answer = shared.post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
    assert answer.status_code == 503  # it is not known yet how many tokens are left for the answer
    assert answer.json()["error"]["code"] == "no_executor"
    assert http.get(f"{shared.url}/v1/models").json()["data"][0]["max_model_len"] is None


def test_a_request_leaves_no_line_in_the_log_unless_it_is_refused(shared: Frontend):
    before = shared.log
    for body in (STREAM, {"model": MODEL, "prompt": "x"}):
        shared.post("/v1/completions", body)
    assert shared.log == before
    for _ in range(50):
        shared.post("/v1/completions", {"model": "unknown", "prompt": "x"})
    lines = shared.log.removeprefix(before).splitlines()
    assert 1 <= len(lines) < 25, lines
    assert all("code=model_not_found" in line for line in lines)
    assert before.count("frontend started") == 1
    assert "core found" in before


def ask_in_threads(own: Frontend, *bodies: dict) -> tuple[list[threading.Thread], list[str], list[Exception | None]]:
    """Requests that have begun, the text that each has got so far, and how its connection broke."""
    texts = [""] * len(bodies)
    ends: list[Exception | None] = [None] * len(bodies)

    def ask(number: int) -> None:
        try:
            with http.stream("POST", f"{own.url}/v1/completions", json=bodies[number]) as answer:
                for text in answer.iter_text():
                    texts[number] += text
        except httpx.TransportError as error:
            ends[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    eventually(lambda: len(own.core.submits) == len(bodies))
    eventually(lambda: all(text for text, body in zip(texts, bodies, strict=True) if body.get("stream")))
    return threads, texts, ends


PLAIN = {"model": MODEL, "prompt": "x"}
RESUMABLE = STREAM | {"resumable": True}


def test_sigterm_lets_answers_end_within_the_grace_and_tells_the_others(own: Frontend):
    """The fixture's grace is 4 s. A stream that its client can read on breaks off, without an event that says it has
    failed."""

    def script(submit: m.Submit) -> Iterator[Step]:
        if not submit.stream:
            yield 0.1 * submit.params.max_tokens
        yield from say([300] * submit.params.max_tokens, pause_s=0.1)(submit)

    own.core.script = script
    bodies = (STREAM | {"max_tokens": 25}, PLAIN | {"max_tokens": 25}, STREAM, PLAIN | {"max_tokens": 2000}, RESUMABLE)
    threads, texts, ends = ask_in_threads(own, *bodies)
    assert own.stop() == 0
    for thread in threads:
        thread.join()
    assert texts[0].endswith("data: [DONE]\n\n")
    assert json.loads(texts[1])["usage"]["completion_tokens"] == 25
    last = json.loads(texts[2].strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["message"] == json.loads(texts[3])["error"]["message"] == "the server is shutting down"
    assert "error" not in texts[4]
    assert [type(end) for end in ends] == [type(None)] * 4 + [httpx.RemoteProtocolError]
    assert "id: " in texts[4], "it can be read on"
    eventually(lambda: len(own.core.detaches) == 3)  # their clients may go on elsewhere
    assert not own.core.cancels
    assert "ASGI" not in own.log


def test_a_stop_waits_for_no_answer_that_goes_on_after_it_or_cannot_end():
    for options, body, is_served in [(("--journaled",), RESUMABLE, True), ((), PLAIN, False)]:
        script = say([300] * 2000, pause_s=0.1) if is_served else silence
        with running_frontend("--stop-grace", "60", *options, script=script) as own:
            threads, _, _ = ask_in_threads(own, body)
            if not is_served:
                own.core.fleet = type(own.core.fleet)(num_ready=0, fingerprint="", max_model_len=0)
                eventually(lambda own=own: http.get(f"{own.url}/ready").status_code == 503)
            assert own.stop() == 0, "within the 15 s that it waits"
            threads[0].join()


def test_a_core_that_crashes_ends_streams_with_an_error(shared: Frontend):
    before = shared.log
    shared.core.script = say([300] * 1000, pause_s=0.02)
    with shared.client() as client:
        stream = client.completions.create(**STREAM)
        next(stream)
        shared.core.close()
        with pytest.raises(openai.APIError, match="went away"):
            list(stream)
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model=MODEL, prompt="x")
        assert caught.value.status_code == 503
        assert http.get(f"{shared.url}/health").status_code == 503
        shared.core = FakeCore(Path(shared.core.endpoint.removeprefix("ipc://")).parent)
        shared.wait_until_ready()
        assert client.completions.create(model=MODEL, prompt="again").choices[0].text == "again"
    assert shared.log.removeprefix(before).count("core lost") == 1
    assert shared.log.removeprefix(before).count("core found") == 1


def test_it_ends_when_the_core_stays_silent():
    with running_frontend("--loss-timeout-s", "2", script=silence) as frontend:
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(frontend.post("/v1/completions", STREAM)))
        asking.start()
        eventually(lambda: frontend.core.submits)
        frontend.core.answers_hellos = False
        assert frontend.process.wait(10) == 1
        asking.join()
        assert answers[0].status_code == 503
        assert 'event="core gone"' in frontend.log


def test_it_ends_with_the_process_that_lent_the_socket(tmp_path: Path):
    core = FakeCore(tmp_path)
    parent_code = f"""
import os, socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", 0))
command = [sys.executable, "-m", "scheduler_svc.frontend", "--core-endpoint", {core.endpoint!r}]
command += ["--parent", str(os.getpid())]
child = subprocess.Popen([*command, "--fd", str(listener.fileno())], pass_fds=[listener.fileno()])
print(child.pid, flush=True)
child.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", parent_code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    try:
        eventually(lambda: core.num_hellos)
        parent.kill()
        parent.wait()
        eventually(lambda: not is_running(pid))
    finally:
        parent.stdout.close()
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
        core.close()


def test_a_reader_that_stops_reading_is_dropped_and_a_slow_one_is_not():
    with running_frontend("--stall-timeout-s", "1") as frontend:
        frontend.core.script = say([300] * 5000, pause_s=0.01)  # longer than the test looks
        stalled = open_stream(frontend, STREAM | {"n": 4})
        slow = open_stream(frontend, STREAM | {"n": 4})
        eventually(lambda: len(frontend.core.submits) == 2)
        first, second = (submit.request_id for submit in frontend.core.submits)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert slow.recv(4096)
            time.sleep(0.1)  # the pace of the slow reader
        assert frontend.log.count("reader dropped") == 1
        eventually(lambda: frontend.core.cancels)
        assert len({cancel.request_id for cancel in frontend.core.cancels}) == 1
        assert frontend.core.cancels[0].request_id in (first, second)
        stalled.close()
        slow.close()


@pytest.mark.slow
def test_a_reader_that_is_dropped_twice_is_one_line():
    """It leaves more tokens unread than are kept for it, and then reads nothing for too long."""
    with running_frontend("--stall-timeout-s", "1") as frontend:
        frontend.core.script = say([300] * 100_000, per_step=1000)
        stalled = open_stream(frontend, STREAM | {"n": 4, "resumable": True, "request_id": "slow"})
        eventually(lambda: frontend.core.detaches)  # not cancelled: the client may come back
        eventually(lambda: "reader dropped" in frontend.log)
        stalled.close()
        assert [event.id for event in events_of(events_after(frontend, "slow").content)][-1] == ""
        assert frontend.log.count("reader dropped") == 1


def test_strangers_leave_no_lines(shared: Frontend):
    before = shared.log
    address = ("127.0.0.1", int(shared.url.rsplit(":", 1)[1]))
    for noise in (b"\x16\x03\x01" * 50 + b"\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n", b"GET /" + b"a" * 100_000) * 10:
        with socket.create_connection(address) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(noise)
            while connection.recv(4096):
                pass
    assert http.get(f"{shared.url}/health").status_code == 200
    lines = shared.log.removeprefix(before).splitlines()
    assert len(lines) <= 10, lines  # not one for each


def test_a_request_outlives_its_core(shared: Frontend):
    shared.core.script = say(list(range(300, 340)), pause_s=0.02)
    body = STREAM | {
        "request_id": "lives-on",
        "resumable": True,
        "prompt": ["x", "y"],
        "stream_options": {"include_usage": True},
    }
    with http.stream("POST", f"{shared.url}/v1/completions", json=body) as answer:
        events = events_in(answer)
        first = [next(events) for _ in range(3)]
        shared.core.close()
        with pytest.raises(httpx.RemoteProtocolError):  # and no event with an error, which would make clients give up
            first += iter(events)
    assert not shared.core.cancels
    stories = shared.core.stories
    for story in stories.values():
        story.reader = None
        del story.told[0].token_ids[-1:]  # that one had not reached the disk
    rest_of = {name: list(range(300, 340))[len(story.told[0].token_ids) :] for name, story in stories.items()}
    folder = Path(shared.core.endpoint.removeprefix("ipc://")).parent
    shared.core = FakeCore(
        folder, script=lambda submit: say(rest_of[submit.request_id], pause_s=0.02)(submit), stories=stories
    )
    shared.wait_until_ready()
    rest = events_of(events_after(shared, "lives-on", first[-1].id).content)
    whole = events_of(events_after(shared, "lives-on").content)
    for choice in (0, 1):
        assert text_of(first + rest, choice) == text_of(whole, choice)
    assert len(text_of(whole)) > len(text_of(first))
    assert rest[-2:] == whole[-2:]


@pytest.fixture
def unanswered(tmp_path: Path) -> Iterator[Frontend]:
    """A frontend whose hellos the core has not answered yet."""
    core = FakeCore(tmp_path)
    core.answers_hellos = False
    frontend = Frontend(core, tmp_path / "log")
    yield frontend
    frontend.process.kill()
    core.close()


def test_nobody_is_refused_before_the_core_has_answered(unanswered: Frontend):
    # Without max_tokens the answer may be as long as the model allows, which only the core can tell.
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    with ThreadPoolExecutor() as clients:
        chat = clients.submit(unanswered.post, "/v1/chat/completions", body)
        eventually(lambda: unanswered.core.num_hellos >= 2)
        unanswered.core.answers_hellos = True
        assert chat.result().status_code == 200
    assert unanswered.stop() == 0


def test_it_can_be_stopped_before_the_core_has_answered(unanswered: Frontend):
    eventually(lambda: unanswered.core.num_hellos >= 2)
    assert unanswered.stop() == 0


def test_several_frontends_share_a_socket(tmp_path: Path):
    core = FakeCore(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "scheduler_svc.frontend", "--core-endpoint", core.endpoint, "--fd"]
        frontends = [
            subprocess.Popen([*command, str(listener.fileno())], cwd=REPOSITORY, pass_fds=[listener.fileno()])
            for _ in range(2)
        ]
        try:
            eventually(lambda: core.num_hellos >= 4)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/health"
            frontends[0].terminate()
            assert frontends[0].wait(10) == 0
            assert [http.get(url).status_code for _ in range(5)] == [200] * 5
        finally:
            for frontend in frontends:
                frontend.terminate()
            assert frontends[1].wait(10) == 0
            core.close()


def test_it_says_why_it_cannot_start():
    command = [sys.executable, "-m", "scheduler_svc.frontend", "--core-endpoint", "ipc:///tmp/none"]
    command += ["--model", str(REPOSITORY)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "no tokenizer.json" in done.stderr
    assert "Traceback" not in done.stderr
