"""Values of parameters as Qwen3-Coder writes them: texts as they are, and other values as JSON."""

import re
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from common.grammars import parser_limits
from common.messages import MAX_GRAMMAR_CHARS
from scheduler_svc.frontend.grammars.lark import TEXT, grammar_of, json_rule, literal, pattern
from scheduler_svc.frontend.grammars.schema_parts import Root, is_lenient
from scheduler_svc.frontend.parsing.qwen3_coder import END, END_FUNCTION, END_PARAMETER, PARAMETER
from scheduler_svc.frontend.parsing.text_parameters import MAX_DEPTH, Kinds, Schemas, any_of

_NO_CONSTRAINTS = ("title", "description", "default", "examples", "deprecated", "$comment")
_NO_TEXT = ("format", "contentEncoding", "contentMediaType", "not", "if")
_NULL = frozenset({"null"})
_TEXT = frozenset({"string"})
_END = literal("\n" + END_PARAMETER)
_NOTHING = "no text can follow all that a parameter's schema says"

# A text that a grammar writes has none of the tags that may end it where its own is missing (`Qwen3CoderParser`), and a
# value that may be JSON has no end tag at all. One expression, as several cost the library much more.
_ANY_CALL_TAG = f"({pattern(END_FUNCTION)}|{pattern(END)})"
_ENDS = f"(?s:.*)({pattern(END_PARAMETER)}|{_ANY_CALL_TAG}[ \\t\\r\\n]*<|\\n{pattern(PARAMETER)})|{pattern(PARAMETER)}"
_ANY_TEXT = f"{TEXT} & ~/({_ENDS})(?s:.*)/"
_ANY_VALUE = f"{TEXT} & ~/({_ENDS}|(?s:.*){_ANY_CALL_TAG})(?s:.*)/"
_END_OF_TEXT = re.compile(f"^({_ENDS})")
_PIECES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)  # of an expression: no bar in them divides it


class Values:
    """Collect the rules of values, each with the tag that ends it. Equal schemas have one rule: in a grammar with a
    budget the library has room for 256 JSON schemas.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._names: dict[str, str] = {}

    def rule_of(self, schema: Any, root: Root, *, is_named: bool) -> str:
        """Return the name of the rule of a value.

        Args:
            schema: of the value.
            root: of the schema that it is a part of.
            is_named: whether it is a property of its root. Who reads a value knows only of these that they are texts.

        Raises:
            ValueError: no value in this format can follow the schema.
        """
        if not isinstance(schema, dict) and schema is not True:
            raise ValueError(f"{schema!r} is no schema that a parameter can follow")
        said = {} if schema is True else {key: each for key, each in schema.items() if key not in _NO_CONSTRAINTS}
        if not said:
            body = _ANY_VALUE
        elif is_named and (kinds := Schemas(root.schema).kinds(schema)) >= _TEXT and kinds <= _TEXT | _NULL:
            body = _Texts(root.schema).body(said)
            if body not in self._names and body.count(" & ") > _ANY_TEXT.count(" & ") + 1:
                self._check_has_text(body)
        else:
            body = json_rule(root.alone(said))
        return self._names.setdefault(body, f"value_{len(self._names)}")

    def _check_has_text(self, body: str) -> None:
        """Raise ValueError if several limits leave no text. The library would see it where the text has to begin."""
        grammar = grammar_of(["start: VALUE", f"VALUE: {body}"])
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()
            if matcher.is_error():
                raise ValueError(_NOTHING)

    def rules(self) -> list[str]:
        """Return all rules that were asked for."""
        rules = []
        for body, name in self._names.items():
            if body.startswith("%json"):
                rules.append(f"{name}: {body} {_END}")
            else:
                rules += [f"{name}[lazy]: {name.upper()} {_END}", f"{name.upper()}: {body}"]
        return rules


class _Texts:
    """Write bodies of terminals for texts that are written without JSON, and for null where a schema allows that.

    Args:
        root: the schema that theirs are parts of.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._schemas = Schemas(root)
        self._is_lenient = is_lenient(root)
        self._known: dict[tuple[int, Kinds], list[str]] = {}  # by id of the schema; all live as long as the root

    def body(self, schema: dict[str, Any]) -> str:
        """Return the body for a schema. Raises ValueError if no text can follow it."""
        return " & ".join([_ANY_TEXT, *self._parts(schema, _TEXT | _NULL, 0)])

    def _parts(self, schema: Any, kinds: Kinds, depth: int) -> list[str]:
        """Return what the text has to be, each of them.

        Args:
            kinds: that the schemas around this one allow.
        """
        if not isinstance(schema, dict):
            return []
        if depth > MAX_DEPTH:
            raise ValueError(f"a schema refers to itself, or through more than {MAX_DEPTH} others")
        if (id(schema), kinds) not in self._known:  # where references fan out, each schema is followed once
            parts = list(dict.fromkeys(self._own_parts(schema, kinds, depth)))
            if sum(map(len, parts)) > MAX_GRAMMAR_CHARS:
                raise ValueError(f"its grammar has more than {MAX_GRAMMAR_CHARS} characters")
            self._known[id(schema), kinds] = parts
        return self._known[id(schema), kinds]

    def _own_parts(self, schema: dict[str, Any], kinds: Kinds, depth: int) -> list[str]:
        if not self._is_lenient and (said := [key for key in _NO_TEXT if key in schema]):
            raise ValueError(f"a text in this format cannot follow {said[0]!r}")
        kinds &= self._schemas.kinds(schema)
        null = [literal("null")] if "null" in kinds else []
        if kinds == _NULL:
            return null
        parts = [[*map(literal, _texts_of(values)), *null] for values in _given(schema)]
        if limits := _limits(schema, is_lenient=self._is_lenient):
            parts.append([" & ".join(limits), *null])
        parts += [[part] for each in self._schemas.all_of(schema) for part in self._parts(each, kinds, depth + 1)]
        for either in any_of(schema):
            allowed = [each for each in either if kinds & self._schemas.kinds(each)]
            if not allowed:
                raise ValueError(_NOTHING)
            is_ambiguous = any(sum(kind in self._schemas.kinds(each) for each in allowed) > 1 for kind in kinds)
            if is_ambiguous and "oneOf" in schema and not self._is_lenient:
                raise ValueError("a text in this format cannot follow 'oneOf'")
            bodies = list(dict.fromkeys(" & ".join(self._parts(each, kinds, depth + 1)) for each in allowed))
            parts += [bodies] if all(bodies) else []
        return [each[0] if len(each) == 1 else f"({' | '.join(f'({one})' for one in each)})" for each in parts]


