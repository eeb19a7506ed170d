"""A call as a JSON object, `{"name": "f", "arguments": {...}}`, read as it comes."""

import re
from collections.abc import Callable

from scheduler_svc.frontend.parsing.held_back import SPACES
from scheduler_svc.frontend.parsing.json_string import JsonString
from scheduler_svc.frontend.parsing.json_value import JsonValue

MAX_NAME_CHARS = 256
ARGUMENTS = ("arguments", "parameters")

_NO_SPACE = re.compile(r"[^ \t\r\n]")
_NO_SEPARATOR = re.compile(r"[^ \t\r\n,]")
_SAID_AS_WRITTEN = re.compile(r'[^"\\]+')
_FIRST_OF_ARGUMENTS = "{nN"  # of an object, or of null


class CallObject:
    """One object. Its keys come in any order, those that are neither a name nor arguments are passed over.

    Arguments are an object, written as `JsonValue` writes it; a string that says an object is as good, and null and an
    empty string are an object without arguments. Anything else ends the call's object.

    Attributes:
        name: of the tool, empty until it is known.
        has_begun: whether something of the arguments has been given.
        has_arguments: whether all of them have been read.
        has_others: whether something has been passed over.
        is_complete: whether the object's end has been read.
        is_broken: whether the text cannot be the object any more. What was read up to there could.
    """

    def __init__(self) -> None:
        self.name = ""
        self.has_begun = False
        self.has_arguments = False
        self.has_others = False
        self.is_complete = False
        self.is_broken = False
        self._step: Callable[[str, int], int] = self._read_begin
        self._string = JsonString()
        self._words: list[str] = []  # of a key or a name
        self._num_word_chars = 0
        self._key = ""
        self._value = JsonValue()
        self._is_kept = False  # the value is the arguments
        self._arguments: list[str] = []
        self._said = ""  # by a string, after what can be arguments

    def read(self, text: str, start: int) -> int:
        """Read on in `text` from `start`. Return where it ends, or the name, the arguments, or what can be read."""
        known = self.name, self.has_arguments
        while start < len(text) and not (self.is_complete or self.is_broken):
            start = self._step(text, start)
            if known != (self.name, self.has_arguments):
                break
        return start

    def is_argument(self, text: str) -> bool:
        """Return whether a piece is a part of a string in the arguments and changes nothing here: it need not be
        read."""
        return self._is_kept and self._step == self._read_plain and self._value.says(text)

    def take_arguments(self) -> str:
        """Return what was read of the arguments since the last time."""
        arguments, self._arguments = "".join(self._arguments), []
        return arguments

    def take_rest(self) -> tuple[str, str]:
        """Return what was read of arguments that are not whole and was not given, as it was read: what goes on with
        their JSON if the text ends here, and what does not."""
        arguments, rest = self._value.take_rest() if self._is_kept and not self.has_arguments else ("", "")
        return arguments, rest + self._said

    def end(self) -> None:
        """End the text. Arguments that are whole are, also if the string that says them is not."""
        if self._step == self._read_decoded and self._value.is_complete:
            self.has_arguments = True

    def close(self) -> None:
        """Complete the object, where a tag follows it and shows that brackets are missing, if that is all."""
        if self._step == self._read_plain:
            self._value.close()
            if self._value.is_complete:
                self._end_plain()
        if self._step == self._read_member:
            self.is_complete, self.is_broken = True, False

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
        self._value = JsonValue()
        self._is_kept = self._key in ARGUMENTS and not self.has_arguments
        self._step = self._read_plain
        match match.group():
            case '"' if self._is_kept:
                self._begin_string(self._read_decoded)
                return match.end()
            case '"' if self._key == "name" and not self.name:
                self._begin_string(self._read_name)
                return match.end()
            case _ if not self._is_kept:
                self.has_others = True
            case first if first not in _FIRST_OF_ARGUMENTS:
                self.is_broken = True
        return match.start()

    def _read_name(self, text: str, start: int) -> int:
        end = self._read_word(text, start)
        if self._string.is_closed:
            self.name = "".join(self._words)
            self._step = self._read_member
        return end

    def _read_plain(self, text: str, start: int) -> int:
        """Read a value as it is written."""
        end = self._value.read(text, start)
        self._end_plain()
        return end

    def _end_plain(self) -> None:
        self._keep(self._value.take())
        self.is_broken = self._value.is_broken
        if self._value.is_complete:
            self.has_arguments = self.has_arguments or self._is_kept
            self._step = self._read_member

    def _read_decoded(self, text: str, start: int) -> int:
        """Read arguments as a string says them: so much of it as is written as it is said, or else a character."""
        match = _SAID_AS_WRITTEN.match(text, start) if self._string.says("") else None
        end = match.end() if match else start + 1
        _, decoded = self._string.read(text[start:end], 0)
        stop = self._read_said(decoded)
        self._keep(self._value.take())
        if self._string.is_closed and not self.is_broken:
            self._end_decoded()
        if not self.is_broken:
            return end
        if match:
            return start + stop
        self._said = decoded[stop:]
        return end

    def _read_said(self, text: str) -> int:
        """Read on in what the string says. Return where that ends, or cannot be arguments."""
        start = 0
        if self._value.is_blank or self._value.is_complete:
            start = len(text) - len(text.lstrip(SPACES))
            if text[start:] and (self._value.is_complete or text[start] not in _FIRST_OF_ARGUMENTS):
                self.is_broken = True
                return start
        stop = self._value.read(text, start)
        self.is_broken = self._value.is_broken or bool(text[stop:].strip(SPACES))
        return stop

    def _end_decoded(self) -> None:
        """End the string, which shows that brackets are missing. Nothing in it is an object without arguments."""
        if self._value.is_blank:
            self._value.read("null", 0)
        self._value.end()
        self._value.close()
        self._keep(self._value.take())
        self.end()
        if self.has_arguments:
            self._step = self._read_member
        else:
            self.is_broken = True

    def _keep(self, value: str) -> None:
        if self._is_kept and value:
            is_null = value == "null" and self._value.is_complete  # an object ends with its bracket
            self._arguments.append("{}" if is_null else value)
            self.has_begun = True

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
        """Read a key or a name. One that is too long ends the object where it becomes so."""
        piece = text[start : start + MAX_NAME_CHARS + 1 - self._num_word_chars]
        num_read, decoded = self._string.read(piece, 0)
        self._num_word_chars += num_read
        self._words.append(decoded)
        self.is_broken = self._num_word_chars > MAX_NAME_CHARS
        return start + num_read
