"""The schemas in a JSON schema: where they stand, what refers to them, and how they are changed."""

from collections.abc import Callable
from typing import Any

from scheduler_svc.frontend.parsing.text_parameters import pointed

Schema = dict[str, Any]
Change = Callable[[Schema, str], Any]

KEY_PATTERNS = "patternProperties"
BY_NAME = ("properties", KEY_PATTERNS, "$defs", "definitions")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_DEFINITIONS = ("$defs", "definitions", "x-guidance")
_NO_SCHEMAS = ("const", "enum", "default", "examples", "example", "x-guidance")


class SchemaError(ValueError):
    """Say that a schema cannot be followed. The message has the place in the schema."""


def is_lenient(schema: Schema) -> bool:
    """Return whether the schema says that what cannot be followed is to be ignored."""
    options = schema.get("x-guidance")
    return isinstance(options, dict) and bool(options.get("lenient"))


def changed(schema: Any, change: Change, place: str = "#") -> Any:
    """Return the schema with all schemas in it changed, the outer ones first.

    An object under an unknown key is taken for a schema, too: a reference may lead into it, as OpenAPI's do into
    `#/components/schemas`.

    Args:
        change: takes a schema and its place.
    """
    if not isinstance(schema, dict) or not isinstance(schema := change(schema, place), dict):
        return schema
    result = dict(schema)
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, dict):
            result[key] = {name: changed(part, change, f"{place}/{key}/{name}") for name, part in value.items()}
        elif key in (*LISTS, "items") and isinstance(value, list):
            result[key] = [changed(part, change, f"{place}/{key}/{i}") for i, part in enumerate(value)]
        elif key not in _NO_SCHEMAS:
            result[key] = changed(value, change, f"{place}/{key}")
    return result


def references(schema: Schema) -> dict[str, Any]:
    """Find what the references within the schema lead to, by these; without those that lead nowhere or out of it."""
    refs: dict[str, None] = {}
    named: dict[str, Any] = {}

    def note(part: Schema, place: str) -> Schema:
        if isinstance(ref := part.get("$ref"), str):
            refs[ref] = None
        for key, before in (("$id", ""), ("$anchor", "#")):
            if isinstance(name := part.get(key), str):
                named[before + name] = part
        return part

    changed(schema, note)
    found = {ref: [named[ref]] if ref in named else pointed(ref, schema) for ref in refs}
    return {ref: target[0] for ref, target in found.items() if target}


class Root:
    """A schema whose parts become schemas of their own. The references in all of it are found once.

    Attributes:
        schema: all of it.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._targets = references(schema)
        self._names = {ref: f"#/$defs/{number}" for number, ref in enumerate(self._targets)}

    def alone(self, part: Schema) -> Schema:
        """Return a part as a schema of its own, with what it refers to among its definitions."""
        waiting: list[str] = []

        def renamed(part: Schema, place: str) -> Schema:
            kept = {key: value for key, value in part.items() if key not in ("$id", "$anchor")}
            if (ref := part.get("$ref")) in self._names:
                waiting.append(ref)
                kept["$ref"] = self._names[ref]
            return kept

        result: Schema = changed(_without(_DEFINITIONS, part), renamed)
        definitions: dict[str, Any] = {}
        while waiting:
            ref = waiting.pop()
            name = self._names[ref].rpartition("/")[2]
            if name not in definitions:
                definitions[name] = changed(_without(_DEFINITIONS, self._targets[ref]), renamed)
        if definitions:
            result["$defs"] = definitions
        if "x-guidance" in self.schema:
            result["x-guidance"] = self.schema["x-guidance"]
        return result


def _without(keys: tuple[str, ...], schema: Any) -> Any:
    return {key: value for key, value in schema.items() if key not in keys} if isinstance(schema, dict) else schema