def _given(schema: dict[str, Any]) -> Iterator[list[Any]]:
    """Return the lists of values that a schema has its value in."""
    if "const" in schema:
        yield [schema["const"]]
    if isinstance(values := schema.get("enum"), list):
        yield values


def _texts_of(values: list[Any]) -> list[str]:
    texts = [value for value in values if isinstance(value, str)]
    if not texts or any(_END_OF_TEXT.search(text) for text in texts):
        raise ValueError(f"no text in this format can be one of {str(values)[:200]}")
    return texts


def _limits(schema: dict[str, Any], *, is_lenient: bool) -> list[str]:
    parts = []
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is not None and least > most:
        raise ValueError(_NOTHING)
    if least or most is not None:
        parts.append(f"/(?s:.{{{int(least)},{'' if most is None else int(most)}}})/")
    if "pattern" in schema:
        expression = _unanchored(schema["pattern"])
        if not is_lenient or not LLMatcher.validate_grammar(grammar_of(["start: TEXT", f"TEXT: {expression}"])):
            parts.append(expression)
    return parts


def _unanchored(expression: str) -> str:
    """Write a schema's pattern, which matches anywhere, as a terminal's, which matches the whole: the library has no
    anchors within it."""
    choices: list[list[str]] = [[]]
    depth = 0
    for piece in _PIECES.findall(expression):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            choices.append([])
        else:
            choices[-1].append(piece)
    return f"/{'|'.join(map(_whole, choices))}/"


def _whole(pieces: list[str]) -> str:
    begins, ends = pieces[:1] == ["^"], pieces[-1:] == ["$"]
    inner = "".join(pieces[begins : len(pieces) - ends])
    inner = re.sub(r"\\.|/", lambda found: r"\/" if found.group() == "/" else found.group(), inner, flags=re.DOTALL)
    return f"{'' if begins else '(?s:.*)'}(?:{inner}){'' if ends else '(?s:.*)'}"
