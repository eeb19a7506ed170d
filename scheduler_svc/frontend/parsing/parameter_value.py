"""A parameter's value that is written without JSON, made JSON as it comes."""

import json

MAX_UNDECIDED_CHARS = 2**18  # longer values are texts: whether they are JSON is known at their end only

_WORDS = {"True": "true", "False": "false", "None": "null"}  # as Python has them, and models that write much Python


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

    def feed(self, text: str) -> str:
        """JSON of the value, as much as this piece adds."""
        if not self._is_text:
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
            value = "".join(self._undecided).strip()
            value = _WORDS.get(value, value)
            if _is_json(value):
                return value
            return json_text(self._decide_text())
        return '"' if self._has_begun else '""'

    def _decide_text(self) -> str:
        text, self._undecided = "".join(self._undecided), []
        self._is_text = True
        return text


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
