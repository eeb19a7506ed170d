"""Calls as Qwen3-Coder writes them: `<function=NAME>`, `<parameter=KEY>` with a value each, in `<tool_call>`."""

import re
from collections.abc import Mapping
from typing import ClassVar

from scheduler_svc.frontend.parsing.call_object import MAX_NAME_CHARS
from scheduler_svc.frontend.parsing.call_parser import CallParser
from scheduler_svc.frontend.parsing.held_back import MAX_HELD_SPACES, SPACES, Tags
from scheduler_svc.frontend.parsing.output import Output
from scheduler_svc.frontend.parsing.parameter_value import ParameterValue, json_text

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_IN_CONTENT = Tags(BEGIN, END, FUNCTION, END_FUNCTION)
_IN_FUNCTION = Tags(PARAMETER, END_FUNCTION, END, BEGIN, FUNCTION)
_BEGIN_FUNCTION = Tags(FUNCTION)
_BEHIND_VALUE = Tags("\n" + END_PARAMETER, END_PARAMETER)
_NO_SPACE = re.compile(r"[^ \t\r\n]")
_END_OF_NAME = re.compile(r"[>\n<]")


class Qwen3CoderParser(CallParser):
    """Reads them, with content before, between and behind.

    A value ends at `</parameter>` and nowhere else; in a value that is JSON, not inside a string. A newline at each of
    its ends is left out. What stands in a function and is no parameter ends the call, and is content. `<tool_call>` and
    `<function=` without a call are content, and so is an end tag that no call is before. A call that the text ends in
    has the arguments up to there.

    Args:
        text_parameters: as in `MessageRules`.
    """

    begin_tags: ClassVar[tuple[str, ...]] = (BEGIN, FUNCTION)

    def __init__(self, output: Output, text_parameters: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(output)
        self._text_parameters = text_parameters
        self._tool = ""
        self._num_parameters = 0
        self._value = ParameterValue(is_text=True)
        self._opening = ""  # tags before the function's name

    def _content(self, text: str, start: int) -> int:
        begin, tag = found = _IN_CONTENT.find(text, start)
        self._add_content(text[start:begin])
        if tag in (BEGIN, FUNCTION):
            self._opening = tag
            self._state = self._opened if tag == BEGIN else self._name
        elif tag:
            self._add_end_tag(tag, is_last=tag == END)
        return found.end

    def _opened(self, text: str, start: int) -> int:
        """Behind `<tool_call>`."""
        rest = text[start : start + MAX_HELD_SPACES].lstrip(SPACES)
        end = min(len(text), start + MAX_HELD_SPACES) - len(rest)
        if tag := _BEGIN_FUNCTION.at(text, end):
            self._opening += text[start:end] + tag
            self._state = self._name
            return end + len(tag)
        may_begin = end - start < MAX_HELD_SPACES and _BEGIN_FUNCTION.may_begin(text, end)
        return start if may_begin else self._give_back(start)

    def _name(self, text: str, start: int) -> int:
        """Behind `<function=`."""
        name, end = _name_at(text, start)
        if name:
            self.output.begin_call(name)
            self._open()
            self._tool, self._num_parameters = name, 0
            self._state = self._function
        return self._give_back(start) if end < 0 else end

    def _function(self, text: str, start: int) -> int:
        """Between parameters."""
        match = _NO_SPACE.search(text, start)
        if match is None:
            return len(text)
        start = match.start()
        if _IN_FUNCTION.may_begin(text, start):
            return start
        if (tag := _IN_FUNCTION.at(text, start)) == PARAMETER:
            self._opening = tag
            self._state = self._key
            return start + len(tag)
        self._end_call()
        self._state = self._content
        return start

    def _key(self, text: str, start: int) -> int:
        """Behind `<parameter=`."""
        key, end = _name_at(text, start)
        if key:
            self.output.add_arguments((", " if self._num_parameters else "{") + json_text(key) + ": ")
            self._num_parameters += 1
            self._value = ParameterValue(is_text=key in self._text_parameters.get(self._tool, ()))
            self._state = self._before_value
        elif end < 0:
            self._end_call()
            return self._give_back(start)
        return end

    def _before_value(self, text: str, start: int) -> int:
        self._state = self._in_value
        return start + (text[start] == "\n")

    def _in_value(self, text: str, start: int) -> int:
        begin, tag = found = _BEHIND_VALUE.find(text, start)
        self.output.add_arguments(self._value.feed(text[start:begin]))
        if tag == END_PARAMETER and self._value.is_in_string:
            self.output.add_arguments(self._value.feed(tag))
        elif tag:
            self.output.add_arguments(self._value.end())
            self._state = self._function
        return found.end

    def _end_call(self) -> None:
        self.output.add_arguments("}" if self._num_parameters else "{}")
        self.output.end_call()

    def _give_back(self, start: int) -> int:
        """No call, and no parameter: the tags are content, and so is what follows."""
        opening, self._opening = self._opening, ""
        self._add_content(opening)
        self._state = self._content
        return start

    def _end(self, held: str) -> None:
        """A half tag is content, or belongs to a value that is cut off; a call without a whole name is left out."""
        if self._state == self._content:
            self.output.add_content(held)


def _name_at(text: str, start: int) -> tuple[str, int]:
    """The name that stands before the next `>`, and the position behind that. An empty name and `start` if more text
    has to come, an empty name and -1 if it is no name."""
    match = _END_OF_NAME.search(text, start, start + MAX_NAME_CHARS + 1)
    if match is None:
        return "", start if len(text) - start <= MAX_NAME_CHARS else -1
    name = text[start : match.start()].strip()
    return (name, match.end()) if name and match.group() == ">" else ("", -1)
