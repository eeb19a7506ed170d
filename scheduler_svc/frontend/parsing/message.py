"""A chat answer's text, taken apart while it arrives: the thought, the content, and calls of tools."""

from typing import Literal, NamedTuple

import msgspec

ThoughtStart = Literal["none", "open", "may_open"]
CallFormat = Literal["none", "hermes", "qwen3_coder", "json"]


class MessageRules(msgspec.Struct, frozen=True, array_like=True, kw_only=True, forbid_unknown_fields=True):
    """How a chat answer is to be taken apart. It is a part of `AnswerContext`, as requests outlive frontends.

    Attributes:
        thought: whether the answer begins inside a thought ("open": the prompt ends with the tag that begins one),
            may begin with one ("may_open": the model writes that tag itself), or has none that is to be split off.
        calls: how the model writes calls of tools; "none" leaves them in the content.
        is_one_call: only the first call counts; later ones are left out.
        text_parameters: of each tool, the parameters whose values are texts; formats that write values without JSON
            need them, others leave this empty.
    """

    thought: ThoughtStart = "none"
    calls: CallFormat = "none"
    is_one_call: bool = False
    text_parameters: dict[str, tuple[str, ...]] = {}


class CallPart(NamedTuple):
    """New text of one call.

    Attributes:
        number: of the call in its message, from 0.
        name: of the tool, in the call's first part; empty in the others.
        arguments: of the tool, as much as is new of their JSON.
    """

    number: int
    name: str
    arguments: str


class MessagePart(NamedTuple):
    """What a piece of text adds to a message."""

    thought: str = ""
    content: str = ""
    calls: tuple[CallPart, ...] = ()


class MessageParser:
    """Takes one answer's text apart. How the text is cut into pieces changes nothing: the parts, joined, are the same.

    Attributes:
        is_thinking: whether the text so far ends inside a thought.
        num_calls: calls that have begun.
    """

    def __init__(self, rules: MessageRules) -> None:
        self.is_thinking = rules.thought == "open"
        self.num_calls = 0

    def feed(self, text: str) -> MessagePart:
        """What this piece adds. Text that could be the beginning of a tag is held back until that is clear."""
        return MessagePart(content=text)

    def flush(self) -> MessagePart:
        """The rest at the end of the text: what was held back."""
        return MessagePart()
