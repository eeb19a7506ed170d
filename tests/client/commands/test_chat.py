"""`baton chat`, piped and on a terminal."""

import json
import os
import pty
import signal

import pytest

from tests.client.fake_server import FakeServer, Refuse
from tests.support.eventually import eventually


def test_piped_is_one_message_and_its_answer(baton, server):
    result = baton("chat", "--system", "be brief", "--max-tokens", 2, input="two\nlines\n")
    assert (result.exit_code, result.stdout) == (0, "w0 w1 \n")
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "two\nlines"},
    ]


CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
CALLING = [
    {"role": "assistant", "content": ""},
    {"reasoning_content": "They ask for ", "reasoning": "They ask for "},
    {"reasoning_content": "the weather.", "reasoning": "the weather."},
    {"content": "Let me look."},
    {"tool_calls": [CALL]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Köln"}'}}]},
]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(("options", "stderr"), [([], ""), (["--show-thinking"], "They ask for the weather.\n\n")])
def test_piped_writes_text_and_calls_alone_to_stdout(baton, server, options, stderr):
    server.deltas.append(CALLING)
    result = baton("chat", *options, input="hi")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0, 'Let me look.\nget_weather(city="Köln")\n', stderr,
    )  # fmt: skip


def test_what_is_asked_for(baton, server, tmp_path):
    assert baton("chat", input="hi").exit_code == 0
    assert not {"max_tokens", "tools", "chat_template_kwargs", "reasoning_effort"} & server.requests[0].keys()
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([TOOL, TOOL["function"]]))
    options = ["--no-thinking", "--reasoning-effort", "low", "--tools", tools]
    assert baton("chat", *options, input="hi").exit_code == 0
    asked = {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low", "tools": [TOOL, TOOL]}
    assert asked.items() <= server.requests[1].items()


@pytest.mark.parametrize("text", ["", "[]", '["x"]', '[{"type": "function", "function": {}}]', "7"])
def test_a_wrong_file_of_tools_is_wrong_usage(baton, server, tmp_path, text):
    tools = tmp_path / "tools.json"
    tools.write_text(text)
    result = baton("chat", "--tools", tools, input="hi")
    assert (result.exit_code, server.requests) == (2, [])
    assert f"--tools {tools}" in result.stderr


def test_piped_failure_is_1(baton, server):
    server.script.append(Refuse(400, "no such thing"))
    result = baton("chat", input="hi")
    assert (result.exit_code, result.stdout) == (1, "")


class Terminal:
    """A `baton chat` on a pseudo-terminal."""

    def __init__(self, start_baton, *arguments, **options):
        self._master, slave = pty.openpty()
        self.process = start_baton("chat", *arguments, stdin=slave, stdout=slave, stderr=slave, **options)
        os.close(slave)
        self.screen = ""

    def type(self, text):
        os.write(self._master, text.encode())

    def wait_for(self, text):
        """Read until `text` has come since the last call."""
        while text not in self.screen:
            self.screen += os.read(self._master, 4096).decode()
        self.screen = self.screen.split(text, 1)[1]


@pytest.fixture
def terminal(start_baton):
    return Terminal(start_baton, "--max-tokens", "2")


@pytest.mark.timeout(30)
def test_conversation_keeps_history_until_reset(terminal, server):
    terminal.wait_for("> ")
    terminal.type("one\n")
    terminal.wait_for("w0 w1")
    terminal.wait_for("tokens/s")
    terminal.wait_for("> ")
    terminal.type("two\n")
    terminal.wait_for("w0 w1")
    terminal.wait_for("> ")
    terminal.type("/reset\n")
    terminal.wait_for("> ")
    terminal.type("three\n")
    terminal.wait_for("w0 w1")
    terminal.wait_for("> ")
    terminal.type("/exit\n")
    assert terminal.process.wait(10) == 0
    conversations = [[message["content"] for message in request["messages"]] for request in server.requests]
    assert conversations == [["one"], ["one", "w0 w1 ", "two"], ["three"]]


@pytest.mark.timeout(30)
def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(start_baton, server):
    server.token_delay_s = 0.05
    terminal = Terminal(start_baton, "--max-tokens", "500")
    terminal.wait_for("> ")
    terminal.type("one\n")
    terminal.wait_for("w1 ")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("(stopped)")
    eventually(lambda: server.cancelled == 1)
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(10) == 0


@pytest.mark.timeout(30)
def test_a_failed_answer_does_not_end_the_conversation(terminal, server):
    server.script.append(Refuse(400, "no such thing"))
    terminal.wait_for("> ")
    terminal.type("one\n")
    terminal.wait_for("no such thing")
    terminal.wait_for("> ")
    terminal.type("two\n")
    terminal.wait_for("w0 w1")
    assert [message["content"] for message in server.requests[1]["messages"]] == ["two"]


@pytest.mark.timeout(30)
def test_a_service_that_is_gone_does_not_end_the_conversation(start_baton):
    with FakeServer() as server:
        options = ("--max-tokens", "2", "--reconnect-timeout", "0", "--url", server.url)
        terminal = Terminal(start_baton, *options)
        terminal.wait_for("> ")
        terminal.type("one\n")
        terminal.wait_for("w0 w1")
        terminal.wait_for("> ")
    terminal.type("two\n")
    terminal.wait_for(f"no service answers at {server.url}")
    terminal.wait_for("> ")
    with FakeServer(port=int(server.url.rpartition(":")[2])) as server:
        terminal.type("three\n")
        terminal.wait_for("w0 w1")
        contents = [message["content"] for message in server.requests[0]["messages"]]
    assert contents == ["one", "w0 w1 ", "three"]


@pytest.mark.timeout(30)
def test_a_thought_is_folded_and_a_call_gets_its_result(start_baton, server):
    server.deltas.extend([CALLING, [{"content": "It is raining."}], CALLING])
    terminal = Terminal(start_baton)
    terminal.wait_for("> ")
    terminal.type("weather?\n")
    terminal.wait_for("thinking ...")
    terminal.wait_for("(thought for ")
    terminal.wait_for("Let me look.")
    terminal.wait_for('get_weather(city="Köln")')
    terminal.wait_for("get_weather gave> ")
    terminal.type("rain\n")
    terminal.wait_for("It is raining.")
    terminal.wait_for("> ")
    terminal.type("again\n")
    terminal.wait_for("get_weather gave> ")
    terminal.type("\n")  # nothing: the model is not asked to go on
    terminal.wait_for("> ")
    terminal.type("thanks\n")
    terminal.wait_for("w0 ")
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}}
    thought = {"reasoning_content": "They ask for the weather."}
    called = {"role": "assistant", "content": "Let me look.", "tool_calls": [call], **thought}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    first = [{"role": "user", "content": "weather?"}, called, result]
    assert server.requests[1]["messages"] == first
    second = [{"role": "assistant", "content": "It is raining."}, {"role": "user", "content": "again"}]
    assert server.requests[2]["messages"] == [*first, *second]
    last = [called, {**result, "content": ""}, {"role": "user", "content": "thanks"}]
    assert server.requests[3]["messages"] == [*first, *second, *last]


@pytest.mark.timeout(30)
def test_commands(terminal, server):
    for line, said in [
        ("/help", "/thinking on|off"),
        ("/nonsense", "there is no /nonsense"),
        ("/system be brief", "is set"),
        ("/thinking", "/thinking off"),
        ("/thinking off", "thinking is off"),
    ]:
        terminal.wait_for("> ")
        terminal.type(f"{line}\n")
        terminal.wait_for(line)
        terminal.wait_for(said)
    terminal.wait_for("> ")
    terminal.type("one\n")
    terminal.wait_for("w0 ")
    (request,) = server.requests
    assert request["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}]
    assert request["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.timeout(30)
def test_a_pasted_text_is_one_message(start_baton, server):
    terminal = Terminal(start_baton, "--max-tokens", "2", env={"TERM": "xterm"})
    terminal.wait_for("> ")
    terminal.type("\x1b[200~/first line\rsecond\r\rfourth\x1b[201~\n")
    terminal.wait_for("w0 ")
    (request,) = server.requests
    assert request["messages"] == [{"role": "user", "content": "/first line\nsecond\n\nfourth"}]
