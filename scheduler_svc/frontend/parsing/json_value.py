"""A JSON value, read as it comes, and written so that every parser reads it."""

import json
import math
import re
from enum import Enum, auto
from typing import NoReturn

from scheduler_svc.frontend.parsing.held_back import MAX_HELD_SPACES
from scheduler_svc.frontend.parsing.json_string import JsonString, json_text

MAX_DEPTH = 56  # a client sends the value back inside of a body, whose depth is at most 64
MAX_SCALAR_CHARS = 256  # as of a number in a body
WORDS = {"True": "true", "False": "false", "None": "null"}  # as Python has them, and models that write much Python

_NO_SPACE = re.compile(r"[^ \t\r\n]")
_AFTER_SCALAR = re.compile(r'[ \t\r\n,:"<{}\[\]]')
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_SO_FAR = re.compile(r"-?|-?(0|[1-9][0-9]*)(\.[0-9]*)?|-?(0|[1-9][0-9]*)(\.[0-9]+)?[eE][+-]?[0-9]*")


class _Next(Enum):
    """Name what may come next."""

    VALUE = auto()
    ITEM = auto()  # of a list, or its end
    KEY = auto()  # of an object, or its end
    COLON = auto()
    SEPARATOR = auto()  # or the end of what the value stands in


class JsonValue:
    """Read one value and write it again, the whitespace as it was.

    Damage that shows while it is read is repaired: control characters in strings are escaped, escapes that JSON does
    not have say themselves, half a surrogate pair becomes U+FFFD, a comma before a closing bracket is left out, and
    Python's words become JSON's. Any other damage ends the value, and so does a number that no double can
    hold, as 1e999: what has been written cannot be taken back.

    Attributes:
        is_complete: whether the value's end has been read.
        is_broken: whether the text cannot be the value any more. What was read up to there could.
        has_line_end: whether a string has one that is not escaped.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self.is_broken = False
        self.has_line_end = False
        self._next = _Next.VALUE
        self._ends: list[str] = []  # the brackets that are to come, the innermost last
        self._string: JsonString | None = None
        self._scalar = ""
        self._held = ""  # a comma that may stand before a closing bracket, and whitespace
        self._written: list[str] = []

    def read(self, text: str, start: int) -> int:
        """Read on in `text` from `start`. Return where the value, what can be read of it, or the text ends."""
        while start < len(text) and not (self.is_complete or self.is_broken):
            if self._string is not None:
                start = self._read_string(self._string, text, start)
            elif self._scalar:
                start = self._read_scalar(text, start)
            else:
                start = self._read_token(text, start)
        return start

    def take(self) -> str:
        """Return what was written since the last time."""
        written, self._written = "".join(self._written), []
        return written

    def says(self, text: str) -> bool:
        """Return whether a piece stands in a string and is written as it is: it need not be read."""
        return self._string is not None and self._string.says(text)

    def take_rest(self) -> tuple[str, str]:
        """Return what has been read and not been written, as it was read: what goes on with the value's JSON if the
        text ends here, and what does not."""
        rest = self._held + self._scalar + (self._string.held if self._string else "")
        goes_on = not self.is_broken and (not self._scalar or _begins_scalar(self._scalar))
        self._held = self._scalar = ""
        return (rest, "") if goes_on else ("", rest)

    @property
    def is_blank(self) -> bool:
        """Whether nothing but whitespace has been read."""
        return self._next is _Next.VALUE and not (self._ends or self._scalar) and self._string is None

    @property
    def is_in_string(self) -> bool:
        """Whether the text so far ends inside a string."""
        return self._string is not None

    @property
    def is_whole(self) -> bool:
        """Whether the text so far is a value."""
        is_scalar = not self._ends and not self.is_broken and _is_scalar(self._scalar)
        return self.is_complete or is_scalar

    def end(self) -> None:
        """End the text, and so a number, or a word."""
        if self._scalar and not self.is_broken:
            self._end_scalar()

    def close(self) -> None:
        """Close the brackets that are open, as what follows shows that they are missing. After a key, or in the middle
        of a string, nothing is closed: something else is missing there."""
        is_after_value = self._next not in (_Next.VALUE, _Next.COLON)
        if self._ends and is_after_value and self._string is None and not self._scalar:
            self._held = ""
            self._written += reversed(self._ends)
            self.is_complete, self.is_broken = True, False

    def _read_string(self, string: JsonString, text: str, start: int) -> int:
        end, decoded = string.read(text, start)
        self.has_line_end = self.has_line_end or text.find("\n", start, end) >= 0
        self._written.append(json_text(decoded)[1:-1])
        if string.is_closed:
            self._written.append('"')
            self._string = None
            if self._next is _Next.KEY:
                self._next = _Next.COLON
            else:
                self._end_value()
        return end

    def _read_scalar(self, text: str, start: int) -> int:
        match = _AFTER_SCALAR.search(text, start)
        end = min(match.start() if match else len(text), start + MAX_SCALAR_CHARS + 1 - len(self._scalar))
        self._scalar += text[start:end]
        if len(self._scalar) > MAX_SCALAR_CHARS:
            self.is_broken = True
        elif match:
            self._end_scalar()
        return end

    def _end_scalar(self) -> None:
        if not _is_scalar(self._scalar):
            self.is_broken = True
            return
        self._written.append(WORDS.get(self._scalar, self._scalar))
        self._scalar = ""
        self._end_value()

    def _read_token(self, text: str, start: int) -> int:
        match = _NO_SPACE.search(text, start)
        end = match.start() if match else len(text)
        self._add_spaces(text[start:end])
        if match is None:
            return end
        sign = match.group()
        is_value = self._next in (_Next.VALUE, _Next.ITEM)
        if sign == '"' and (is_value or self._next is _Next.KEY):
            self._write(sign)
            self._string = JsonString()
        elif sign in "{[" and is_value and len(self._ends) < MAX_DEPTH:
            self._write(sign)
            self._ends.append("}" if sign == "{" else "]")
            self._next = self._next_of_open()
        elif sign == ":" and self._next is _Next.COLON:
            self._write(sign)
            self._next = _Next.VALUE
        elif sign == "," and self._next is _Next.SEPARATOR:
            self._held = sign
            self._next = self._next_of_open()
        elif sign in self._ends[-1:] and self._next in (_Next.SEPARATOR, self._next_of_open()):
            self._held = ""
            self._write(self._ends.pop())
            self._end_value()
        elif is_value and not _AFTER_SCALAR.match(sign):
            self._write("")
            return self._read_scalar(text, end)
        else:
            self.is_broken = True
            return end
        return end + 1

    def _next_of_open(self) -> _Next:
        return _Next.KEY if self._ends[-1] == "}" else _Next.ITEM

    def _end_value(self) -> None:
        self._next = _Next.SEPARATOR
        self.is_complete = not self._ends

    def _add_spaces(self, spaces: str) -> None:
        if self._held:
            self._held += spaces
            if len(self._held) > MAX_HELD_SPACES:
                self._write("")
        elif spaces:
            self._written.append(spaces)

    def _write(self, token: str) -> None:
        self._written.append(self._held + token)
        self._held = ""


def is_object(text: str) -> bool:
    """Return whether a text is the JSON of an object: what a `JsonValue` has written of one, if it is complete."""
    try:
        return isinstance(json.loads(text, parse_constant=_no_constant), dict)
    except (ValueError, RecursionError):
        return False


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _begins_scalar(text: str) -> bool:
    return _NUMBER_SO_FAR.fullmatch(text) is not None or any(word.startswith(text) for word in WORDS.values())


def _is_scalar(text: str) -> bool:
    if text in WORDS:
        return True
    match = _SCALAR.fullmatch(text)
    return match is not None and (match[1] is None or math.isfinite(float(text)))
