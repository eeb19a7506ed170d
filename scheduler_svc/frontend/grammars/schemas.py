"""JSON schemas before llguidance reads them: what it would take for something else is said otherwise, or refused.

llguidance keeps numbers as doubles, lets a text begin keys that it cannot end, and does not see where a text can never
end. It refuses a schema for the first thing that it cannot hold; of a lenient schema that is left out.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeGuard

from llguidance import LLMatcher, LLTokenizer

from common.grammars import parser_limits
from scheduler_svc.frontend.grammars.coder_values import is_lenient
from scheduler_svc.frontend.grammars.lark import dump, with_options

MAX_EXACT = 2**53  # doubles have every integer up to here
MAX_BOUND = 2**63 - 1024  # the greatest double that the library takes for a bound of integers
_TYPES = {"null", "boolean", "object", "array", "number", "integer", "string"}
_PATTERNS = "patternProperties"
_BY_NAME = ("properties", _PATTERNS, "$defs", "definitions")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_BOUNDS = {"minimum": math.inf, "exclusiveMinimum": math.inf, "maximum": -math.inf, "exclusiveMaximum": -math.inf}
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NULL = {"type": "null"}

Schema = dict[str, Any]
Change = Callable[[Schema, str], Schema]


class SchemaError(ValueError):
    """What a schema says cannot be followed. The message has the place in the schema."""


def prepared(schema: Schema, tokenizer: LLTokenizer) -> Schema:
    """The schema as llguidance is to read it.

    Raises:
        SchemaError: no text can follow it, or the library cannot hold it exactly. The message has the place in the
            schema, and the value there.
    """
    root = schema
    if is_lenient(schema):
        schema = _changed(schema, lambda part, place: _without_unheld(part, place, root))
    schema = _changed(schema, _with_exact_numbers)
    if f'"{_PATTERNS}"' in dump(schema):
        keys = _Keys(with_options(schema).get("x-guidance"), tokenizer)
        schema = _changed(schema, lambda part, place: _with_possible_keys(part, keys))
    _check_ends(schema)
    return schema


def _changed(schema: Any, change: Change, place: str = "#") -> Any:
    """The schema with all schemas in it changed, the inner ones first."""
    if not isinstance(schema, dict):
        return schema
    changed = dict(schema)
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, dict):
            changed[key] = {name: _changed(part, change, f"{place}/{key}/{name}") for name, part in value.items()}
        elif key in (*_LISTS, "items") and isinstance(value, list):
            changed[key] = [_changed(part, change, f"{place}/{key}/{i}") for i, part in enumerate(value)]
        elif key in ("items", "additionalProperties"):
            changed[key] = _changed(value, change, f"{place}/{key}")
    return change(changed, place)


# --- numbers ---


def _with_exact_numbers(schema: Schema, place: str) -> Schema:
    """The schema with bounds that doubles have, and no wider than it says. Raises SchemaError for values that they do
    not have."""
    for key in ("const", "enum"):
        for number in _integers(schema.get(key)):
            if (written := _as_written(number)) != number:
                raise SchemaError(f"{place}/{key} is {number}, which a grammar would round to {written}: "
                                 "let it be a string")  # fmt: skip
    changed = dict(schema)
    for key, inward in _BOUNDS.items():
        value = schema.get(key)
        if not _is_number(value) or abs(value) <= MAX_EXACT:
            continue
        bound = _moved(value, inward, is_exclusive=key.startswith("exclusive"))
        if bound is None:
            raise SchemaError(f"{place}/{key} is {value}, and bounds of a grammar's numbers go to {MAX_BOUND}")
        del changed[key]
        name = "minimum" if inward > 0 else "maximum"
        other = changed.get(name)
        if not _is_number(other) or (bound > other) == (inward > 0):
            changed[name] = bound
    return changed


def _moved(value: float, inward: float, *, is_exclusive: bool) -> int | None:
    """A bound that is a double and includes itself, moved inward as far as it takes; None if it leaves no number.

    Args:
        inward: infinity, with the sign of the direction in which the numbers are that the bound allows.
    """
    nearest = float(max(min(value, MAX_BOUND), -MAX_BOUND))
    is_outside = nearest < value if inward > 0 else nearest > value
    if abs(value) > MAX_BOUND and is_outside:
        return None
    if is_outside or (is_exclusive and nearest == value):
        nearest = math.nextafter(nearest, inward)
    return int(nearest) if abs(nearest) <= MAX_BOUND else None  # the library reads an exponent less exactly


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _integers(part)


def _as_written(value: int) -> int | float:
    """What the library writes for an integer: the shortest digits of the same double, and zeros."""
    if value == -(2**63):
        return -MAX_BOUND  # it overflows
    return int(Decimal(repr(float(value)))) if abs(value) < 2**1000 else math.inf


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# --- keys ---


class _Keys:
    """Asks the library which keys an object of a schema may have.

    Args:
        options: of the schema.
    """

    def __init__(self, options: Any, tokenizer: LLTokenizer) -> None:
        said = dict(options) if isinstance(options, dict) else {}
        said.pop("whitespace_pattern", None)
        self._options = {**said, "whitespace_flexible": False}
        self._tokenizer = tokenizer

    def may_begin(self, text: str, taken: Mapping[str, Any], patterns: Mapping[str, Any], others: Any) -> bool:
        """Whether an object may begin so, that has none of the keys that are taken."""
        schema = {
            "type": "object",
            "properties": dict.fromkeys(taken, False),
            _PATTERNS: patterns,
            "additionalProperties": others,
            "x-guidance": self._options,
        }
        grammar = LLMatcher.grammar_from_json_schema(dump(schema))
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
        tokens = self._tokenizer.tokenize_str(text)
        return not matcher.is_error() and bool(matcher.validate_tokens(tokens) == len(tokens))


def _with_possible_keys(schema: Schema, keys: _Keys) -> Schema:
    """The schema without patterns of keys that match none but those of its properties, and without further keys if
    there can be none: where llguidance looks for one, a text could not go on."""
    patterns, named = schema.get(_PATTERNS), schema.get("properties", {})
    if not isinstance(patterns, dict) or not isinstance(named, dict):
        return schema
    named, kept = dict(named), {}
    for pattern, said in patterns.items():
        if keys.may_begin('{"', named, {pattern: _NULL}, False):
            kept[pattern] = said
            continue
        for name, own in named.items():
            if keys.may_begin(f"{{{json.dumps(name, ensure_ascii=False)}:", {}, {pattern: _NULL}, False):
                named[name] = {"allOf": [own, said]}
    changed = {**schema, "properties": named, _PATTERNS: kept}
    none = dict.fromkeys(patterns, False)
    if schema.get("additionalProperties") is not False and not keys.may_begin('{"', named, none, _NULL):
        changed["additionalProperties"] = False
    return changed


# --- texts that never end ---


def _check_ends(schema: Schema) -> None:
    """Raise SchemaError if a part of the schema needs another text of the same part in each of its texts."""
    parts: dict[str, Any] = {"#": schema}
    _changed(schema, lambda part, place: _noting(part, schema, parts))
    ended: set[str] = set()
    before = -1
    while len(ended) > before:
        before = len(ended)
        ended |= {ref for ref, part in parts.items() if ref not in ended and _ends(part, ended, parts)}
    if never := [ref for ref in parts if ref not in ended]:
        raise SchemaError(f"a text of {never[-1]} never ends: there has to be another one in it")


def _noting(part: Schema, root: Schema, parts: dict[str, Any]) -> Schema:
    ref = part.get("$ref")
    if isinstance(ref, str) and (found := _referred(ref, root)):
        parts[ref] = found[0]
    return part


def _referred(ref: str, root: Schema) -> list[Any]:
    """What a reference within the schema leads to; nothing if there is none."""
    found: Any = root
    for step in ref.split("/")[1:] if ref.startswith("#/") else [] if ref == "#" else [""]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return []
    return [found]


def _ends(part: Any, ended: set[str], parts: dict[str, Any]) -> bool:
    """Whether some text of this part ends, as far as texts end of what it refers to; true where that is not known."""
    if not isinstance(part, dict):
        return True
    if part.get("$ref") in parts and part["$ref"] not in ended:
        return False
    if not all(_ends(each, ended, parts) for each in _list(part, "allOf")):
        return False
    for key in ("anyOf", "oneOf"):
        if (options := _list(part, key)) and not any(_ends(each, ended, parts) for each in options):
            return False
    if "const" in part or "enum" in part:
        return True
    kind = part.get("type")
    return any(
        each not in ("object", "array") or all(_ends(inner, ended, parts) for inner in _needed(part, each))
        for each in (kind if isinstance(kind, list) else [kind])
    )


def _needed(part: Schema, kind: str) -> list[Any]:
    """The schemas that every object or array of a schema has a value of."""
    if kind == "object":
        named, others = part.get("properties"), part.get("additionalProperties")
        named = named if isinstance(named, dict) else {}
        others = None if part.get(_PATTERNS) else others
        return [named.get(name, others) for name in _list(part, "required") if isinstance(name, str)]
    least, first = part.get("minItems", 0), _list(part, "prefixItems")
    if not isinstance(least, int) or least < 1:
        return []
    return [*first[:least], *([part.get("items")] if least > len(first) else [])]


def _list(part: Schema, key: str) -> list[Any]:
    value = part.get(key)
    return value if isinstance(value, list) else []


# --- lenient schemas ---


def _without_unheld(schema: Schema, place: str, root: Schema) -> Schema:
    """The schema without what no grammar can hold."""
    kept = {}
    for key, said in schema.items():
        value = said
        if key in _BY_NAME and isinstance(said, dict):
            value = {
                name: _schema(part) for name, part in said.items() if key != _PATTERNS or _compiles(key, {name: True})
            }
        elif key in (*_LISTS, "items") and isinstance(said, list):
            value = [_schema(part) for part in said]
        is_dangling = key == "$ref" and not _leads(value, root)
        is_option = key == "x-guidance" and place != "#"
        if not is_dangling and not is_option and _HELD.get(key, _is_any)(value):
            kept[key] = value
    return {key: value for key, value in kept.items() if _is_exact(key, value) and _compiles(key, value)}


def _is_any(value: Any) -> bool:
    return True


def _is_kind(value: Any) -> bool:
    kinds = value if isinstance(value, list) else [value]
    return bool(kinds) and all(isinstance(kind, str) and kind in _TYPES for kind in kinds)


def _is_bound(value: Any) -> bool:
    return _is_number(value) or isinstance(value, bool)  # which draft 4 has for exclusive ones


# What a grammar can hold of a keyword's values.
_HELD: dict[str, Callable[[Any], bool]] = {
    "$schema": lambda value: False,  # says nothing of texts
    "type": _is_kind,
    "format": lambda value: isinstance(value, str),
    "enum": lambda value: isinstance(value, list) and bool(value),
    "required": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "items": lambda value: isinstance(value, (dict, bool, list)),
    "additionalProperties": lambda value: isinstance(value, (dict, bool)),
    **dict.fromkeys(_BY_NAME, lambda value: isinstance(value, dict)),
    **dict.fromkeys(_LISTS, lambda value: isinstance(value, list) and bool(value)),
    **dict.fromkeys(_BOUNDS, _is_bound),
    **dict.fromkeys(_SIZES, lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0),
}


def _compiles(key: str, value: Any) -> bool:
    """Whether the library takes a keyword whose value is an expression, or a number with few digits."""
    kind = {"pattern": "string", "multipleOf": "number", _PATTERNS: "object"}.get(key)
    said = dict.fromkeys(value, True) if key == _PATTERNS else value
    grammar = kind and LLMatcher.grammar_from_json_schema(dump({"type": kind, key: said}))
    return not (grammar and LLMatcher.validate_grammar(grammar))


def _is_exact(key: str, value: Any) -> bool:
    try:
        _with_exact_numbers({key: value}, "")
    except SchemaError:
        return False
    return True


def _leads(ref: Any, root: Schema) -> bool:
    """Whether a reference leads to a part of the schema, maybe by a name that the part has."""
    if not isinstance(ref, str):
        return False
    named = (f'"$id": {json.dumps(ref)}', f'"$anchor": {json.dumps(ref.removeprefix("#"))}')
    return bool(_referred(ref, root)) or any(name in dump(root) for name in named)


def _schema(value: Any) -> Any:
    return value if isinstance(value, (dict, bool)) else True
