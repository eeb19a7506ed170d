"""The messages of a conversation, and the next answer to them."""

import contextlib
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scheduler_svc.client.chat.view import AnswerView
from scheduler_svc.client.http.growing_message import Call, GrowingMessage
from scheduler_svc.client.output import AnswerTimer, say

if TYPE_CHECKING:
    from scheduler_svc.client.http.api import Api

Message = dict[str, Any]

_PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class ChatSettings:
    """What a conversation asks for besides its messages.

    Attributes:
        request: fields of every request's body.
        thinks: whether the model is told to think, or not to; None leaves it to the model.
        shows_thought: whether thoughts are written, dim, or folded into a line.
    """

    request: dict[str, Any]
    thinks: bool | None = None
    shows_thought: bool = False

    def body(self) -> dict[str, Any]:
        """Fields of the next request's body."""
        thinking = {} if self.thinks is None else {"chat_template_kwargs": {"enable_thinking": self.thinks}}
        return {**self.request, **thinking}


class Conversation:
    """The messages so far, and the next answer.

    Args:
        system: first message of the conversation; empty for none.
    """

    def __init__(self, api: "Api", settings: ChatSettings, system: str) -> None:
        self._api = api
        self._settings = settings
        self.system = system
        self._messages: list[Message] = []

    @property
    def model(self) -> str:
        """Name of the model that answers."""
        return str(self._settings.request["model"])

    def reset(self) -> None:
        """Forget all messages but the system message."""
        self._messages = []

    def think(self, thinks: bool) -> None:
        """Tell the model from now on to think, or not to."""
        self._settings = replace(self._settings, thinks=thinks)

    def ask(self, text: str) -> list[Call]:
        """Write the answer to a message of the user, and remember both, even an answer that Ctrl-C cut short.

        Returns:
            The tools that the answer calls; their results are next.

        Raises:
            RequestFailed, ServiceUnreachable: there was no complete answer; the conversation is unchanged.
            KeyboardInterrupt: in the middle of the answer; the request has been cancelled.
        """
        return self._continue({"role": "user", "content": text})

    def add_results(self, calls: list[Call], results: list[str]) -> None:
        """Remember what the called tools gave."""
        for call, result in zip(calls, results, strict=True):
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def go_on(self) -> list[Call]:
        """Write the answer to the tools' results; otherwise as `ask`."""
        return self._continue()

    def _continue(self, *new: Message) -> list[Call]:
        asked = [*self._messages, *new]
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {**self._settings.body(), "messages": [*system, *asked]}
        message, timer, finish_reason = GrowingMessage(), AnswerTimer(), None
        view = AnswerView(shows_thought=self._settings.shows_thought)
        try:
            with contextlib.closing(self._api.stream(_PATH, body)) as events:
                for event in events:
                    timer.see(event)
                    for choice in event["choices"]:
                        message.add(choice["delta"])
                        view.add(choice["delta"])
                        finish_reason = choice.get("finish_reason") or finish_reason
        except KeyboardInterrupt:
            if message.content:  # a call that was cut short is none
                self._messages = [*asked, {"role": "assistant", "content": message.content}]
            raise
        finally:
            view.end(message.calls if finish_reason else ())
        if message.content or message.calls:
            self._messages = [*asked, _remembered(message)]
        if finish_reason == "length" and sys.stderr.isatty():
            say("(cut off: it has as many tokens as it may have)", dim=True)
        timer.report()
        return message.calls


def _remembered(message: GrowingMessage) -> Message:
    """An answer as the next request has it. A thought is a part of it only until its calls have their results."""
    remembered: Message = {"role": "assistant", "content": message.content}
    if message.calls:
        remembered["tool_calls"] = [call.json() for call in message.calls]
        if message.thought:
            remembered["reasoning_content"] = message.thought
    return remembered
