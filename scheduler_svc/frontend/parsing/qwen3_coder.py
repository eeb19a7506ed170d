"""Calls as Qwen3-Coder writes them: `<function=NAME>`, `<parameter=KEY>` with a value each, in `<tool_call>`."""

import re
from collections.abc import Mapping
from typing import ClassVar

from scheduler_svc.frontend.parsing.call_object import MAX_NAME_CHARS
from scheduler_svc.frontend.parsing.call_parser import CallParser
from scheduler_svc.frontend.parsing.held_back import Found, Tags
from scheduler_svc.frontend.parsing.json_string import json_text
from scheduler_svc.frontend.parsing.output import Output
from scheduler_svc.frontend.parsing.parameter_value import ParameterValue

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_IN_CONTENT = Tags(BEGIN, END, FUNCTION, END_FUNCTION)
_IN_FUNCTION = Tags(PARAMETER, END_PARAMETER, END_FUNCTION, END, BEGIN, FUNCTION)
_BEGIN_FUNCTION = Tags(FUNCTION)
_AFTER_NAME = Tags(PARAMETER, END_FUNCTION, END)
_AFTER_VALUE = Tags(*(begin + tag for tag in (END_PARAMETER, PARAMETER, END_FUNCTION, END) for begin in ("\n", "")))
_NO_SPACE = re.compile(r"[^ \t\r\n]")
_END_OF_NAME = re.compile(r"[>\n<]")


