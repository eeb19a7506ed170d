"""A parameter's value that is written without JSON, made JSON as it comes."""

import json
import re

from scheduler_svc.frontend.parsing.held_back import SPACES

MAX_UNDECIDED_CHARS = 2**18  # longer values are texts: whether they are JSON is known at their end only

_WORDS = {"True": "true", "False": "false", "None": "null"}  # as Python has them, and models that write much Python
_QUOTE = re.compile('"')
_INSIDE_STRINGS = re.compile(r'["\\\n]')


class ParameterValue:
    """Gives a text's JSON as it comes; other values at their end, because only then it is known whether they are JSON.

    What is no JSON is a text after all.

    Args:
        is_text: whether it is one for certain.
    """

    def __init__(self, *, is_text: bool) -> None:
        self._is_text = is_text
        self._has_begun = False
        self._undecided: list[str] = []
        self._num_undecided = 0
        self._strings = _Strings()

    @property
    def is_in_string(self) -> bool:
        """Whether the value is JSON, as far as it goes, and ends inside one of its strings: what follows is no tag."""
        return not self._is_text and self._strings.is_inside

    def feed(self, text: str) -> str:
        """JSON of the value, as much as this piece adds."""
        if not self._is_text:
            self._strings.feed(text)
            self._undecided.append(text)
            self._num_undecided += len(text)
            if self._num_undecided <= MAX_UNDECIDED_CHARS:
                return ""
            text = self._decide_text()
        quote = "" if self._has_begun or not text else '"'
        self._has_begun = self._has_begun or bool(text)
        return quote + json_text(text)[1:-1]

    def end(self) -> str:
        """The rest of the JSON."""
        if not self._is_text:
            value = "".join(self._undecided).strip(SPACES)
            value = _WORDS.get(value, value)
            if _is_json(value):
                return value
            return json_text(self._decide_text())
        return '"' if self._has_begun else '""'

    def _decide_text(self) -> str:
        text, self._undecided = "".join(self._undecided), []
        self._is_text = True
        return text


class _Strings:
    """Follows the strings of a value that may be JSON. A line that ends in a string shows that it is none.

    Attributes:
        is_inside: whether the value so far ends inside a string.
    """

    def __init__(self) -> None:
        self.is_inside = False
        self._has_begun = False
        self._may_be_json = True
        self._is_escaped = False

    def feed(self, text: str) -> None:
        if not self._has_begun and (behind := text.lstrip(SPACES)):
            self._has_begun = True
            self._may_be_json = behind[0] in '{["'
        position = 0
        while self._may_be_json and position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            match = (_INSIDE_STRINGS if self.is_inside else _QUOTE).search(text, position)
            if match is None:
                return
            position = match.end()
            self._is_escaped = match.group() == "\\"
            self._may_be_json = match.group() != "\n"
            if not self._is_escaped:
                self.is_inside = not self.is_inside


def json_text(text: str) -> str:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
