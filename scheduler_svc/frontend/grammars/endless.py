"""Schemas whose texts never end, because each has another one in it: no grammar tells before the text is begun."""

from collections.abc import Iterable, Mapping
from typing import Any

from scheduler_svc.frontend.grammars.schema_parts import KEY_PATTERNS, Schema, SchemaError, changed, references

_KINDS = ("null", "boolean", "number", "string", "object", "array")


def without_endless(schema: Schema) -> Schema:
    """Return the schema with `false` for each part whose texts never end. Raise SchemaError if the schema itself has
    no others."""
    targets = references(schema)
    if not targets:
        return schema
    ending, every = _Texts(targets, ()), _Texts(targets, targets)
    ending.grow()
    every.shrink()

    def is_endless(part: Any) -> bool:
        return every.has_one(part) and not ending.has_one(part)  # of what has no text at all the library says why

    if is_endless(schema):
        place = next((ref for ref in targets if _would_end(schema, ref, targets)), "#")
        raise SchemaError(f"a text of {place} never ends: there has to be another one in it")
    kept: Schema = changed(schema, lambda part, place: False if is_endless(part) else part)
    return kept


def _would_end(schema: Schema, ref: str, targets: Mapping[str, Any]) -> bool:
    """Return whether the schema had a text that ends if what the reference leads to had one."""
    texts = _Texts(targets, (ref,))
    texts.grow()
    return texts.has_one(schema)


class _Texts:
    """Tell which parts of a schema have texts, as far as it is known of what they refer to. What is not looked at
    counts as a text.

    Args:
        targets: what references lead to, by these.
        held: those that have texts of every type of JSON.
    """

    def __init__(self, targets: Mapping[str, Any], held: Iterable[str]) -> None:
        self._targets = list(targets.items())
        self._refs = targets.keys()
        self._held = {(ref, kind) for ref in held for kind in _KINDS}

    def grow(self) -> None:
        """Find the targets that have texts as others have them: from none on, those whose texts end."""
        before = -1
        while before < len(self._held):
            before = len(self._held)
            for ref, part in reversed(self._targets):
                self._held |= {(ref, kind) for kind in _KINDS if self._has(part, kind)}

    def shrink(self) -> None:
        """Find the targets that have none: from all on, those that have texts may be endless."""
        before = -1
        while before != len(self._held):
            before = len(self._held)
            for ref, part in self._targets:
                self._held -= {(ref, kind) for kind in _KINDS if not self._has(part, kind)}

    def has_one(self, part: Any) -> bool:
        """Return whether the part has a text."""
        return any(self._has(part, kind) for kind in _KINDS)

    def _has(self, part: Any, kind: str) -> bool:
        """Return whether it has one of a type of JSON."""
        if not isinstance(part, dict):
            return part is not False
        ref, types = part.get("$ref"), part.get("type")
        if isinstance(ref, str) and ref in self._refs and (ref, kind) not in self._held:
            return False
        if isinstance(types, str | list) and not _allows([types] if isinstance(types, str) else types, kind):
            return False
        if not all(self._has(each, kind) for each in _list(part, "allOf")):
            return False
        for key in ("anyOf", "oneOf"):
            if (options := _list(part, key)) and not any(self._has(each, kind) for each in options):
                return False
        return "const" in part or "enum" in part or all(map(self.has_one, _needed(part, kind)))


def _allows(types: list[Any], kind: str) -> bool:
    known = ["number" if each == "integer" else each for each in types]
    return kind in known or any(each not in _KINDS for each in known)  # the library refuses others


def _needed(part: Schema, kind: str) -> list[Any]:
    """Return the schemas that every object or array of a schema has a value of."""
    if kind == "object":
        named, others = part.get("properties"), part.get("additionalProperties")
        named = named if isinstance(named, dict) else {}
        others = None if part.get(KEY_PATTERNS) else others
        needed = [named.get(name, others) for name in _list(part, "required") if isinstance(name, str)]
        return needed or ([others] if part.get("minProperties") and not named else [])
    least, first = part.get("minItems", 0), _list(part, "prefixItems")
    if kind != "array" or not isinstance(least, int) or least < 1:
        return []
    return [*first[:least], *([part.get("items")] if least > len(first) else [])]


def _list(part: Schema, key: str) -> list[Any]:
    value = part.get(key)
    return value if isinstance(value, list) else []
