"""`baton chat`: a conversation with the model."""

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from scheduler_svc.client.errors import EXIT_CODES_HELP, RequestFailed
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.options import model_option, resuming_service_options, sampling_options
from scheduler_svc.client.output import AnswerTimer, say, write_text
from scheduler_svc.client.service_address import ServiceAddress

if TYPE_CHECKING:
    from scheduler_svc.client.http.api import Api

Messages = list[dict[str, str]]

_PATH = "/v1/chat/completions"


@click.command(epilog=EXIT_CODES_HELP)
@click.option("--system", help="Tells the model how to behave.")
@sampling_options
@model_option
@resuming_service_options
def command(*, system: str | None, sampling: dict[str, Any], model: str | None, service: ServiceAddress) -> None:
    """Talk with the model.

    /reset starts afresh, /exit or Ctrl-D leaves, Ctrl-C stops the answer in progress. If stdin is no terminal, it is
    one message, and its answer is written to stdout.

    \b
    Example:
      baton chat --system "Answer in one sentence."
      echo "Who was Romeo?" | baton chat
    """
    with connect(service) as api:
        conversation = Conversation(api, {"model": api.model_name(model), **sampling}, system)
        if sys.stdin.isatty():
            _talk(conversation)
        else:
            conversation.ask(sys.stdin.read())


class Conversation:
    """The messages so far, and the next answer.

    Args:
        request: fields of every request body besides the messages.
        system: first message of the conversation, if any.
    """

    def __init__(self, api: "Api", request: dict[str, Any], system: str | None) -> None:
        self._api = api
        self._request = request
        self._system: Messages = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._system)

    @property
    def model(self) -> str:
        """Name of the model that answers."""
        return str(self._request["model"])

    def reset(self) -> None:
        """Forget all messages but the system message."""
        self._messages = list(self._system)

    def ask(self, text: str) -> None:
        """Stream the answer to stdout and remember both, even an answer that Ctrl-C cut short.

        Raises:
            RequestFailed: there was no complete answer; the conversation is unchanged.
            KeyboardInterrupt: in the middle of the answer; the request has been cancelled.
        """
        asked = [*self._messages, {"role": "user", "content": text}]
        pieces: list[str] = []
        timer = AnswerTimer()
        try:
            with contextlib.closing(self._api.stream(_PATH, {**self._request, "messages": asked})) as events:
                for event in events:
                    timer.see(event)
                    for choice in event["choices"]:
                        piece = choice["delta"].get("content") or ""
                        pieces.append(piece)
                        write_text(piece)
        except KeyboardInterrupt:
            self._remember(asked, pieces)
            raise
        finally:
            if pieces:
                write_text("\n")
        self._remember(asked, pieces)
        timer.report()

    def _remember(self, asked: Messages, pieces: list[str]) -> None:
        if pieces:
            self._messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]


def _talk(conversation: Conversation) -> None:
    """Read, answer, repeat."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415  (its import gives input() line editing and history)
    say(f"You are talking with {conversation.model}. /reset starts afresh, /exit or Ctrl-D leaves.", dim=True)
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
        if line == "/reset":
            conversation.reset()
            say("(a new conversation)", dim=True)
        elif line.startswith("/"):
            say("(there are /reset and /exit)", dim=True)
        elif line:
            _answer(conversation, line)


def _answer(conversation: Conversation, line: str) -> None:
    """Get one answer; neither Ctrl-C nor a failure ends the conversation."""
    try:
        conversation.ask(line)
    except KeyboardInterrupt:
        say("(stopped)", dim=True)
    except RequestFailed as error:
        error.show()
