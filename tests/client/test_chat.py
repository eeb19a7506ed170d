"""`baton chat`, piped and on a terminal."""

import os
import pty
import signal

import pytest

from tests.client.fake_server import Refuse
from tests.support.eventually import eventually


def test_piped_is_one_message_and_its_answer(baton, server):
    result = baton("chat", "--system", "be brief", "--max-tokens", 2, input="two\nlines")
    assert (result.exit_code, result.stdout) == (0, "w0 w1 \n")
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "two\nlines"},
    ]


def test_piped_failure_is_1(baton, server):
    server.script.append(Refuse(400, "no such thing"))
    result = baton("chat", input="hi")
    assert (result.exit_code, result.stdout) == (1, "")


class Terminal:
    """A `baton chat` on a pseudo-terminal."""

    def __init__(self, start_baton, *arguments):
        self._master, slave = pty.openpty()
        self.process = start_baton("chat", *arguments, stdin=slave, stdout=slave, stderr=slave)
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
