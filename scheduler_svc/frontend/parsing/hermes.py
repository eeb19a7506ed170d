"""Calls as Hermes and Qwen3 write them: `<tool_call>`, a JSON object with name and arguments, `</tool_call>`."""

import re
from typing import ClassVar

from scheduler_svc.frontend.parsing.call_parser import CallParser
from scheduler_svc.frontend.parsing.held_back import Tags
from scheduler_svc.frontend.parsing.object_call import ObjectCall

BEGIN, END = "<tool_call>", "</tool_call>"
_TAGS = Tags(BEGIN, END)
_NO_BRACE = re.compile(r"[^ \t\r\n}]")


class HermesParser(CallParser):
    """Reads them, with content before, between and behind.

    Tags inside the JSON's strings are no tags. A begin tag without a call is content with all that follows it, and so
    is an end tag that no call is before. Another object without tags between them is another call. Braces too many
    behind an object are left out. An object that the text ends in before its name is known is left out, too.
    """

    begin_tags: ClassVar[tuple[str, ...]] = (BEGIN,)

    def _content(self, text: str, start: int) -> int:
        begin, tag = found = _TAGS.find(text, start)
        self._add_content(text[start:begin])
        if tag == BEGIN:
            self._begin(BEGIN)
        elif tag:
            self._add_end_tag(tag, is_last=True)
        return found.end

    def _object(self, text: str, start: int) -> int:
        assert self._call is not None
        end = self._call.read(text, start)
        if self._call.has_ended:
            self._state = self._content
            if self._call.is_call:
                self._open()
                self._state = self._behind_object
            self._call = None
        return end

    def _behind_object(self, text: str, start: int) -> int:
        match = _NO_BRACE.search(text, start)
        if match is None:
            return len(text)
        if match.group() == "{":
            self._begin("")
        else:
            self._state = self._content
        return match.start()

    def _begin(self, opening: str) -> None:
        self._call = ObjectCall(self.output, opening, needs_arguments=False)
        self._state = self._object

    def _end(self, held: str) -> None:
        """A half tag is content; an object that is no call yet is left out."""
        if self._state == self._content:
            self.output.add_content(held)
