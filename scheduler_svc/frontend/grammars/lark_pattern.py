"""Lark grammars as regular expressions.

A custom tool's input stands in a call as a string of JSON, where no grammar of llguidance's reaches but a pattern.
Grammars that clients have in use (Codex's patches) do not refer to themselves, and can be written as patterns.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MAX_PATTERN_CHARACTERS = 2**15
MAX_SIZE = 8 * MAX_PATTERN_CHARACTERS  # of what one rule is read as, parentheses of parentheses counted again

# The terminals of `%import common.X`, as Lark's common.lark has them.
_COMMON: Mapping[str, str] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r]+|(?://|\#)[^\n]*)
    | (?P<line>\n)
    | (?P<string>"(?:[^"\\\n]|\\.)*"i?)
    | (?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*)
    | (?P<name>[!?]?_?[A-Za-z][A-Za-z0-9_-]*)
    | (?P<number>[0-9]+)
    | (?P<sign>->|\.\.|[:|()\[\]*+?~%.,])
    """,
    re.VERBOSE,
)
_BYTE_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\x")


def lark_pattern(grammar: str) -> str:
    """Write a grammar as a regular expression that matches what its `start` does.

    It matches a little more than llguidance does with the grammar: `/[ab]+/ "b"` matches "ab" although the first
    terminal could take all of it, and what is ignored may come at the end.

    Raises:
        ValueError: there is none, or it is longer than `MAX_PATTERN_CHARACTERS`.
    """
    try:
        return _Expansion(_definitions(_tokens(grammar))).pattern_of("start")
    except RecursionError:
        raise ValueError("its rules and parentheses are nested too deeply") from None


@dataclass(frozen=True)
class _Token:
    kind: str  # a group of `_TOKEN`, or "pattern" for what is one already
    text: str
    line: int


@dataclass
class _Definitions:
    bodies: dict[str, list[_Token]] = field(default_factory=dict)
    ignored: list[list[_Token]] = field(default_factory=list)


def _tokens(grammar: str) -> list[_Token]:
    tokens: list[_Token] = []
    place, line = 0, 1
    while place < len(grammar):
        match = _TOKEN.match(grammar, place)
        if match is None:
            raise ValueError(f"line {line} has {grammar[place : place + 20]!r}, which is no Lark")
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, match.group(), line))
        line += kind == "line"
        place = match.end()
    return tokens


def _definitions(tokens: list[_Token]) -> _Definitions:
    """Find the grammar's rules and terminals by their names. A definition goes on over lines that begin with `|`, or
    while a parenthesis is open."""
    found = _Definitions()
    for statement in _statements(tokens):
        first = statement[0]
        if first.text == "%":
            _read_directive(statement, found)
            continue
        names = [place for place, token in enumerate(statement) if token.text == ":"]
        if first.kind != "name" or not names:
            raise ValueError(f"line {first.line} defines nothing")
        name = _plain(first.text)
        if name in found.bodies:
            raise ValueError(f"{name!r} is defined twice")
        found.bodies[name] = statement[names[0] + 1 :]  # what stands between is a priority
    return found


def _statements(tokens: list[_Token]) -> list[list[_Token]]:
    statements: list[list[_Token]] = []
    depth, has_ended = 0, True
    for token in tokens:
        if token.kind == "line":
            has_ended = depth == 0
            continue
        depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        if has_ended and token.text != "|":
            statements.append([])
        if not statements:
            raise ValueError(f"line {token.line} begins with '|'")
        has_ended = False
        statements[-1].append(token)
    return statements


def _read_directive(statement: list[_Token], found: _Definitions) -> None:
    words = [token.text for token in statement[1:]]
    match words:
        case ["import", "common", ".", name] if name in _COMMON:
            found.bodies[name] = [_Token("pattern", _COMMON[name], statement[0].line)]
        case ["import", "common", ".", name, "->", alias] if name in _COMMON:
            found.bodies[alias] = [_Token("pattern", _COMMON[name], statement[0].line)]
        case ["import", "common", "(", *names, ")"] if set(names) <= {",", *_COMMON}:
            for name in {*names} - {","}:
                found.bodies[name] = [_Token("pattern", _COMMON[name], statement[0].line)]
        case ["ignore", *_]:
            found.ignored.append(statement[2:])
        case _:
            raise ValueError(f"line {statement[0].line}: '%{' '.join(words)}' is not supported")


def _plain(name: str) -> str:
    return name.lstrip("!?")


