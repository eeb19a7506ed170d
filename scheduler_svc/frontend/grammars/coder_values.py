"""Values of parameters as Qwen3-Coder writes them: texts as they are, and other values as JSON."""

import re
from typing import Any

from scheduler_svc.frontend.grammars.lark import dump, json_rule, literal, text_without
from scheduler_svc.frontend.parsing.qwen3_coder import END_PARAMETER
from scheduler_svc.frontend.parsing.text_parameters import is_text

_OF_THE_ROOT = ("$defs", "definitions", "x-guidance")
_NO_CONSTRAINTS = ("title", "description", "default", "examples", "deprecated", "$comment")
_NO_TEXT = ("format", "contentEncoding", "contentMediaType", "allOf", "anyOf", "oneOf", "not", "$ref", "if")
_END = literal("\n" + END_PARAMETER)


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
            body = text_without(END_PARAMETER)
        elif is_named and is_text(said):
            body = _text(said, is_lenient=is_lenient(root))
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


def _text(schema: dict[str, Any], *, is_lenient: bool) -> str:
    """The body of a terminal for a text that is written without JSON."""
    if not is_lenient and (said := [key for key in _NO_TEXT if key in schema]):
        raise ValueError(f"a text in this format cannot follow {said[0]!r}")
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        texts = [value for value in values if isinstance(value, str)]
        if not texts or any(END_PARAMETER in text for text in texts):
            raise ValueError(f"no text in this format can be one of {str(values)[:200]}")
        return " | ".join(map(literal, texts))
    parts = [text_without(END_PARAMETER)]
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        parts.append(f"/(?s:.{{{int(least)},{'' if most is None else int(most)}}})/")
    if "pattern" in schema and not is_lenient:
        parts.append(_unanchored(schema["pattern"]))
    return " & ".join(parts)


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