class Qwen3CoderParser(CallParser):
    """Read calls as this model writes them, with content before, between and after.

    A call begins with `<function=NAME>` and a parameter or an end tag after it. A value ends at `</parameter>`; in a
    value that is JSON, not inside a string. A newline at each of its ends is left out. Where that tag is missing, a
    value also ends before `<parameter=KEY>` at the beginning of a line, if KEY is a parameter that the tool has and the
    call does not yet, and before `</function>` or `</tool_call>` if the value is JSON up to there, or if after the tag,
    and whitespace, another tag of a call or the end of the text comes. So a text may speak of these tags.

    An end that was found so is a guess. A call with a guess is whole as soon as another call, or the end of the text,
    follows its end tags. Anything else shows that the value went on: the call is not whole.

    What stands in a function and is no parameter ends the call, which is not whole, and is content. `<tool_call>` and
    `<function=` without a call are content, and so is an end tag that no call is before. A call that the text ends in
    has the arguments up to there, and is not whole.

    Args:
        parameters: as in `MessageRules`.
    """

    begin_tags: ClassVar[tuple[str, ...]] = (BEGIN, FUNCTION)

    def __init__(
        self,
        output: Output,
        parameters: Mapping[str, Mapping[str, tuple[str, ...] | None]],
    ) -> None:
        super().__init__(output)
        self._parameters = parameters
        self._tool = ""
        self._keys: set[str] = set()  # of the parameters that the call has
        self._has_guess = False  # a value of the call that is open ends where its own tag is missing
        self._value = ParameterValue(None)
        self._opening = ""  # text that is content if it begins no call, or no parameter

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
        """Read what comes after `<tool_call>`."""
        found = _BEGIN_FUNCTION.after_spaces(text, start)
        if found is None:
            return start
        if not found.tag:
            return self._give_back(start)
        self._opening += text[start : found.end]
        self._state = self._name
        return found.end

    def _name(self, text: str, start: int) -> int:
        """Read what comes after `<function=`."""
        name, end = _name_at(text, start)
        if name:
            self._opening += text[start:end]
            self._tool = name
            self._state = self._named
        return self._give_back(start) if end < 0 else end

    def _named(self, text: str, start: int) -> int:
        """Read what comes after `<function=NAME>`."""
        found = _AFTER_NAME.after_spaces(text, start)
        if found is None:
            return start
        if not found.tag:
            return self._give_back(start)
        if self._has_guess:
            self._end_call(is_whole=True)
        self.output.begin_call(self._tool)
        self.output.add_arguments("{")
        self._open()
        self._keys = set()
        self._state = self._function
        return found.begin

    def _function(self, text: str, start: int) -> int:
        """Read what stands between parameters."""
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
            return start + len(tag)
        if tag == END_PARAMETER and not self._has_guess:  # one too many is left out
            return start + len(tag)
        if tag in (END_PARAMETER, ""):
            self._end_call(is_whole=False)
        elif self._has_guess:
            self._state = self._guessed
        else:
            self._end_call(is_whole=True)
        return start

    def _guessed(self, text: str, start: int) -> int:
        """Read what comes after a call with a guess."""
        found = _IN_CONTENT.after_spaces(text, start)
        if found is None:
            return start
        if found.tag in (END, END_FUNCTION):
            self._add_end_tag(found.tag, is_last=found.tag == END)
            return found.end
        if not found.tag:
            self._end_call(is_whole=False)
            return start
        self._state = self._content  # where a call begins, or else this one is not whole
        return found.begin

    def _key(self, text: str, start: int) -> int:
        """Read what comes after `<parameter=`."""
        key, end = _name_at(text, start)
        if end < 0 or (self._has_guess and key in self._keys):
            self._end_call(is_whole=False)
            return self._give_back(start)
        if key:
            self.output.add_arguments((", " if self._keys else "") + json_text(key) + ": ")
            self._keys.add(key)
            self._value = ParameterValue(self._parameters.get(self._tool, {}).get(key))
            self._state = self._before_value
        return end

    def _before_value(self, text: str, start: int) -> int:
        self._state = self._in_value
        return start + (text[start] == "\n")

    def _in_value(self, text: str, start: int) -> int:
        begin, tag = found = _AFTER_VALUE.find(text, start)
        self.output.add_arguments(self._value.feed(text[start:begin]))
        is_end = self._is_end(text, found)
        if is_end is None:
            return begin
        if not is_end:
            self.output.add_arguments(self._value.feed(tag))
            return found.end
        has_own_end = tag.endswith(END_PARAMETER)
        self._has_guess = self._has_guess or not has_own_end
        self.output.add_arguments(self._value.end())
        self._state = self._function
        return found.end if has_own_end else found.end - len(tag.lstrip("\n"))

    def _is_end(self, text: str, found: Found) -> bool | None:
        """Return whether a tag ends the value; None while that is not clear."""
        tag = found.tag.lstrip("\n")
        begins_line = tag != found.tag or not self._value.has_begun
        if not tag:
            return None
        if tag == found.tag and self._value.is_in_string:
            return False
        if tag == PARAMETER:
            return begins_line and self._begins_parameter(text, found.end)
        if tag == END_PARAMETER or self._value.is_whole_json:
            return True
        following = _IN_CONTENT.after_spaces(text, found.end)
        if following is None:
            return self._is_last or None
        return bool(following.tag)

    def _begins_parameter(self, text: str, start: int) -> bool | None:
        """Return whether the name of another parameter comes, as far as the tool's schema says; None while that is not
        clear."""
        key, end = _name_at(text, start)
        if not key and end >= 0 and not self._is_last:
            return None
        names = self._parameters.get(self._tool)
        return bool(key) and key not in self._keys and (not names or key in names)

    def _end_call(self, *, is_whole: bool) -> None:
        """End the call. What follows is content."""
        if is_whole:
            self.output.add_arguments("}")
        self.output.end_call(is_whole=is_whole)
        self._has_guess = False
        self._state = self._content

    def _give_back(self, start: int) -> int:
        """Make the tags content, and what follows: they begin no call, and no parameter."""
        if self._has_guess:
            self._end_call(is_whole=False)
        opening, self._opening = self._opening, ""
        self._add_content(opening)
        self._state = self._content
        return start

    def _end(self, held: str) -> None:
        """Make half a tag content, but in a value that is cut; a call without a whole name is content, too."""
        if self._state == self._content:
            self._add_content(held)
        elif self._state in (self._opened, self._name, self._named):
            self._give_back(0)
            self._add_content(held)
        elif self._state == self._guessed:
            self._end_call(is_whole=True)
            self._add_content(held)
        elif self._state == self._in_value:
            self.output.add_arguments(self._value.feed(held) + self._value.cut())
        else:
            self._add_content((self._opening if self._state == self._key else "") + held)


def _name_at(text: str, start: int) -> tuple[str, int]:
    """Return the name that stands before the next `>`, and the position after that. An empty name and `start` if more
    text has to come, an empty name and -1 if it is no name."""
    match = _END_OF_NAME.search(text, start, start + MAX_NAME_CHARS + 1)
    if match is None:
        return "", start if len(text) - start <= MAX_NAME_CHARS else -1
    name = text[start : match.start()].strip()
    return (name, match.end()) if name and match.group() == ">" else ("", -1)
