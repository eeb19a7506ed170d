"""A call as a JSON object, `{"name": "f", "arguments": {...}}`, read as it comes."""

import re
from collections.abc import Callable

from scheduler_svc.frontend.parsing.json_string import JsonString

MAX_NAME_CHARS = 256
ARGUMENTS = ("arguments", "parameters")

_NO_SPACE = re.compile(r"[^ \t\r\n]")
_NO_SEPARATOR = re.compile(r"[^ \t\r\n,]")
_OUTSIDE_STRINGS = re.compile(r'["{}\[\]<]')
_INSIDE_STRINGS = re.compile(r'["\\]')
_AFTER_SCALAR = re.compile(r'[ \t\r\n,:"<{}\[\]]')


class CallObject:
    """One object. Its keys come in any order, those that are neither a name nor arguments are passed over.

    Values are not checked: arguments are what the model wrote. Only what is no JSON for certain ends the object, as a
    tag does outside of strings. Arguments that are a string are given as what that string says.

    Attributes:
        name: of the tool, empty until it is known.
        has_arguments: whether the arguments have begun.
        is_complete: whether the object's end has been read.
        is_broken: whether the text cannot be the object any more. What was read up to there could.
    """

    def __init__(self) -> None:
        self.name = ""
        self.has_arguments = False
        self.is_complete = False
        self.is_broken = False
        self._step: Callable[[str, int], int] = self._read_begin
        self._string = JsonString()
        self._words: list[str] = []  # of a key or a name
        self._num_word_chars = 0
        self._key = ""
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._is_kept = False  # the value is the arguments
        self._arguments: list[str] = []

    def read(self, text: str, start: int) -> int:
        """Read on in `text` from `start`; where the object, what can be read of it, or the text ends."""
        while start < len(text) and not (self.is_complete or self.is_broken):
            start = self._step(text, start)
        return start

    def is_argument(self, text: str) -> bool:
        """Whether a piece is a part of a string in the arguments and changes nothing here: it need not be read."""
        return self._is_in_string and self._is_kept and not self._is_escaped and not ('"' in text or "\\" in text)

    def take_arguments(self) -> str:
        """What was read of the arguments since the last time."""
        arguments, self._arguments = "".join(self._arguments), []
        return arguments

    def _read_begin(self, text: str, start: int) -> int:
        return self._expect("{", self._read_member, text, start)

    def _read_member(self, text: str, start: int) -> int:
        match = _NO_SEPARATOR.search(text, start)
        if match is None:
            return len(text)
        match match.group():
            case '"':
                self._begin_string(self._read_key)
            case "}":
                self.is_complete = True
            case _:
                self.is_broken = True
                return match.start()
        return match.end()

    def _read_key(self, text: str, start: int) -> int:
        end = self._read_word(text, start)
        if self._string.is_closed:
            self._key = "".join(self._words)
            self._step = self._read_colon
        return end

    def _read_colon(self, text: str, start: int) -> int:
        return self._expect(":", self._read_value, text, start)

    def _read_value(self, text: str, start: int) -> int:
        match = _NO_SPACE.search(text, start)
        if match is None:
            return len(text)
        first = match.group()
        self._is_kept = self._key in ARGUMENTS and not self.has_arguments
        self.has_arguments = self.has_arguments or self._is_kept
        if first == '"' and self._key == "name" and not self.name:
            self._begin_string(self._read_name)
            return match.end()
        if first == '"' and self._is_kept:
            self._begin_string(self._read_decoded)
            return match.end()
        self._step = self._read_nested if first in '"{[' else self._read_scalar
        return match.start()

    def _read_name(self, text: str, start: int) -> int:
        end = self._read_word(text, start)
        if self._string.is_closed:
            self.name = "".join(self._words)
            self._step = self._read_member
        return end

    def _read_decoded(self, text: str, start: int) -> int:
        end, decoded = self._string.read(text, start)
        self._arguments.append(decoded)
        if self._string.is_closed:
            self._step = self._read_member
        return end

    def _read_nested(self, text: str, start: int) -> int:
        """A string, an object or a list, as it is written."""
        position = start
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            match = (_INSIDE_STRINGS if self._is_in_string else _OUTSIDE_STRINGS).search(text, position)
            if match is None:
                position = len(text)
                break
            character, position = match.group(), match.end()
            if character == "<":
                position -= 1
                self.is_broken = True
                break
            if character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._is_in_string = not self._is_in_string
            else:
                self._depth += 1 if character in "{[" else -1
            if self._depth == 0 and not self._is_in_string:
                self._step = self._read_member
                break
        self._keep(text[start:position])
        return position

    def _read_scalar(self, text: str, start: int) -> int:
        match = _AFTER_SCALAR.search(text, start)
        end = match.start() if match else len(text)
        self._keep(text[start:end])
        if match:
            self._step = self._read_member
        return end

    def _keep(self, value: str) -> None:
        if self._is_kept:
            self._arguments.append(value)

    def _expect(self, character: str, then: Callable[[str, int], int], text: str, start: int) -> int:
        match = _NO_SPACE.search(text, start)
        if match is None:
            return len(text)
        if match.group() != character:
            self.is_broken = True
            return match.start()
        self._step = then
        return match.end()

    def _begin_string(self, then: Callable[[str, int], int]) -> None:
        self._string, self._words, self._num_word_chars = JsonString(), [], 0
        self._step = then

    def _read_word(self, text: str, start: int) -> int:
        """A key or a name. One that is too long ends the object where it becomes so."""
        piece = text[start : start + MAX_NAME_CHARS + 1 - self._num_word_chars]
        num_read, decoded = self._string.read(piece, 0)
        self._num_word_chars += num_read
        self._words.append(decoded)
        self.is_broken = self._num_word_chars > MAX_NAME_CHARS
        return start + num_read
