"""The thought at the beginning of an answer, as Qwen3 writes it: `<think>`, the thought, `</think>`, the answer."""

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Literal

from scheduler_svc.frontend.parsing.call_parser import CallParser
from scheduler_svc.frontend.parsing.held_back import MAX_HELD_SPACES, SPACES, Tags, Trailing

ThoughtStart = Literal["none", "open", "may_open"]

BEGIN, END = "<think>", "</think>"
_END_TAGS = Tags(END)
_BEFORE_TAGS = re.compile("(?=<)")


class _State(Enum):
    BEFORE = auto()  # the begin tag may come
    INSIDE = auto()
    CALLS = auto()  # inside, in text that is calls if the thought does not go on after it
    AFTER = auto()  # newlines between the end tag and the answer
    ANSWER = auto()


class ThoughtSplitter:
    """Split an answer's text into its thought and the rest, while it arrives.

    A thought is given without whitespace at its ends, and the rest without the newlines before it, much as Qwen3's chat
    template cuts both when it writes them into a prompt again; an empty thought is none. After the answer's first
    thought, and where it has none, tags are text like any other: also an end tag without a beginning, since what stands
    before it has been shown as the answer.

    A thought without an end is all thought, but for calls that it ends with, since models forget the end tag where they
    turn to a call. So text from a call's begin tag on is held back. It is thought as soon as the thought goes on, with
    its end tag or anything else that is no call; if the text ends first, and the last call is whole, it is calls.

    Args:
        start: "open": the text is inside a thought; a begin tag, which some models repeat, is left out. "may_open": it
            has a thought if it begins with the tag, maybe after whitespace.
        begin_tags: with which a call may begin; without any, a thought has no calls.
        new_parser: makes a parser of calls, which says whether text is calls.

    Attributes:
        is_thinking: whether the text so far ends inside a thought: after a begin tag that is whole, and before an end
            tag that is whole.
    """

    def __init__(
        self,
        start: ThoughtStart,
        begin_tags: tuple[str, ...] = (),
        new_parser: Callable[[], CallParser] | None = None,
    ) -> None:
        self.is_thinking = start == "open"
        self._tags = Tags(END, *begin_tags) if begin_tags else _END_TAGS
        self._new_parser = new_parser
        self._trial: _Trial | None = None
        self._state = _State.ANSWER if start == "none" else _State.BEFORE
        self._held = ""  # of a tag
        self._trailing = Trailing()
        self._has_begun = False

    @property
    def may_be_call(self) -> bool:
        """Whether the text so far ends in what is calls if no more of it comes."""
        return self._state is _State.CALLS

    def feed(self, text: str) -> tuple[str, str]:
        """Return the thought and the rest that this piece adds."""
        if self._state is _State.ANSWER:
            return "", text
        if self._is_thought(text):
            return text, ""
        text, self._held = self._held + text, ""
        if self._state is _State.BEFORE:
            text = self._before(text)
        thought = ""
        while self._state in (_State.INSIDE, _State.CALLS) and text:
            read = self._inside if self._state is _State.INSIDE else self._in_calls
            more, text = read(text)
            thought += more
        if self._state is _State.AFTER:
            text = text.lstrip("\n")
            if text:
                self._state = _State.ANSWER
        return thought, text

    def flush(self) -> tuple[str, str]:
        """Return what was held back, at the end of the text: it is no tag, and maybe calls."""
        held, self._held = self._held, ""
        if self._trial is not None:
            trial, self._trial = self._trial, None
            self.is_thinking = bool(held) or not trial.is_calls()
            held = trial.text + held
        return (self._trimmed(held), "") if self.is_thinking else ("", held)

    def _is_thought(self, text: str) -> bool:
        """Return whether a piece is thought, is shown as it is and changes nothing here. Most are."""
        return (
            self._state is _State.INSIDE
            and self._has_begun
            and not self._held
            and END[0] not in text
            and self._trailing.is_shown(text)
        )

    def _before(self, text: str) -> str:
        """Return the text after the begin tag; empty while it is not clear whether that comes."""
        after = text.lstrip(SPACES)
        if len(text) - len(after) <= MAX_HELD_SPACES:
            if len(after) < len(BEGIN) and BEGIN.startswith(after):
                self._held = text
                return ""
            if after.startswith(BEGIN):
                self.is_thinking = True
                text = after.removeprefix(BEGIN)
        self._state = _State.INSIDE if self.is_thinking else _State.ANSWER
        return text

    def _inside(self, text: str) -> tuple[str, str]:
        """Return the thought, and the text that is left to read."""
        begin, tag = found = self._tags.find(text, 0)
        if tag == END:
            return self._end(text[:begin]), text[found.end :]
        thought = self._trimmed(text[:begin])
        if not tag:
            self._held = text[begin:]
            return thought, ""
        assert self._new_parser is not None
        self._state = _State.CALLS
        self._trial = _Trial(tag, self._new_parser())
        return thought, text[found.end :]

    def _in_calls(self, text: str) -> tuple[str, str]:
        """Return the same in what may be calls."""
        assert self._trial is not None
        begin, tag = found = _END_TAGS.find(text, 0)
        if tag:
            return self._end(self._trial.text + text[:begin]), text[found.end :]
        no_call = self._trial.read(text[:begin])
        if no_call is None:
            self._held = text[begin:]
            return "", ""
        thought, rest = no_call
        self._trial, self._state = None, _State.INSIDE
        return self._trimmed(thought), rest + text[begin:]

    def _end(self, thought: str) -> str:
        """Return the last of the thought."""
        self._trial, self._state, self.is_thinking = None, _State.AFTER, False
        return self._trimmed(thought)

    def _trimmed(self, text: str) -> str:
        if not self._has_begun:
            text = text.lstrip(SPACES)
            self._has_begun = bool(text)
        return self._trailing.feed(text)


class _Trial:
    """Read text of a thought as calls, to see whether it is. Each `<` begins a segment.

    Args:
        tag: a call's begin tag, which the text begins with.
        parser: reads this text alone.
    """

    def __init__(self, tag: str, parser: CallParser) -> None:
        self._parser = parser
        self._pieces = [tag]
        self._last = 0  # the piece that the last segment begins with
        parser.feed(tag)

    @property
    def text(self) -> str:
        """All that was read."""
        return "".join(self._pieces)

    def read(self, text: str) -> tuple[str, str] | None:
        """Read on. Where something shows that is no call, the text up to there and the text that is to be read anew,
        as it may begin with a call's tag; else None. How the text is cut changes nothing: the place is a segment's
        beginning, or else after the tag."""
        pieces = [piece for piece in _BEFORE_TAGS.split(text) if piece]
        for number, piece in enumerate(pieces):
            if piece.startswith("<"):
                self._last = len(self._pieces)
            self._pieces.append(piece)
            self._parser.feed(piece)
            if self._parser.output.take().content:
                place = self._last or 1
                rest = [*self._pieces[place:], *pieces[number + 1 :]]
                return "".join(self._pieces[:place]), "".join(rest)
        return None

    def is_calls(self) -> bool:
        """Return whether the text is calls, the last one whole, if it ends here."""
        self._parser.flush()
        output = self._parser.output
        return not output.take().content and output.num_calls > 0 and not output.has_cut_call
