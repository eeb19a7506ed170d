"""How the served model writes chats, as far as requests depend on it."""

from dataclasses import dataclass

from scheduler_svc.frontend.parsing.detect import detect
from scheduler_svc.frontend.parsing.message import CallFormat
from scheduler_svc.frontend.text.chat_template import ChatTemplate
from scheduler_svc.frontend_options import FrontendOptions


@dataclass(frozen=True)
class ChatStyle:
    """A model's habits.

    Attributes:
        calls: how it writes calls of tools; "none" if that is not known, or calls are not to be told from text.
        unread_calls: what they begin with, if that is known and not read; else empty.
        shows_tools: whether its chat template has a place for tools.
        thinks: whether its thoughts are told from its answers.
        stop_in_thoughts: whether stop strings end an answer in its thought, too.
        variables: what its chat template may be told beside the conversation, such as `enable_thinking`.
    """

    calls: CallFormat = "none"
    unread_calls: str = ""
    shows_tools: bool = False
    thinks: bool = False
    stop_in_thoughts: bool = False
    variables: frozenset[str] = frozenset()


def style_of(template: ChatTemplate | None, options: FrontendOptions) -> ChatStyle:
    """The style that a template shows, or that the options say."""
    if template is None:
        return ChatStyle()
    detected = detect(template.source)
    calls = detected.calls if options.tool_parser == "auto" else options.tool_parser
    thoughts = detected.thoughts if options.reasoning_parser == "auto" else options.reasoning_parser
    return ChatStyle(
        calls,
        detected.unread_calls,
        "tools" in template.variables,
        thoughts != "none",
        options.stop_in_thoughts,
        template.variables,
    )
