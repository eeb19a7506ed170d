"""The message of one sequence: its text taken apart into thought, content and calls, its tokens counted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from scheduler_svc.frontend.parsing.message import CallPart, MessageParser, MessagePart, MessageRules
from scheduler_svc.frontend.text.sequence_text import SequenceText, TextRules
from scheduler_svc.frontend.text.stop_strings import StopSearch

_NOTHING = MessagePart()


class Addition(NamedTuple):
    """What tokens add to a message.

    Attributes:
        num_tokens: number of the sequence's tokens up to the last one of these.
    """

    part: MessagePart
    num_tokens: int


class MessageText:
    """Takes tokens as they come and gives what they add to the message.

    What has been given after the first k tokens does not depend on how the tokens were grouped into calls, as with
    `SequenceText`. Here the text that the client has is needed again: it says where the message stands. The sequence
    ends where a call begins that is left out, or the model could go on with calls that nobody sees. Stop strings are
    searched after the thought, and in it only if the rules say so.

    Args:
        text_rules, rules: of the answer that the sequence belongs to.
        num_delivered: number of tokens whose part of the message the client has; it is not given again.

    Attributes:
        text: of the sequence; it says whether that has ended.
        num_thought_tokens: tokens up to and including the last one of the tag that ends the thought.
    """

    def __init__(self, text_rules: TextRules, rules: MessageRules, num_delivered: int = 0) -> None:
        self.num_thought_tokens = 0
        self._num_delivered = num_delivered
        self._may_think = rules.thought != "none"
        self._min_tokens = text_rules.min_tokens
        search = None
        if text_rules.stops is not None and self._may_think and not rules.stop_in_thought:
            search, text_rules = StopSearch(text_rules.stops), replace(text_rules, stops=None)
        self.text = SequenceText(text_rules)
        self._parser = MessageParser(rules, search)
        self._may_end = rules.is_one_call or search is not None  # by what it says

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._parser.num_calls > 0

    @property
    def has_cut_call(self) -> bool:
        """Whether the arguments of a call are not whole, if the sequence ends here: it is not to be carried out."""
        return self._parser.has_cut_call

    def feed(self, token_ids: Sequence[int], finish_reason: str | None) -> tuple[list[Addition], str | None]:
        """New parts of the message, none of them empty, and why the sequence ended if it did. A thought's part comes
        by itself, unless its last token is the first one of what follows, too.

        Args:
            token_ids, finish_reason: as for `SequenceText.feed`.
        """
        num_old = self._num_delivered - self.text.num_tokens
        if num_old <= 0:
            return self._feed(token_ids, finish_reason)
        if finish_reason == "stop":  # the client may have counted the stop token
            num_old = min(num_old, max(len(token_ids) - 1, 0))
        _, reason = self._feed(token_ids[:num_old], None)
        return ([], reason) if self.text.has_ended else self._feed(token_ids[num_old:], finish_reason)

    def _feed(self, token_ids: Sequence[int], finish_reason: str | None) -> tuple[list[Addition], str | None]:
        if len(token_ids) == 1 or not (self._may_think or self._may_end):
            part, reason = self._read(token_ids, finish_reason)
            return ([Addition(part, self.text.num_tokens)] if any(part) else []), reason
        # The thought token by token: its tokens are counted.
        thought, reason, num_read = self._read_singly(token_ids, finish_reason, lambda: self._may_think)
        additions = [Addition(thought, self.text.num_tokens)]
        if thought.calls and 0 < self.num_thought_tokens < self.text.num_tokens:  # which the thought ended with
            own = Addition(MessagePart(thought.thought), self.num_thought_tokens)
            additions = [own, Addition(thought._replace(thought=""), self.text.num_tokens)]
        if not self.text.has_ended and (num_read < len(token_ids) or not token_ids):
            part, reason = self._read_answer(token_ids[num_read:], finish_reason)
            additions.append(Addition(part, self.text.num_tokens))
        return [addition for addition in additions if any(addition.part)], reason

    def _read_answer(self, token_ids: Sequence[int], finish_reason: str | None) -> tuple[MessagePart, str | None]:
        """What is no thought: token by token if it may end by itself."""
        if not (self._may_end and token_ids):
            return self._read(token_ids, finish_reason)
        part, reason, _ = self._read_singly(token_ids, finish_reason, lambda: True)
        return part, reason

    def _read_singly(
        self, token_ids: Sequence[int], finish_reason: str | None, goes_on: Callable[[], bool]
    ) -> tuple[MessagePart, str | None, int]:
        """Read token by token while it goes on: what they add, why the sequence ended, and how many were read."""
        parts: list[MessagePart] = []
        reason = None
        while goes_on() and len(parts) < len(token_ids) and not self.text.has_ended:
            is_last = len(parts) + 1 == len(token_ids)
            part, reason = self._read(token_ids[len(parts) : len(parts) + 1], finish_reason if is_last else None)
            parts.append(part)
        return _joined(parts), reason, len(parts)

    def _read(self, token_ids: Sequence[int], finish_reason: str | None) -> tuple[MessagePart, str | None]:
        text, reason = self.text.feed(token_ids, finish_reason)
        was_thinking = self._may_think and self._parser.is_thinking
        may_stop = self.text.num_tokens > self._min_tokens
        part = self._parser.feed(text, may_stop=may_stop) if text else _NOTHING
        if self._may_think:
            is_thinking = self._parser.is_thinking
            if (was_thinking or is_thinking) and not self._parser.may_be_call:
                self.num_thought_tokens = self.text.num_tokens
            self._may_think = is_thinking or not (was_thinking or part.content or part.calls)
        if self._parser.stop_string or (reason is None and self._parser.is_over):
            self.text.has_ended = True
            reason = "stop"
        if reason is None:
            return part, None
        part = _joined([part, self._parser.flush(may_stop=may_stop)])
        if self._parser.is_thinking:
            self.num_thought_tokens = self.text.num_tokens
        if self._parser.stop_string:
            self.text.stop_string, reason = self._parser.stop_string, "stop"
        return part, reason


def _joined(parts: Sequence[MessagePart]) -> MessagePart:
    """All of them in one."""
    if len(parts) == 1:
        return parts[0]
    return MessagePart(
        "".join(part.thought for part in parts),
        "".join(part.content for part in parts),
        joined_calls([call for part in parts for call in part.calls]),
    )


def joined_calls(calls: Iterable[CallPart]) -> tuple[CallPart, ...]:
    """The same, with one part of each call."""
    names: dict[int, str] = {}
    arguments: dict[int, list[str]] = {}
    for call in calls:
        names[call.number] = names.get(call.number, "") + call.name
        arguments.setdefault(call.number, []).append(call.arguments)
    return tuple(CallPart(number, name, "".join(arguments[number])) for number, name in names.items())
