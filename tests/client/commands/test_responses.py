"""`baton responses` against a real frontend and its background worker, which have a fake core."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from common import messages as m
from scheduler_svc.client.cli import main
from scheduler_svc.client.responses.show import item_line, settle
from scheduler_svc.store import responses as store
from scheduler_svc.store.database import connect
from scheduler_svc.store.records import StoredResponse
from tests.support.chat_templates import QWEN3_LIKE, model_with_template
from tests.support.cuttable_proxy import CuttableProxy
from tests.support.demo_tokenizer import EOS, TOKENIZER, ids
from tests.support.eventually import eventually
from tests.support.fake_core import FakeCore, delta, outputs, say, silence, tokens_of
from tests.support.frontend_process import REPOSITORY, Frontend

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TAIL = ("completed_at", "error", "incomplete_details", "usage")
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@contextlib.contextmanager
def running_worker(core: FakeCore, folder: Path, *options: str) -> Iterator[None]:
    """The background worker on a socket that it inherits, as under the real core."""
    with socket.socket(socket.AF_UNIX) as listener, (folder / "worker-log").open("wb") as log:
        listener.bind(str(folder / "worker.sock"))
        listener.listen()
        module = [sys.executable, "-m", "scheduler_svc.frontend.background", "--core-endpoint", core.endpoint]
        command = [*module, "--fd", str(listener.fileno()), "--store", str(folder), *options]
        process = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=[listener.fileno()], stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)


@pytest.fixture(scope="module")
def thinker() -> Iterator[Frontend]:
    """A model with Qwen3's habits and the demo model's tokens."""
    with tempfile.TemporaryDirectory() as name:
        model, store = model_with_template(Path(name), QWEN3_LIKE), Path(name, "store")
        store.mkdir()
        core = FakeCore(Path(name))
        options = ("--model", str(model), "--store", str(store))
        with running_worker(core, store, *options[:2]):
            frontend = Frontend(core, Path(name, "log"), *options)
            try:
                frontend.wait_until_ready()
                yield frontend
            finally:
                frontend.stop()
                core.close()


@pytest.fixture
def core(thinker):
    thinker.core.forget()
    return thinker.core


@pytest.fixture
def responses(thinker, core):
    """Run the command in this process: `responses("get", ID)`."""

    def run(*arguments, **options):
        environment = {"BATON_URL": thinker.url, "BATON_API_KEY": None}
        return CliRunner().invoke(main, ["responses", *map(str, arguments)], env=environment, **options)

    return run


@pytest.fixture
def start_responses(thinker, core, started):
    """Start the command as a process."""

    def start(*arguments, url=thinker.url):
        command = [sys.executable, "-m", "scheduler_svc.client.cli", "responses", *map(str, arguments)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env={**os.environ, "BATON_URL": url}, bufsize=0, **pipes)
        started.append(process)
        return process

    return start


class Gate:
    """Says a text, and the rest of it when a test lets it."""

    def __init__(self, core: FakeCore, text: str, rest: str) -> None:
        self.open = threading.Event()
        self._texts = text, rest
        core.script = self._script

    def _script(self, submit: m.Submit):
        text, rest = map(ids, self._texts)
        yield from (outputs(delta(submit, [token])) for token in text)
        while not self.open.is_set():
            yield 0.01
        yield from (outputs(delta(submit, [token])) for token in rest)
        yield outputs(delta(submit, [EOS], "stop"))


def wait_for_text(process) -> None:
    """Read `Good`, and nothing else: without a buffer the rest is there for `ended`."""
    read = b""
    while len(read) < 4 and (more := process.stdout.read(4 - len(read))):
        read += more
    assert read == b"Good"


def ended(process) -> tuple[str, str]:
    """The rest of stdout, and stderr."""
    stdout, stderr = process.communicate(timeout=20)
    return stdout.decode(), stderr.decode()


def saying(core: FakeCore, text: str) -> None:
    core.script = say([*ids(text), EOS], "stop")


def made(result) -> dict:
    """The response in JSON."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def prompt_of(submit: m.Submit) -> str:
    return b"".join(TOKENIZER.all_token_bytes[token] for token in tokens_of(submit.prompt)).decode()


