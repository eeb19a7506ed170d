"""The thought at the beginning of an answer, as Qwen3 writes it: `<think>`, the thought, `</think>`, the answer."""

from enum import Enum, auto
from typing import Literal

from scheduler_svc.frontend.parsing.held_back import MAX_HELD_SPACES, SPACES, Tags, Trailing

ThoughtStart = Literal["none", "open", "may_open"]

BEGIN, END = "<think>", "</think>"
_END_TAGS = Tags(END)


class _State(Enum):
    BEFORE = auto()  # the begin tag may come
    INSIDE = auto()
    BEHIND = auto()  # newlines between the end tag and the answer
    ANSWER = auto()


class ThoughtSplitter:
    """Splits an answer's text into its thought and the rest, while it arrives.

    A thought is given without whitespace at its ends, and the rest without the newlines before it, much as Qwen3's chat
    template cuts both when it writes them into a prompt again; an empty thought is none. A thought without an end is
    all thought. Behind the answer's first thought, and where it has none, tags are text like any other: also an end tag
    without a beginning, since what stands before it has been shown as the answer.

    Args:
        start: "open": the text is inside a thought; a begin tag, which some models repeat, is left out. "may_open": it
            has a thought if it begins with the tag, maybe after whitespace.

    Attributes:
        is_thinking: whether the text so far ends inside a thought: behind a begin tag that is whole, and before an end
            tag that is whole.
    """

    def __init__(self, start: ThoughtStart) -> None:
        self.is_thinking = start == "open"
        self._state = _State.ANSWER if start == "none" else _State.BEFORE
        self._held = ""  # of a tag
        self._trailing = Trailing()
        self._has_begun = False

    def feed(self, text: str) -> tuple[str, str]:
        """The thought and the rest that this piece adds."""
        if self._state is _State.ANSWER:
            return "", text
        if self._is_thought(text):
            return text, ""
        text, self._held = self._held + text, ""
        if self._state is _State.BEFORE:
            text = self._before(text)
        thought = ""
        if self._state is _State.INSIDE:
            thought, text = self._inside(text)
        if self._state is _State.BEHIND:
            text = text.lstrip("\n")
            if text:
                self._state = _State.ANSWER
        return thought, text

    def flush(self) -> tuple[str, str]:
        """What was held back, at the end of the text: it is no tag."""
        held, self._held = self._held, ""
        return (self._trimmed(held), "") if self.is_thinking else ("", held)

    def _is_thought(self, text: str) -> bool:
        """Whether a piece is thought, is shown as it is and changes nothing here. Most are."""
        return (
            self._state is _State.INSIDE
            and self._has_begun
            and not self._held
            and END[0] not in text
            and self._trailing.is_shown(text)
        )

    def _before(self, text: str) -> str:
        """The text behind the begin tag; empty while it is not clear whether that comes."""
        behind = text.lstrip(SPACES)
        if len(text) - len(behind) <= MAX_HELD_SPACES:
            if len(behind) < len(BEGIN) and BEGIN.startswith(behind):
                self._held = text
                return ""
            if behind.startswith(BEGIN):
                self.is_thinking = True
                text = behind.removeprefix(BEGIN)
        self._state = _State.INSIDE if self.is_thinking else _State.ANSWER
        return text

    def _inside(self, text: str) -> tuple[str, str]:
        begin, tag = found = _END_TAGS.find(text, 0)
        thought = self._trimmed(text[:begin])
        if not tag:
            self._held = text[begin:]
            return thought, ""
        self.is_thinking = False
        self._state = _State.BEHIND
        return thought, text[found.end :]

    def _trimmed(self, text: str) -> str:
        if not self._has_begun:
            text = text.lstrip(SPACES)
            self._has_begun = bool(text)
        return self._trailing.feed(text)
