"""Calls as Qwen3-Coder writes them: `<function=NAME>`, `<parameter=KEY>` with a value each, in `<tool_call>`."""

import re
from collections.abc import Mapping
from typing import ClassVar

from scheduler_svc.frontend.parsing.call_object import MAX_NAME_CHARS
from scheduler_svc.frontend.parsing.call_parser import CallParser
from scheduler_svc.frontend.parsing.held_back import MAX_HELD_SPACES, SPACES, Found, Tags
from scheduler_svc.frontend.parsing.json_string import json_text
from scheduler_svc.frontend.parsing.output import Output
from scheduler_svc.frontend.parsing.parameter_value import ParameterValue

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_IN_CONTENT = Tags(BEGIN, END, FUNCTION, END_FUNCTION)
_IN_FUNCTION = Tags(PARAMETER, END_PARAMETER, END_FUNCTION, END, BEGIN, FUNCTION)
_BEGIN_FUNCTION = Tags(FUNCTION)
_BEHIND_VALUE = Tags(*(begin + tag for tag in (END_PARAMETER, PARAMETER, END_FUNCTION, END) for begin in ("\n", "")))
_NO_SPACE = re.compile(r"[^ \t\r\n]")
_END_OF_NAME = re.compile(r"[>\n<]")


class Qwen3CoderParser(CallParser):
    """Reads them, with content before, between and behind.

    A value ends at `</parameter>`; in a value that is JSON, not inside a string. A newline at each of its ends is left
    out. Where that tag is missing, a value also ends before `<parameter=KEY>` at the beginning of a line, and before
    `</function>` or `</tool_call>` if the value is JSON up to there, or if after the tag, and whitespace, another
    tag of a call or the end of the text comes. So a text may speak of these tags.

    What stands in a function and is no parameter ends the call, and is content. `<tool_call>` and `<function=` without
    a call are content, and so is an end tag that no call is before. A call that the text ends in has the arguments up
    to there, and is not whole.

    Args:
        text_parameters, other_kinds: as in `MessageRules`.
    """

    begin_tags: ClassVar[tuple[str, ...]] = (BEGIN, FUNCTION)

    def __init__(
        self,
        output: Output,
        text_parameters: Mapping[str, tuple[str, ...]],
        other_kinds: Mapping[str, Mapping[str, tuple[str, ...]]],
    ) -> None:
        super().__init__(output)
        self._text_parameters = text_parameters
        self._other_kinds = other_kinds
        self._tool = ""
        self._num_parameters = 0
        self._value = ParameterValue(None)
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
            self.output.add_arguments("{")
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
        tag = _IN_FUNCTION.at(text, start)
        if tag == PARAMETER:
            self._opening = tag
            self._state = self._key
        if tag in (PARAMETER, END_PARAMETER):  # an end tag too many is left out
            return start + len(tag)
        self._end_call()
        self._state = self._content
        return start

    def _key(self, text: str, start: int) -> int:
        """Behind `<parameter=`."""
        key, end = _name_at(text, start)
        if key:
            self.output.add_arguments((", " if self._num_parameters else "") + json_text(key) + ": ")
            self._num_parameters += 1
            self._value = ParameterValue(self._kinds(key))
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
        is_end = self._is_end(text, found)
        if is_end is None:
            return begin
        if not is_end:
            self.output.add_arguments(self._value.feed(tag))
            return found.end
        self.output.add_arguments(self._value.end())
        self._state = self._function
        return found.end if tag.endswith(END_PARAMETER) else found.end - len(tag.lstrip("\n"))

    def _is_end(self, text: str, found: Found) -> bool | None:
        """Whether a tag ends the value; None while that is not clear."""
        tag = found.tag.lstrip("\n")
        begins_line = tag != found.tag or not self._value.has_begun
        if not tag:
            return None
        if tag == found.tag and self._value.is_in_string:
            return False
        if tag == END_PARAMETER:
            return True
        if tag == PARAMETER:
            name, end = _name_at(text, found.end)
            is_waiting = not name and end >= 0 and not self._is_last
            return None if begins_line and is_waiting else begins_line and bool(name)
        return self._value.is_whole_json or self._ends_call(text, found.end)

    def _ends_call(self, text: str, start: int) -> bool | None:
        """Whether only a tag of a call or the end of the text comes after a tag; None while that is not clear."""
        behind = text[start : start + MAX_HELD_SPACES]
        end = start + len(behind) - len(behind.lstrip(SPACES))
        if _IN_CONTENT.at(text, end):
            return True
        if end - start < MAX_HELD_SPACES and _IN_CONTENT.may_begin(text, end):
            return True if self._is_last else None
        return False

    def _end_call(self) -> None:
        self.output.add_arguments("}")
        self.output.end_call()

    def _kinds(self, key: str) -> tuple[str, ...] | None:
        """As `ParameterValue` needs them."""
        is_text = key in self._text_parameters.get(self._tool, ())
        return self._other_kinds.get(self._tool, {}).get(key, ()) if is_text else None

    def _give_back(self, start: int) -> int:
        """No call, and no parameter: the tags are content, and so is what follows."""
        opening, self._opening = self._opening, ""
        self._add_content(opening)
        self._state = self._content
        return start

    def _end(self, held: str) -> None:
        """Half a tag is content, but in a value that is cut; a call without a whole name is content, too."""
        if self._state == self._content:
            self._add_content(held)
        elif self._state in (self._opened, self._name):
            self._give_back(0)
            self._add_content(held)
        elif self._state == self._in_value:
            self.output.add_arguments(self._value.feed(held) + self._value.cut())
        else:
            self._add_content((self._opening if self._state == self._key else "") + held)


def _name_at(text: str, start: int) -> tuple[str, int]:
    """The name that stands before the next `>`, and the position behind that. An empty name and `start` if more text
    has to come, an empty name and -1 if it is no name."""
    match = _END_OF_NAME.search(text, start, start + MAX_NAME_CHARS + 1)
    if match is None:
        return "", start if len(text) - start <= MAX_NAME_CHARS else -1
    name = text[start : match.start()].strip()
    return (name, match.end()) if name and match.group() == ">" else ("", -1)
