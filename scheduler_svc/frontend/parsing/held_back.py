"""Text that is held back while it arrives: what may become a tag, and whitespace that may stand before one."""

import re
from typing import NamedTuple

SPACES = " \t\r\n"
MAX_HELD_SPACES = 64  # whitespace that goes on for longer is a text of its own


class Found(NamedTuple):
    """Where a tag stands.

    Attributes:
        begin: of the tag; without a tag, where the text ends that cannot belong to one.
        tag: empty if none is whole.
    """

    begin: int
    tag: str

    @property
    def end(self) -> int:
        """Where the text goes on after the tag."""
        return self.begin + len(self.tag)


class Tags:
    """Tags of which one may follow. None is the beginning of another."""

    def __init__(self, *tags: str) -> None:
        self._tags = tags
        self._pattern = re.compile("|".join(map(re.escape, tags)))
        self._firsts = re.compile("[" + "".join({re.escape(tag[0]) for tag in tags}) + "]")
        self._longest = max(map(len, tags))

    def find(self, text: str, start: int) -> Found:
        """Return the first tag in `text` from `start` on."""
        if match := self._pattern.search(text, start):
            return Found(match.start(), match.group())
        for match in self._firsts.finditer(text, max(start, len(text) - self._longest + 1)):
            if self.may_begin(text, match.start()):
                return Found(match.start(), "")
        return Found(len(text), "")

    def at(self, text: str, start: int) -> str:
        """Return the tag that begins at `start`; empty if none is whole."""
        match = self._pattern.match(text, start)
        return match.group() if match else ""

    def after_spaces(self, text: str, start: int) -> Found | None:
        """Return the tag that comes next, after no more than `MAX_HELD_SPACES`; an empty one if anything else does,
        None while that is not clear."""
        spaces = text[start : start + MAX_HELD_SPACES]
        begin = start + len(spaces) - len(spaces.lstrip(SPACES))
        is_open = begin - start < MAX_HELD_SPACES and self.may_begin(text, begin)
        return None if is_open else Found(begin, self.at(text, begin))

    def may_begin(self, text: str, start: int) -> bool:
        """Return whether all of `text` from `start` on is the beginning of a tag, and less than a whole one."""
        length = len(text) - start
        return length < self._longest and any(len(tag) > length and tag.startswith(text[start:]) for tag in self._tags)


class Trailing:
    """Hold back whitespace at the end of a text, as it may be followed by a tag: then it is not shown."""

    def __init__(self) -> None:
        self._held = ""
        self._is_long = False  # the text ends with more than may be held back, and all of it has been shown

    def feed(self, text: str) -> str:
        """Return what may be shown of the text so far."""
        body = text.rstrip(SPACES)
        spaces = text[len(body) :]
        if body:
            body = self._held + body
            self._held, self._is_long = spaces, False
        else:
            self._held += spaces
        if self._is_long or len(self._held) > MAX_HELD_SPACES:
            body += self._held
            self._held, self._is_long = "", True
        return body

    def is_shown(self, text: str) -> bool:
        """Return whether all of a piece may be shown, and nothing before it is held back: then `feed` need not see
        it."""
        return not self._held and not self._is_long and text[-1:] not in SPACES

    def take(self) -> str:
        """Return what is held back."""
        held, self._held = self._held, ""
        return held
