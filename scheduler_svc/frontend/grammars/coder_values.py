"""Values of parameters as Qwen3-Coder writes them: texts as they are, and other values as JSON."""

import re
from typing import Any

from scheduler_svc.frontend.grammars.lark import TEXT, dump, json_rule, literal, pattern
from scheduler_svc.frontend.parsing.qwen3_coder import END, END_FUNCTION, END_PARAMETER, PARAMETER
from scheduler_svc.frontend.parsing.text_parameters import MAX_DEPTH, Kinds, Schemas, any_of

_OF_THE_ROOT = ("$defs", "definitions", "x-guidance")
_NO_CONSTRAINTS = ("title", "description", "default", "examples", "deprecated", "$comment")
_NO_TEXT = ("format", "contentEncoding", "contentMediaType", "not", "if")
_NULL = frozenset({"null"})
_TEXT = frozenset({"string"})
_END = literal("\n" + END_PARAMETER)

# What may end a text where its end tag is missing (`Qwen3CoderParser`) does not stand in one that a grammar writes; and
# in a value that may be JSON no end tag at all. One expression, as several cost the library much more.
_ANY_CALL_TAG = f"({pattern(END_FUNCTION)}|{pattern(END)})"
_ENDS = f"(?s:.*)({pattern(END_PARAMETER)}|{_ANY_CALL_TAG}[ \\t\\r\\n]*<|\\n{pattern(PARAMETER)})|{pattern(PARAMETER)}"
_ANY_TEXT = f"{TEXT} & ~/({_ENDS})(?s:.*)/"
_ANY_VALUE = f"{TEXT} & ~/({_ENDS}|(?s:.*){_ANY_CALL_TAG})(?s:.*)/"
_END_OF_TEXT = re.compile(f"^({_ENDS})")


class Values:
    """The rules of values, each with the tag that ends it. Equal schemas have one rule: in a grammar with a budget the
    library has room for 256 JSON schemas."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def rule_of(self, schema: Any, root: dict[str, Any], *, is_named: bool) -> str:
        """The name of the rule of a value.

        Args:
            schema: of the value.
            root: the schema that it is a part of, with what it refers to.
            is_named: whether it is a property of its root. Who reads a value knows only of these that they are texts.

        Raises:
            ValueError: no value in this format can follow the schema.
        """
        if not isinstance(schema, dict) and schema is not True:
            raise ValueError(f"{schema!r} is no schema that a parameter can follow")
        said = {} if schema is True else {key: each for key, each in schema.items() if key not in _NO_CONSTRAINTS}
        if not said:
            body = _ANY_VALUE
        elif is_named and (kinds := Schemas(root).kinds(schema)) >= _TEXT and kinds <= _TEXT | _NULL:
            body = _Texts(root).body(said)
        else:
            shared = _OF_THE_ROOT if '"$ref"' in dump(said) else ("x-guidance",)
            body = json_rule({**{key: root[key] for key in shared if key in root}, **said})
        return self._names.setdefault(body, f"value_{len(self._names)}")

    def rules(self) -> list[str]:
        """All rules that were asked for."""
        rules = []
        for body, name in self._names.items():
            if body.startswith("%json"):
                rules.append(f"{name}: {body} {_END}")
            else:
                rules += [f"{name}[lazy]: {name.upper()} {_END}", f"{name.upper()}: {body}"]
        return rules


def is_lenient(schema: dict[str, Any]) -> bool:
    """Whether the schema says that what cannot be followed is to be ignored."""
    options = schema.get("x-guidance")
    return isinstance(options, dict) and bool(options.get("lenient"))


class _Texts:
    """Bodies of terminals for texts that are written without JSON, and for null where a schema allows that.

    Args:
        root: the schema that theirs are parts of.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._schemas = Schemas(root)
        self._is_lenient = is_lenient(root)

    def body(self, schema: dict[str, Any]) -> str:
        """The body for a schema. Raises ValueError if no text can follow it."""
        return " & ".join([_ANY_TEXT, *self._parts(schema, _TEXT | _NULL, 0)])

    def _parts(self, schema: Any, kinds: Kinds, depth: int) -> list[str]:
        """What the text has to be, each of them.

        Args:
            kinds: that the schemas around this one allow.
        """
        if not isinstance(schema, dict):
            return []
        if depth > MAX_DEPTH:
            raise ValueError(f"a schema refers to itself, or through more than {MAX_DEPTH} others")
        if not self._is_lenient and (said := [key for key in _NO_TEXT if key in schema]):
            raise ValueError(f"a text in this format cannot follow {said[0]!r}")
        kinds &= self._schemas.kinds(schema)
        null = [literal("null")] if "null" in kinds else []
        if kinds == _NULL:
            return null
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        parts = []
        if values is not None:
            parts.append([*map(literal, _texts_of(values)), *null])
        elif limits := _limits(schema, is_lenient=self._is_lenient):
            parts.append([" & ".join(limits), *null])
        parts += [[part] for each in self._schemas.all_of(schema) for part in self._parts(each, kinds, depth + 1)]
        for either in any_of(schema):
            allowed = [each for each in either if kinds & self._schemas.kinds(each)]
            is_ambiguous = any(sum(kind in self._schemas.kinds(each) for each in allowed) > 1 for kind in kinds)
            if is_ambiguous and "oneOf" in schema and not self._is_lenient:
                raise ValueError("a text in this format cannot follow 'oneOf'")
            bodies = [" & ".join(self._parts(each, kinds, depth + 1)) for each in allowed]
            parts += [bodies] if all(bodies) else []
        return [f"({' | '.join(f'({each})' for each in either)})" for either in parts]


def _texts_of(values: Any) -> list[str]:
    texts = [value for value in values if isinstance(value, str)]
    if not texts or any(_END_OF_TEXT.search(text) for text in texts):
        raise ValueError(f"no text in this format can be one of {str(values)[:200]}")
    return texts


def _limits(schema: dict[str, Any], *, is_lenient: bool) -> list[str]:
    parts = []
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        parts.append(f"/(?s:.{{{int(least)},{'' if most is None else int(most)}}})/")
    if "pattern" in schema and not is_lenient:
        parts.append(_unanchored(schema["pattern"]))
    return parts


def _unanchored(expression: str) -> str:
    """A pattern of a schema matches anywhere, and a terminal's the whole."""
    before = "" if expression.startswith("^") else "(?s:.*)"
    after = "" if expression.endswith("$") and not expression.endswith(r"\$") else "(?s:.*)"
    inner = expression.removeprefix("^")
    inner = inner if after else inner.removesuffix("$")
    return f"/{before}(?:{_slashed(inner)}){after}/"


def _slashed(expression: str) -> str:
    """With its slashes escaped, as it stands between slashes."""
    return re.sub(r"\\.|/", lambda match: r"\/" if match.group() == "/" else match.group(), expression, flags=re.DOTALL)
