"""Schemas that are there for a model to read, and may say what no grammar can: that is left out.

A text then follows what stands beside it. What is left out may not make what stands beside it say more: without
patterns of keys, `additionalProperties` would be of these keys, too, and goes with them. The library itself does not
follow `not` and `if` here, and takes `oneOf` for `anyOf`, so that wider schemas in these narrow nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from llguidance import LLMatcher

from scheduler_svc.frontend.grammars.exact_numbers import BOUNDS, is_number, with_exact_numbers
from scheduler_svc.frontend.grammars.lark import dump
from scheduler_svc.frontend.grammars.schema_parts import (
    BY_NAME,
    KEY_PATTERNS,
    LISTS,
    Schema,
    SchemaError,
    changed,
    references,
)

MAX_SIZE = 2**63 - 1  # that the library reads
_TYPES = {"null", "boolean", "object", "array", "number", "integer", "string"}
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def without_unheld(schema: Schema) -> Schema:
    """Return the schema without what no grammar can hold."""
    targets = references(schema)
    held: Schema = changed(schema, lambda part, place: _held(part, place, targets))
    return held


def _held(schema: Schema, place: str, targets: Mapping[str, Any]) -> Schema:
    kept = {}
    for key, said in schema.items():
        value = said
        if key in BY_NAME and isinstance(said, dict):
            value = {
                name: _schema(part)
                for name, part in said.items()
                if key != KEY_PATTERNS or _compiles(key, {name: True})
            }
        elif key in (*LISTS, "items") and isinstance(said, list):
            value = [_schema(part) for part in said]
        is_dangling = key == "$ref" and not (isinstance(value, str) and value in targets)
        is_option = key == "x-guidance" and place != "#"
        if not is_dangling and not is_option and _HELD.get(key, _is_any)(value):
            kept[key] = value
    kept = {key: value for key, value in kept.items() if _is_exact(key, value) and _compiles(key, value)}
    patterns = schema.get(KEY_PATTERNS)
    if isinstance(patterns, dict) and patterns.keys() != kept.get(KEY_PATTERNS, {}).keys():
        kept.pop("additionalProperties", None)
    return kept


def _schema(value: Any) -> Any:
    return value if isinstance(value, (dict, bool)) else True


def _is_any(value: Any) -> bool:
    return True


def _says_nothing(value: Any) -> bool:
    return False


def _is_kind(value: Any) -> bool:
    kinds = value if isinstance(value, list) else [value]
    return bool(kinds) and all(isinstance(kind, str) and kind in _TYPES for kind in kinds)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SIZE


def _is_switch_or_number(value: Any) -> bool:
    return is_number(value) or isinstance(value, bool)  # the first in draft 4


# These functions tell whether a grammar can hold a keyword's value.
_HELD: dict[str, Callable[[Any], bool]] = {
    "$schema": _says_nothing,
    "nullable": _says_nothing,  # the library refuses any keyword beside a reference that leads back
    "type": _is_kind,
    "format": lambda value: isinstance(value, str),
    "enum": lambda value: isinstance(value, list) and bool(value),
    "required": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "items": lambda value: isinstance(value, (dict, bool, list)),
    "additionalProperties": lambda value: isinstance(value, (dict, bool)),
    **dict.fromkeys(BY_NAME, lambda value: isinstance(value, dict)),
    **dict.fromkeys(LISTS, lambda value: isinstance(value, list) and bool(value)),
    **dict.fromkeys(BOUNDS, is_number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _is_switch_or_number),
    **dict.fromkeys(_SIZES, _is_size),
}


def _compiles(key: str, value: Any) -> bool:
    """Return whether the library takes a keyword whose value is an expression, a name, or a number with few digits."""
    kind = {"pattern": "string", "multipleOf": "number", KEY_PATTERNS: "object", "$id": "null"}.get(key)
    said = dict.fromkeys(value, True) if key == KEY_PATTERNS else value
    grammar = kind and LLMatcher.grammar_from_json_schema(dump({"type": kind, key: said}))
    return not (grammar and LLMatcher.validate_grammar(grammar))


def _is_exact(key: str, value: Any) -> bool:
    try:
        with_exact_numbers({key: value}, "")
    except SchemaError:
        return False
    return True
