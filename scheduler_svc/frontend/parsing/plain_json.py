"""Calls as Llama 3 and others write them: the whole answer is a JSON object with name and parameters, or a list."""

import re
from typing import ClassVar

from scheduler_svc.frontend.parsing.call_parser import CallParser
from scheduler_svc.frontend.parsing.held_back import MAX_HELD_SPACES
from scheduler_svc.frontend.parsing.object_call import ObjectCall
from scheduler_svc.frontend.parsing.output import Output

_NO_SPACE = re.compile(r"[^ \t\r\n]")
_NO_SEPARATOR = re.compile(r"[^ \t\r\n,;\]]")


class JsonParser(CallParser):
    """Read calls without tags.

    An answer that begins with anything else is content, and so is an object without a name or without arguments, with
    all that follows it. More calls follow in the list, or after commas, semicolons and whitespace. Where the arguments
    cannot be JSON any more the call ends, and is not whole; the rest of the answer is content.
    """

    tag_begin: ClassVar[str] = ""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._state = self._begin
        self._opening = ""  # text that is content if no call follows

    def _begin(self, text: str, start: int) -> int:
        match = _NO_SPACE.search(text, start)
        self.output.add_content(text[start : match.start() if match else len(text)])
        if match is None:
            return len(text)
        if match.group() == "[":
            self._opening = "["
            self._state = self._list
            return match.end()
        self._begin_call_or_content(text, match.start(), "")
        return match.start()

    def _list(self, text: str, start: int) -> int:
        match = _NO_SPACE.search(text, start)
        end = match.start() if match else len(text)
        num_spaces = len(self._opening) - 1 + end - start
        self._opening += text[start : min(end, start + MAX_HELD_SPACES)]
        if num_spaces > MAX_HELD_SPACES:
            return self._give_back(min(end, start + MAX_HELD_SPACES))
        if match:
            self._begin_call_or_content(text, end, self._opening)
        return end

    def _give_back(self, end: int) -> int:
        """Make it content: a list of calls has less whitespace."""
        opening, self._opening = self._opening, ""
        self.output.add_content(opening)
        self._state = self._content
        return end

    def _after_call(self, text: str, start: int) -> int:
        match = _NO_SEPARATOR.search(text, start)
        if match is None:
            return len(text)
        self._begin_call_or_content(text, match.start(), "")
        return match.start()

    def _begin_call_or_content(self, text: str, start: int, opening: str) -> None:
        self._opening = ""
        if text[start] == "{":
            self._call = ObjectCall(self.output, opening, needs_arguments=True)
            self._state = self._object
        else:
            self.output.add_content(opening)
            self._state = self._content

    def _object(self, text: str, start: int) -> int:
        call = self._call
        assert call is not None
        end = call.read(text, start)
        if call.is_over:
            call.end()
            self._call = None
            self._state = self._after_call if call.is_whole else self._content
        return end

    def _content(self, text: str, start: int) -> int:
        self.output.add_content(text[start:])
        return len(text)

    def _end(self, held: str) -> None:
        """Make an object content that is no call yet."""
        self.output.add_content(self._opening)
        if self._call is not None:
            self._call.end(held)
