"""The names that Responses have for the functions of a chat, and a custom tool's input, taken out of its arguments."""

import json
import re

from msgspec import Struct

from scheduler_svc.frontend.parsing.json_string import JsonString
from scheduler_svc.frontend.parsing.json_value import is_object

INPUT = "input"
"""The one argument of the function that stands for a custom tool."""
_BEGIN = re.compile(rf'[ \t\r\n]*\{{[ \t\r\n]*"{INPUT}"[ \t\r\n]*:[ \t\r\n]*"')
_MAX_UNDECIDED_CHARS = 256  # of arguments that begin so


class CalledTool(Struct, frozen=True, array_like=True):
    """A tool by the names that its client gave it.

    Attributes:
        namespace: that it stands in; empty for none.
        is_custom: whether its input is a text, and no arguments.
    """

    name: str
    namespace: str = ""
    is_custom: bool = False


class CustomInput:
    """Give the input as the arguments come.

    Hold arguments that do not begin as they should until their end: then a text that is all they have is the input, and
    of anything else they themselves are.
    """

    def __init__(self) -> None:
        self._held = ""
        self._rest: list[str] = []  # of arguments that begin otherwise
        self._string: JsonString | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the arguments so far have all of the input."""
        return self._string.is_closed if self._string is not None else is_object(self._held + "".join(self._rest))

    def feed(self, arguments: str) -> str:
        """Return what these arguments add to the input."""
        if self._string is not None:
            return self._string.read(arguments, 0)[1]
        if len(self._held) > _MAX_UNDECIDED_CHARS:
            self._rest.append(arguments)
            return ""
        self._held += arguments
        match = _BEGIN.match(self._held)
        if match is None:
            return ""
        self._string = JsonString()
        return self._string.read(self._held, match.end())[1]

    def end(self) -> str:
        """Return the rest of the input."""
        if self._string is not None:
            return ""
        whole = self._held + "".join(self._rest)
        try:
            value = json.loads(whole)
        except (ValueError, RecursionError):
            return whole
        if isinstance(value, dict) and len(value) == 1:
            (value,) = value.values()
        if value in ({}, None):
            return ""
        return value if isinstance(value, str) else whole