def test_the_text_comes_without_the_thought(responses, core):
    saying(core, "<think>\nHm.\n</think>\n\nGood day!")
    result = responses("create", "hello", "--instructions", "Be brief.", "--max-output-tokens", 99, "--seed", 7)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Good day!\n", "")
    [submit] = core.submits
    assert (submit.params.max_tokens, submit.params.seed) == (99, 7)
    assert "Be brief." in prompt_of(submit)
    shown = responses("create", "hello", "--show-thinking")
    assert (shown.stdout, "Hm." in shown.stderr) == ("Good day!\n", True)


def test_a_conversation_and_all_that_is_kept_of_it(responses, core):
    saying(core, "<think>\nHm.\n</think>\n\nGood day!")
    first = made(responses("create", "--json", input="two\nlines\n"))
    second = made(responses("create", "again", "--previous", first["id"], "--json"))
    assert second["previous_response_id"] == first["id"]
    prompt = prompt_of(core.submits[1])
    assert prompt.index("two\nlines<|im_end|>") < prompt.index("Good day!") < prompt.index("again")
    assert made(responses("get", first["id"], "--json")) == first
    shown = responses("get", first["id"], "--show-thinking")
    assert (shown.exit_code, shown.stdout, "Hm." in shown.stderr) == (0, "Good day!\n", True)
    assert responses("get", first["id"]).stderr == ""
    assert responses("items", second["id"]).stdout == "user: again\n"
    deleted = responses("delete", first["id"], second["id"])
    assert deleted.stdout == f"{first['id']}: deleted\n{second['id']}: deleted\n"
    for command in ("get", "delete", "cancel", "items", "follow"):
        gone = responses(command, first["id"])
        assert (gone.exit_code, gone.stdout) == (1, "")
        assert gone.stderr == f"Error: There is no response '{first['id']}' here, or none any more. (HTTP 404)\n"


def test_a_call_is_a_line_and_is_answered(responses, core, tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps([TOOL, TOOL["function"] | {"name": "time"}]))
    saying(core, f"I look.\n{CALL}")
    tools = ("--tools", tmp_path / "tools.json")
    result = responses("create", "Rain?", *tools)
    assert (result.exit_code, result.stdout) == (0, 'I look.\nweather(city="Rome")\n')
    asked = made(responses("create", "Rain?", *tools, "--json"))
    assert [tool["name"] for tool in asked["tools"]] == ["weather", "time"]
    assert responses("get", asked["id"]).stdout == result.stdout
    call_id = asked["output"][-1]["call_id"]
    saying(core, "It rains.")
    again = made(
        responses("create", "--previous", asked["id"], "--tool-output", f"{call_id}=a=b", *tools, "--json", input="x")
    )
    assert "a=b" in prompt_of(core.submits[-1])
    assert responses("items", again["id"]).stdout == f"output of {call_id}: a=b\n", "stdin is not read"
    both = made(responses("create", "Well?", "--previous", asked["id"], "--tool-output", f"{call_id}=rain", "--json"))
    assert responses("items", both["id"]).stdout == f"output of {call_id}: rain\nuser: Well?\n"
    listed = json.loads(responses("items", both["id"], "--json").stdout)
    assert [item["type"] for item in listed] == ["function_call_output", "message"]


def test_a_schema_binds_the_text(responses, core, tmp_path):
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    saying(core, "{}")
    assert responses("create", "x", "--json-schema", tmp_path / "schema.json", "--no-thinking").stdout == "{}\n"
    assert core.submits[0].params.constraints.grammar
    assert "</think>" in prompt_of(core.submits[0])


def test_what_is_not_stored_cannot_be_had(responses, core):
    saying(core, "Hi")
    response = made(responses("create", "x", "--no-store", "--json"))
    assert response["store"] is False
    assert responses("get", response["id"]).exit_code == 1


