"""How a model writes thoughts and calls, read off its chat template; and whether a prompt leaves a thought open."""

import re
from typing import Literal, NamedTuple

from scheduler_svc.frontend.parsing.message import CallFormat
from scheduler_svc.frontend.parsing.thought import BEGIN, END, ThoughtStart

# A template shows the model what a call looks like: "name": ..., in a string of Jinja's maybe with \" for the quotes.
_JSON_NAME = re.compile(r'\\?"name\\?"\s*:')
_MISTRALS_CALLS = "[TOOL_CALLS]"  # what they begin with, which no parser reads yet


class Detected(NamedTuple):
    """What a chat template says of its model.

    Attributes:
        calls: how it writes calls of tools; "none" if the template has no tools, or has them in a form that is unknown.
        thoughts: how it writes thoughts; "none" if it has none.
        unread_calls: what they begin with, if their format is known and not read; else empty.
    """

    calls: CallFormat
    thoughts: Literal["none", "qwen3"]
    unread_calls: str = ""


def detect(template: str) -> Detected:
    """Read a template's source."""
    has_thoughts = BEGIN in template or END in template
    unread = _MISTRALS_CALLS if _MISTRALS_CALLS in template else ""
    return Detected("none" if unread else _calls(template), "qwen3" if has_thoughts else "none", unread)


def thought_start(prompt: str) -> ThoughtStart:
    """Return where the answer to a prompt begins, for a model that has thoughts.

    Args:
        prompt: as the chat template has written it, or its end.

    Returns:
        "open" if the prompt begins a thought, "none" if it ends with an empty one, so that the model does not think,
        and otherwise "may_open".
    """
    end = prompt.rstrip()
    if end.endswith(BEGIN):
        return "open"
    is_empty = end.endswith(END) and end.removesuffix(END).rstrip().endswith(BEGIN)
    return "none" if is_empty else "may_open"


def _calls(template: str) -> CallFormat:
    if "tools" not in template:
        return "none"
    if "<function=" in template and "<parameter=" in template:
        return "qwen3_coder"
    if not _JSON_NAME.search(template):
        return "none"
    return "hermes" if "<tool_call>" in template else "json"
