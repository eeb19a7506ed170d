"""A parameter's value that is written without JSON, made JSON as it comes."""

from scheduler_svc.frontend.parsing.held_back import SPACES
from scheduler_svc.frontend.parsing.json_string import json_text
from scheduler_svc.frontend.parsing.json_value import WORDS, JsonValue

MAX_UNDECIDED_CHARS = 2**18  # longer values are texts: whether they are JSON is known at their end only

_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
_OPENING = ("{", "[", '"')


class ParameterValue:
    """Give a text's JSON as it comes; other values at their end, because only then it is known whether they are JSON.

    What is no JSON is a text after all. Where a text may stand, JSON of a kind that may not stand there is a text, too,
    and so are Python's words.

    Args:
        other_kinds: JSON's types that the value may have if it is no text, "null" for example; None: any, and nothing
            says that it may be a text.

    Attributes:
        has_begun: whether anything has been read.
    """

    def __init__(self, other_kinds: tuple[str, ...] | None) -> None:
        self.has_begun = False
        self._other_kinds = other_kinds
        self._is_text = other_kinds == ()
        self._is_quoted = False  # the quote that begins a text has been given
        self._json = JsonValue()
        self._undecided: list[str] = []
        self._num_undecided = 0

    @property
    def is_in_string(self) -> bool:
        """Whether the value is JSON, as far as it goes, and ends inside one of its strings: what follows is no tag. A
        line that ends in a string shows nothing, as texts have quotes, too."""
        return not self._is_text and self._json.is_in_string and not self._json.has_line_end

    @property
    def is_whole_json(self) -> bool:
        """Whether the value so far is whole, and no text."""
        return not self._is_text and self._json.is_whole and self._is_allowed()

    def feed(self, text: str) -> str:
        """Return the value's JSON, as much as this piece adds."""
        self.has_begun = self.has_begun or bool(text)
        if not self._is_text:
            self._undecided.append(text)
            self._num_undecided += len(text)
            if self._may_be_json(text) and self._num_undecided <= MAX_UNDECIDED_CHARS:
                return ""
            text = self._decide_text()
        quote = "" if self._is_quoted or not text else '"'
        self._is_quoted = self._is_quoted or bool(text)
        return quote + json_text(text)[1:-1]

    def end(self) -> str:
        """Return the rest of the JSON."""
        if not self._is_text:
            self._json.end()
            if self._json.is_complete and self._is_allowed():
                return self._json.take().strip(SPACES)
            return json_text(self._decide_text())
        return '"' if self._is_quoted else '""'

    def cut(self) -> str:
        """Return what has been read of a value that has no end, and was not given, as the beginning of its JSON."""
        if self._is_text or self._json.is_blank:
            return ""
        written = self._json.take().lstrip(SPACES)
        rest, other = self._json.take_rest()
        return json_text(self._decide_text())[:-1] if other else written + rest

    def _may_be_json(self, text: str) -> bool:
        """Return whether the value may be JSON with this piece."""
        if self._json.is_blank and (first := text.lstrip(SPACES)[:1]) in _OPENING and not self._allows(_KINDS[first]):
            return False
        stop = self._json.read(text, 0)
        return not (self._json.is_broken or text[stop:].strip(SPACES))

    def _is_allowed(self) -> bool:
        """Return whether the value, which is JSON, may be that and no text."""
        value = "".join(self._undecided).strip(SPACES)
        if self._other_kinds is None or value in WORDS:
            return self._other_kinds is None
        kind = _KINDS.get(value[0], "number")
        if kind == "number" and not self._allows(kind) and float(value).is_integer():
            kind = "integer"
        return self._allows(kind)

    def _allows(self, kind: str) -> bool:
        """Return whether JSON of a kind may stand here. A text in quotes may if there is JSON to tell it from."""
        kinds = self._other_kinds
        return kinds is None or kind in kinds or (kind == "string" and kinds != ("null",))

    def _decide_text(self) -> str:
        text, self._undecided = "".join(self._undecided), []
        self._is_text = True
        return text
