"""A JSON string, decoded as it comes, and texts as JSON."""

import json
import re

_SHORT = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = frozenset("0123456789abcdefABCDEF")
_ENDS = re.compile(r'["\\]')
_NOT_ITSELF = re.compile(r'["\\\x00-\x1f]')
_REPLACEMENT = "\ufffd"
_encoder = json.JSONEncoder(ensure_ascii=False)  # stateless; `json.dumps` makes one for each call


class JsonString:
    """Decode a string whose opening quote has been read.

    Escapes that JSON does not have stay as they are. Half a surrogate pair becomes U+FFFD.

    Attributes:
        is_closed: whether its end has been read.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._escape = ""  # that has begun
        self._high = 0  # the first half of a surrogate pair

    @property
    def held(self) -> str:
        """The escape that the text so far ends in."""
        return self._escape

    def says(self, text: str) -> bool:
        """Return whether a piece stands in the string, says just itself, and changes nothing here: it need not be
        read."""
        return not (self.is_closed or self._escape or self._high or _NOT_ITSELF.search(text))

    def read(self, text: str, start: int) -> tuple[int, str]:
        """Return where the string or else the text ends, and what the string says up to there, as much of it as is
        clear."""
        decoded: list[str] = []
        while start < len(text) and not self.is_closed:
            if self._escape:
                start = self._read_escape(text, start, decoded)
                continue
            match = _ENDS.search(text, start)
            end = match.start() if match else len(text)
            if end > start or (match and match.group() == '"'):
                self._add(text[start:end], decoded)
            start = end
            if match:
                start += 1
                self.is_closed = match.group() == '"'
                self._escape = "" if self.is_closed else "\\"
        return start, "".join(decoded)

    def _read_escape(self, text: str, start: int, decoded: list[str]) -> int:
        character = text[start]
        if self._escape == "\\":
            if character == "u":
                self._escape = "\\u"
            else:
                self._add(_SHORT.get(character, "\\" + character), decoded)
                self._escape = ""
            return start + 1
        if character not in _HEX:
            self._add(self._escape, decoded)
            self._escape = ""
            return start
        self._escape += character
        if len(self._escape) == len("\\u0000"):
            self._add_code(int(self._escape[2:], 16), decoded)
            self._escape = ""
        return start + 1

    def _add_code(self, code: int, decoded: list[str]) -> None:
        if self._high and 0xDC00 <= code < 0xE000:
            decoded.append(chr(0x10000 + ((self._high - 0xD800) << 10) + code - 0xDC00))
            self._high = 0
            return
        self._add("", decoded)
        if 0xD800 <= code < 0xDC00:
            self._high = code
        else:
            decoded.append(_REPLACEMENT if 0xDC00 <= code < 0xE000 else chr(code))

    def _add(self, text: str, decoded: list[str]) -> None:
        if self._high:
            decoded.append(_REPLACEMENT)
            self._high = 0
        decoded.append(text)


def json_text(text: str) -> str:
    """Return a text as JSON."""
    return _encoder.encode(text)
