"""What the formats of calls have in common: a machine whose states read a text that arrives in pieces."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from scheduler_svc.frontend.parsing.held_back import SPACES
from scheduler_svc.frontend.parsing.object_call import ObjectCall
from scheduler_svc.frontend.parsing.output import Output

# A state reads from a position on, as far as it can, and returns how far it came. Where more text has to come before it
# can go on, it leaves what it has to see again, and that is short. It may set another state.
State = Callable[[str, int], int]


class CallParser(ABC):
    """Read content and calls. The states decide by the text alone, however it is cut.

    Attributes:
        tag_begin: the first character of the tags in content; empty if content has none.
        begin_tags: with which a call may begin; each has `<` at its beginning alone.
    """

    tag_begin: ClassVar[str] = "<"
    begin_tags: ClassVar[tuple[str, ...]] = ()

    def __init__(self, output: Output) -> None:
        self.output = output
        self._state: State = self._content
        self._call: ObjectCall | None = None  # that is being read, where calls are objects
        self._held = ""
        self._is_open = False  # an end tag belongs to the last call
        self._is_between = False  # and only whitespace has come since that call
        self._has_closed = False  # an end tag has come, and no content since then
        self._is_last = False  # no more text comes

    def feed(self, text: str) -> None:
        """Read a piece. What it adds goes to the output."""
        text = self._held + text
        position = 0
        while position < len(text):
            state = self._state
            before, position = position, state(text, position)
            if position == before and self._state == state:
                break
        self._held = text[position:]

    def is_content(self, text: str) -> bool:
        """Return whether a piece is content, is shown as it is and changes nothing here: it need not be read. Most
        are."""
        return (
            not (self._held or self._is_between or self._has_closed)
            and not (self.tag_begin and self.tag_begin in text)
            and self._state == self._content
            and self.output.is_shown(text)
        )

    def is_argument(self, text: str) -> bool:
        """Return whether a piece belongs to the arguments of the last call as it is and changes nothing here."""
        return self._call is not None and self._call.is_argument(text) and not self.output.has_left_out

    def flush(self) -> None:
        """End the text: what waited for more text is decided, and goes to the output."""
        self._is_last = True
        self.feed("")
        held, self._held = self._held, ""
        self._end(held)
        self.output.flush()

    def _open(self) -> None:
        """Note that a call has begun, to which end tags belong."""
        self._is_open = self._is_between = True

    def _add_content(self, text: str) -> None:
        if self._is_between:
            text = text.lstrip(SPACES)
        if text.strip(SPACES):
            self._is_between = self._has_closed = False
        self.output.add_content(text)

    def _add_end_tag(self, tag: str, *, is_last: bool) -> None:
        """Leave an end tag in content out if a call is before it, also if there is one too many of them.

        Args:
            is_last: whether the call needs no other end tag.
        """
        if not (self._is_open or self._has_closed):
            self._add_content(tag)
        elif is_last:
            self._is_open, self._is_between, self._has_closed = False, False, True

    @abstractmethod
    def _content(self, text: str, start: int) -> int:
        """Read content, until a call begins: the first state."""

    @abstractmethod
    def _end(self, held: str) -> None:
        """Decide what becomes of text that a state has left at the end."""