def test_one_in_the_background_is_named_followed_and_read_again(responses, core):
    gate = Gate(core, "<think>\nHm.\n</think>\n\nGood ", "day!")
    queued = responses("create", "x", "--background")
    name = queued.stdout.strip()
    assert (queued.exit_code, queued.stdout, queued.stderr) == (0, f"{name}\n", "")
    early = responses("get", name)
    assert (early.exit_code, early.stdout) == (1, "")
    assert f"`baton responses follow {name}`" in early.stderr
    assert made(responses("get", name, "--json"))["status"] in ("queued", "in_progress")
    gate.open.set()
    followed = responses("follow", name)
    assert (followed.exit_code, followed.stdout, followed.stderr) == (0, "Good day!\n", "")
    assert responses("get", name).stdout == "Good day!\n"
    events = [json.loads(line) for line in responses("follow", name, "--events").stdout.splitlines()]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    rest = [json.loads(line) for line in responses("follow", name, "--events", "--after", 3).stdout.splitlines()]
    assert rest == events[4:]
    assert made(responses("follow", name, "--json")) == events[-1]["response"]
    nothing = responses("follow", name, "--after", len(events) - 1)
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "")
    assert responses("cancel", name).stdout == f"{name}: completed\n", "it stays as it is"


def test_one_is_made_in_the_background_and_followed_at_once(responses, core):
    saying(core, "Good day!")
    result = responses("create", "x", "--background", "--follow")
    assert (result.exit_code, result.stdout) == (0, "Good day!\n")
    name = result.stderr.removeprefix("baton: ").strip()
    assert responses("get", name).stdout == "Good day!\n"
    assert made(responses("create", "x", "--background", "--follow", "--json"))["background"] is True


def test_one_is_cancelled_and_says_so_wherever_it_is_read(responses, core):
    core.script = silence
    name = responses("create", "x", "--background").stdout.strip()
    eventually(lambda: core.submits)
    assert responses("cancel", name).stdout == f"{name}: cancelled\n"
    eventually(lambda: core.cancels)
    for command in ("get", "follow"):
        result = responses(command, name)
        assert (result.exit_code, result.stderr) == (1, "Error: the response was cancelled\n"), command
    assert made(responses("get", name, "--json"))["status"] == "cancelled"


def failing(submit: m.Submit):
    yield from (outputs(delta(submit, [token])) for token in ids("some text"))
    yield outputs(delta(submit, [], "error", error="it broke"))


@pytest.mark.parametrize("options", [[], ["--background", "--follow"], ["--json"]], ids=" ".join)
def test_a_failure_is_1_with_its_message(responses, core, options):
    core.script = failing
    result = responses("create", "x", *options)
    assert result.exit_code == 1
    assert result.stderr.endswith("Error: it broke\n")
    if "--json" in options:
        response = json.loads(result.stdout)
        assert response["status"] == "failed"
        shown = responses("get", response["id"])
        assert (shown.exit_code, shown.stdout, shown.stderr) == (1, "some text\n", "Error: it broke\n")
    else:
        assert result.stdout == "some text\n"


def test_a_refusal_is_shown(responses):
    result = responses("create", "x", "--max-output-tokens", 10**6)
    assert (result.exit_code, "(HTTP 400)" in result.stderr) == (1, True)
    name = "resp_" + "0" * 24
    assert name in responses("create", "x", "--previous", name).stderr


def test_ctrl_c_ends_a_response_in_the_foreground(start_responses, core):
    Gate(core, "Good day!", "")
    process = start_responses("create", "x")
    wait_for_text(process)
    process.send_signal(signal.SIGINT)
    _, stderr = ended(process)
    assert (process.returncode, stderr) == (130, "")
    eventually(lambda: core.cancels)


@pytest.mark.parametrize("command", ["follow", "create"])
def test_ctrl_c_leaves_one_in_the_background_running(start_responses, responses, core, command):
    gate = Gate(core, "Good ", "day!")
    if command == "follow":
        process = start_responses("follow", responses("create", "x", "--background").stdout.strip())
    else:
        process = start_responses("create", "x", "--background", "--follow")
    wait_for_text(process)
    process.send_signal(signal.SIGINT)
    rest, stderr = ended(process)
    assert process.returncode == 130
    _, asked, _ = stderr.splitlines()[-1].split("`")
    assert asked.startswith("baton responses follow resp_")
    assert not core.cancels
    gate.open.set()
    going_on = responses(*asked.split()[2:])
    assert going_on.exit_code == 0
    assert "Good" + rest + going_on.stdout == "Good day!\n"