class _Expansion:
    """Put the definitions into each other.

    Args:
        definitions: of the grammar.
    """

    def __init__(self, definitions: _Definitions) -> None:
        self._bodies = definitions.bodies
        self._patterns: dict[str, str] = {}
        self._open: list[str] = []
        self._gap = ""
        if definitions.ignored:
            self._gap = f"(?:{'|'.join(self._choices(body, is_rule=False) for body in definitions.ignored)})*"

    def pattern_of(self, name: str) -> str:
        """Write the pattern of a definition."""
        if name in self._patterns:
            return self._patterns[name]
        if name in self._open:
            raise ValueError(f"its rule {name!r} refers to itself, which no regular expression can")
        if name not in self._bodies:
            raise ValueError(f"it has no rule {name!r}")
        self._open.append(name)
        is_rule = name.lstrip("_")[:1].islower()
        pattern = self._choices(self._bodies[name], is_rule=is_rule)
        self._open.pop()
        self._patterns[name] = pattern
        return pattern

    def _choices(self, body: list[_Token], *, is_rule: bool) -> str:
        reader = _Reader(body, lambda token: self._atom(token, is_rule=is_rule))
        return _limited(reader.whole())

    def _atom(self, token: _Token, *, is_rule: bool) -> str:
        match token.kind:
            case "name":
                name = _plain(token.text)
                inner = f"(?:{self.pattern_of(name)})"
                return inner + self._gap if is_rule and name.lstrip("_")[:1].isupper() else inner
            case "string":
                atom = _string(token)
            case "regex":
                atom = _regex(token)
            case "pattern":
                atom = token.text
            case _:
                raise ValueError(f"line {token.line} has {token.text!r} where an expression has to stand")
        return atom + self._gap if is_rule else atom


class _Reader:
    """Read the expressions of one definition.

    Args:
        atom: gives the pattern of a name, a string, a regular expression, or what is a pattern already.
    """

    def __init__(self, tokens: list[_Token], atom: Callable[[_Token], str]) -> None:
        self._tokens = tokens
        self._place = 0
        self._atom = atom
        self._size = 0  # of all that was read

    def whole(self) -> str:
        """Write the pattern of all tokens."""
        pattern = self._choices()
        if (token := self._peek()) is not None:
            raise ValueError(f"line {token.line} has {token.text!r} where its rule has to end")
        return pattern

    def _choices(self) -> str:
        choices = [self._sequence()]
        while self._is_next("|"):
            choices.append(self._sequence())
        return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"

    def _sequence(self) -> str:
        parts: list[str] = []
        while (token := self._peek()) is not None and token.text not in ("|", ")", "]", "->"):
            parts.append(self._item())
            self._size += len(parts[-1])
            if self._size > MAX_SIZE:
                raise ValueError(f"as a regular expression it has more than {MAX_PATTERN_CHARACTERS} characters")
        if self._is_next("->"):
            self._place += 1  # the alias
        return "".join(parts)

    def _item(self) -> str:
        token = self._tokens[self._place]
        self._place += 1
        if token.text in ("(", "[") and token.kind == "sign":
            inner = f"(?:{self._choices()})"
            if not self._is_next(")" if token.text == "(" else "]"):
                raise ValueError(f"line {token.line} has {token.text!r} without its end")
            atom = inner if token.text == "(" else f"{inner}?"
        elif token.kind == "string" and self._is_next(".."):
            atom = self._atom(self._range(token))
        else:
            atom = self._atom(token)
        return self._repeated(atom)

    def _repeated(self, atom: str) -> str:
        token = self._peek()
        if token is None or token.kind != "sign":
            return atom
        if token.text in ("*", "+", "?"):
            self._place += 1
            return f"(?:{atom}){token.text}"
        if not self._is_next("~"):
            return atom
        least = self._number()
        most = least
        if self._is_next(".."):
            most = self._number()
        return f"(?:{atom}){{{least},{most}}}"

    def _range(self, first: _Token) -> _Token:
        last = self._peek()
        tokens = [token for token in (first, last) if token is not None and token.text.endswith('"')]
        ends = [_unquoted(token.text, token.line) for token in tokens]
        if len(ends) != 2 or any(len(end) != 1 for end in ends) or ends[0] > ends[1]:
            raise ValueError(f"line {first.line} has a range that is not of two characters")
        self._place += 1
        return _Token("pattern", f"[{_escaped(ends[0])}-{_escaped(ends[1])}]", first.line)

    def _number(self) -> int:
        token = self._peek()
        if token is None or token.kind != "number" or len(token.text) > 4:
            raise ValueError("'~' has no number of up to four digits after it")
        self._place += 1
        return int(token.text)

    def _peek(self) -> _Token | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _is_next(self, text: str) -> bool:
        token = self._peek()
        is_next = token is not None and token.kind == "sign" and token.text == text
        self._place += is_next
        return is_next


def _string(token: _Token) -> str:
    quoted, flag = token.text.removesuffix("i"), token.text[-1] == "i"
    text = _unquoted(quoted, token.line)
    if not text:
        raise ValueError(f"line {token.line} has an empty string")
    return f"(?i:{_escaped(text)})" if flag else f"(?:{_escaped(text)})"


def _unquoted(quoted: str, line: int) -> str:
    """Return the text of a string, which has JSON's escapes, and `\\x41`."""
    try:
        text: str = json.loads(_BYTE_ESCAPE.sub(r"\1\\u00", quoted), strict=False)
        text.encode()
    except ValueError as error:
        raise ValueError(f"line {line} has the string {quoted[:50]}, which cannot be read") from error
    return text


def _escaped(text: str) -> str:
    return re.escape(text).replace("\\\n", r"\n")  # re.escape leaves a backslash before a newline


def _regex(token: _Token) -> str:
    body, flags = token.text[1:].rsplit("/", 1)
    flags = flags.replace("u", "")
    body = body.replace("\\/", "/")
    return f"(?{flags}:{body})" if flags else f"(?:{body})"


def _limited(pattern: str) -> str:
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise ValueError(f"as a regular expression it has more than {MAX_PATTERN_CHARACTERS} characters")
    return pattern
