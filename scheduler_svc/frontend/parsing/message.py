"""A chat answer's text, taken apart while it arrives: the thought, the content, and calls of tools."""

from functools import partial
from typing import Literal

import msgspec

from scheduler_svc.frontend.parsing.call_parser import CallParser
from scheduler_svc.frontend.parsing.hermes import HermesParser
from scheduler_svc.frontend.parsing.output import Output
from scheduler_svc.frontend.parsing.parts import CallPart, MessagePart
from scheduler_svc.frontend.parsing.plain_json import JsonParser
from scheduler_svc.frontend.parsing.qwen3_coder import Qwen3CoderParser
from scheduler_svc.frontend.parsing.thought import ThoughtSplitter, ThoughtStart
from scheduler_svc.frontend.text.stop_strings import StopSearch

__all__ = ["CallFormat", "CallPart", "MessageParser", "MessagePart", "MessageRules", "ThoughtStart"]

CallFormat = Literal["none", "hermes", "qwen3_coder", "json"]


class MessageRules(msgspec.Struct, frozen=True, array_like=True, kw_only=True, forbid_unknown_fields=True):
    """How a chat answer is to be taken apart. It is a part of `AnswerContext`, as requests outlive frontends.

    Attributes:
        thought: whether the answer begins inside a thought ("open": the prompt ends with the tag that begins one),
            may begin with one ("may_open": the model writes that tag itself), or has none that is to be split off.
        calls: how the model writes calls of tools; "none" leaves them in the content.
        is_one_call: only the first call counts; later ones are left out.
        text_parameters: of each tool, the parameters that are texts; since version 7 of the context, `parameters` says
            more, and this is empty.
        stop_in_thought: whether stop strings end the answer in its thought, too; since version 7, as what follows.
        calls_in_thought: whether calls that a thought without an end tag ends with are calls.
        parameters: of each tool, the parameters that its schema names. Each that may be a text has JSON's types that
            it may have else; others have None. Formats that write values without JSON need them, others leave this
            empty.
    """

    thought: ThoughtStart = "none"
    calls: CallFormat = "none"
    is_one_call: bool = False
    text_parameters: dict[str, tuple[str, ...]] = {}
    stop_in_thought: bool = True
    calls_in_thought: bool = False
    parameters: dict[str, dict[str, tuple[str, ...] | None]] = {}


class MessageParser:
    """Take one answer's text apart. How the text is cut into pieces changes nothing: the parts, joined, are the same.

    Its time grows with the text, not with the text times the number of pieces. It keeps no more of the text than what
    it holds back: a tag, 64 characters of whitespace, a bounded number of characters of a call whose name has not come
    and of a value that may be JSON, what may be calls in a thought, and the beginning of a stop string.
    `ThoughtSplitter` and the formats' parsers say what becomes of text that is neither one thing nor the other. A
    tool's name is given as it is written, also if the request has no such tool.

    Args:
        search: finds a stop string in what is no thought, calls included, as the model writes it; None if none is to be
            found there.

    Attributes:
        stop_string: that was found; empty if none was. Nothing may be fed then.
        is_thinking: whether the text so far ends inside a thought. A token is one of thinking if this is true before it
            or after it: so the tags count, those that the model writes.
    """

    def __init__(self, rules: MessageRules, search: StopSearch | None = None) -> None:
        self.stop_string = ""
        self._search = search
        self._output = Output(is_one_call=rules.is_one_call)
        self._calls = calls = _call_parser(rules, self._output)
        if rules.calls_in_thought and calls is not None:
            new_parser = partial(_new_parser, rules)
            self._thought = ThoughtSplitter(rules.thought, calls.begin_tags, new_parser)
        else:
            self._thought = ThoughtSplitter(rules.thought)

    @property
    def is_thinking(self) -> bool:
        """See the class."""
        return self._thought.is_thinking

    @property
    def may_be_call(self) -> bool:
        """Whether the text so far ends inside a thought, in what is calls if no more of it comes."""
        return self._thought.may_be_call

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._output.num_calls

    @property
    def has_cut_call(self) -> bool:
        """Whether the arguments of a call are not whole, if no more text comes: they are no JSON."""
        return self._output.has_cut_call

    @property
    def is_over(self) -> bool:
        """Whether a call has begun that is left out: what comes now is of no use."""
        return self._output.has_left_out

    def feed(self, text: str, *, may_stop: bool = True) -> MessagePart:
        """Return what this piece adds. Text that could be the beginning of a tag is held back until that is clear.

        Args:
            may_stop: whether a stop string may be found in this piece.
        """
        thought, rest = self._thought.feed(text)
        return self._rest(thought, self._searched(rest, may_stop=may_stop))

    def flush(self, *, may_stop: bool = True) -> MessagePart:
        """Return the rest at the end of the text: what was held back."""
        thought, rest = self._thought.flush()
        rest = self._searched(rest, may_stop=may_stop)
        part = self._rest(thought, rest if self._search is None else rest + self._search.flush())
        if self._calls is None:
            return part
        self._calls.flush()
        last = self._output.take()
        return MessagePart(thought, part.content + last.content, part.calls + last.calls)

    def _searched(self, text: str, *, may_stop: bool) -> str:
        """Return as much of the text as may be shown, where stop strings are searched."""
        if self._search is None or not text:
            return text
        text, _ = self._search.feed(text, may_stop=may_stop)
        self.stop_string = self._search.found
        return text

    def _rest(self, thought: str, text: str) -> MessagePart:
        if self._calls is None or not text:
            return MessagePart(thought, text)
        if self._calls.is_content(text):
            return MessagePart(thought, text)
        if self._calls.is_argument(text):
            return MessagePart(thought, "", (CallPart(self._output.num_calls - 1, "", text),))
        self._calls.feed(text)
        part = self._output.take()
        return part._replace(thought=thought) if thought else part


def _call_parser(rules: MessageRules, output: Output) -> CallParser | None:
    match rules.calls:
        case "none":
            return None
        case "hermes":
            return HermesParser(output)
        case "qwen3_coder":
            texts = {tool: dict.fromkeys(names, ()) for tool, names in rules.text_parameters.items()}
            return Qwen3CoderParser(output, rules.parameters or texts)
        case "json":
            return JsonParser(output)


def _new_parser(rules: MessageRules) -> CallParser:
    parser = _call_parser(rules, Output(is_one_call=False))
    assert parser is not None
    return parser