def test_a_broken_connection_is_made_again(start_responses, core, thinker):
    gate = Gate(core, "Good ", "day!")
    with CuttableProxy(urlsplit(thinker.url).port) as proxy:
        process = start_responses("create", "x", "--background", "--follow", url=f"http://127.0.0.1:{proxy.port}")
        wait_for_text(process)
        proxy.break_all()
        gate.open.set()
        stdout, stderr = ended(process)
    assert (process.returncode, stdout) == (0, " day!\n"), stderr
    assert "the service is back" in stderr
    assert len(core.submits) == 1


def test_one_in_the_foreground_ends_with_its_connection(start_responses, core, thinker):
    Gate(core, "Good ", "day!")
    with CuttableProxy(urlsplit(thinker.url).port) as proxy:
        process = start_responses("create", "x", url=f"http://127.0.0.1:{proxy.port}")
        wait_for_text(process)
        proxy.break_all()
        _, stderr = ended(process)
    assert process.returncode == 1
    assert "--background --follow" in stderr
    assert len(core.submits) == 1


@pytest.mark.parametrize("options", [[], ["--json"], ["--events"]], ids=" ".join)
def test_one_that_never_ran_has_an_end(responses, core, thinker, options):
    """It was cancelled while no worker was there."""
    saying(core, "Hi")
    model = made(responses("create", "x", "--background", "--follow", "--json"))
    head = {name: value for name, value in model.items() if name not in ("status", "output", *TAIL)}
    name = f"resp_{os.urandom(12).hex()}"
    record = StoredResponse(
        "",
        name,
        "queued",
        time.time(),
        time.time() + 1e6,
        is_background=True,
        previous_id=None,
        head=json.dumps(head | {"id": name}).encode(),
        input_items=b"[]",
    )
    with contextlib.closing(connect(thinker.log_path.parent / "store")) as connection:
        store.add(connection, record)
        store.cancel(connection, "", name, time.time())
    result = responses("follow", name, *options)
    assert result.exit_code == 1
    assert result.stderr == "Error: the response was cancelled\n"
    assert (result.stdout == "") == (not options)
    if options == ["--events"]:
        told = [json.loads(line)["type"] for line in result.stdout.splitlines()]
        assert told == [f"response.{name}" for name in ("created", "queued", "in_progress", "failed")]


def test_on_a_terminal_it_is_said_how_to_go_on(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    settle({"id": "resp_1", "status": "incomplete", "store": True, "output": [call]})
    said = capsys.readouterr().err
    assert "cut off" in said
    assert "`baton responses create --previous resp_1 --tool-output call_1=RESULT`" in said
    settle({"id": "resp_1", "status": "completed", "store": False, "output": []})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("item", "line"),
    [
        ({"role": "system", "content": "Be brief."}, "system: Be brief."),
        ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}, "user: a"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}, "call c: f(a=1)"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a'}, 'call c: f({"a)'),
        ({"type": "function_call_output", "call_id": "c", "output": "x"}, "output of c: x"),
        ({"type": "reasoning", "summary": [], "content": [{"text": "hm"}]}, "thought: hm"),
        ({"type": "reasoning", "summary": [{"text": "s"}]}, "thought: s"),
        ({"type": "computer_call", "id": "x"}, 'computer_call: {"type":"computer_call","id":"x"}'),
    ],
)
def test_items_of_every_kind_are_lines(item, line):
    assert item_line(item) == line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "x", "--follow"), "--background"),
        (("create", "x", "--background", "--no-store"), "exclude"),
        (("create", "x", "--tool-output", "call_1"), "CALL_ID=TEXT"),
        (("follow", "x", "--events", "--json"), "exclude"),
        (("follow", "x", "--after", "-2"), "-2"),
        (("cancel",), "ID"),
        (("delete",), "ID"),
        (("nonsense",), "nonsense"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_wrong_usage(arguments, message):
    result = CliRunner().invoke(main, ["responses", *arguments], env={"BATON_URL": "http://127.0.0.1:9"})
    assert (result.exit_code, message in result.stderr) == (2, True)


@pytest.mark.parametrize("name", ["create", "get", "follow", "cancel", "delete", "items"])
def test_help_of_each_command(name):
    result = CliRunner().invoke(main, ["responses", name, "--help"])
    assert result.exit_code == 0
    assert "Exit codes:" in result.output
