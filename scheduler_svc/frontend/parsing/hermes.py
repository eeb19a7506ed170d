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
    """Read calls in tags, with content before, between and after.

    Tags inside the JSON's strings are no tags. A begin tag without a call is content with all that follows it, and so
    is an end tag that no call is before. Another object without tags between them is another call. Braces too many
    after an object are left out, and those that are missing before a tag are closed. Where the arguments cannot be
    JSON any more the call ends, and is not whole; what follows is content.
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
        call = self._call
        assert call is not None
        end = call.read(text, start)
        if not call.is_over:
            return end
        if not call.is_complete and end < len(text):
            if not self._is_last and _TAGS.may_begin(text, end):
                return end
            if _TAGS.at(text, end):
                call.close()
        call.end()
        self._call = None
        self._state = self._content
        if call.is_call:
            self._open()
            self._state = self._after_object if call.is_whole else self._content
        return end

    def _after_object(self, text: str, start: int) -> int:
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
        """Make half a tag content, and so an object that is no call yet."""
        if self._call is not None:
            self._call.end(held)
        else:
            self.output.add_content(held)
