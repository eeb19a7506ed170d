"""A conversation on a terminal: messages, commands, and results of tools."""

import contextlib
from collections.abc import Callable

import click

from scheduler_svc.client.chat.conversation import Conversation
from scheduler_svc.client.http.growing_message import Call
from scheduler_svc.client.output import say

HELP = """\
/reset            start a new conversation
/system TEXT      tell the model how to behave; without TEXT, nothing
/thinking on|off  tell the model to think before it answers, or not to
/exit             leave, as Ctrl-D does
Ctrl-C stops an answer. Pasted text is one message, whatever lines it has."""


def talk(conversation: Conversation) -> None:
    """Read, answer, repeat, until the user leaves."""
    _edit_lines()
    say(f"You are talking with {conversation.model}. /help lists the commands, /exit or Ctrl-D leaves.", dim=True)
    while True:
        try:
            line = input("> ").strip()
        except KeyboardInterrupt:
            say("\n(/exit or Ctrl-D leaves)", dim=True)
            continue
        except EOFError:
            say("")
            return
        if line == "/exit":
            return
        if line.startswith("/") and "\n" not in line:
            say(_obey(conversation, line), dim=True)
        elif line:
            _answer(conversation, line)


def _edit_lines() -> None:
    """Let `input` edit lines, remember them, and take a pasted text as one, line ends included."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: PLC0415  (its import alone changes `input`)

        readline.parse_and_bind("set enable-bracketed-paste on")


def _obey(conversation: Conversation, line: str) -> str:
    """Do what a command says. Returns what to tell the user."""
    command, _, argument = line.partition(" ")
    match command, argument.strip():
        case "/help", _:
            return HELP
        case "/reset", _:
            conversation.reset()
            return "(a new conversation)"
        case "/system", text:
            conversation.system = text
            return "(the system message is set)" if text else "(there is no system message)"
        case "/thinking", "on" | "off" as thinks:
            conversation.think(thinks == "on")
            return f"(thinking is {thinks})"
        case "/thinking", _:
            return "(/thinking on, or /thinking off)"
    return f"(there is no {command}; /help lists the commands)"


def _answer(conversation: Conversation, line: str) -> None:
    """Get an answer, and those to its calls; neither Ctrl-C nor a failure ends the conversation."""
    step: Callable[[], list[Call]] = lambda: conversation.ask(line)  # noqa: E731
    try:
        while calls := step():
            results = _results(calls)
            conversation.add_results(calls, results)
            if not any(results):
                return
            step = conversation.go_on
    except KeyboardInterrupt:
        say("(stopped)", dim=True)
    except click.ClickException as error:
        error.show()


def _results(calls: list[Call]) -> list[str]:
    """What the user says that the called tools gave. Ctrl-C and Ctrl-D leave the rest empty."""
    say("Type what each call gave; if you leave all empty, the model is not asked to go on.", dim=True)
    results = [""] * len(calls)
    try:
        for number, call in enumerate(calls):
            results[number] = input(f"{call.name} gave> ").strip()
    except (EOFError, KeyboardInterrupt):
        say("")
    return results
