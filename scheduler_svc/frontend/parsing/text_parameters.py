"""The parameters that a tool's schema names, and which may be texts: Qwen3-Coder writes texts without JSON."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

KINDS = frozenset({"string", "null", "boolean", "integer", "number", "array", "object"})
MAX_DEPTH = 100  # of schemas in schemas, where references lead on

Kinds = frozenset[str]


def named_parameters(parameters: dict[str, Any] | None) -> dict[str, tuple[str, ...] | None]:
    """Return the parameters that a tool's schema names, each with what it may be beside a text.

    Args:
        parameters: JSON schema of the tool's arguments.

    Returns:
        Types of JSON by names, sorted: `("null",)` for a text that may be missing, `()` for what is always a text. None
        stands for what is no text, and for what nothing is said of.
    """
    found = Schemas(parameters or {}).properties()
    return {
        name: tuple(sorted(kinds - {"string"})) if "string" in kinds and kinds != KINDS else None
        for name, kinds in found.items()
    }


class Schemas:
    """A schema and those in it, which may refer to one another. A part that cannot be read says nothing."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._kinds: dict[int, Kinds] = {}  # by id of the schema; all live as long as the root
        self._visited: set[int] = set()

    def kinds(self, schema: Any, depth: int = 0) -> Kinds:
        """Return JSON's types that a value may have."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return KINDS
        if id(schema) not in self._kinds:
            self._kinds[id(schema)] = KINDS  # where it refers to itself
            kinds = _own_kinds(schema)
            for part in self.all_of(schema):
                kinds &= self.kinds(part, depth + 1)
            for parts in any_of(schema):
                kinds &= {kind for part in parts for kind in self.kinds(part, depth + 1)}
            self._kinds[id(schema)] = kinds
        return self._kinds[id(schema)]

    def properties(self) -> dict[str, Kinds]:
        """Return the types of each property that the schema names, itself or in a part."""
        return self._properties(self._root, 0)

    def all_of(self, schema: dict[str, Any]) -> list[Any]:
        """Return schemas that hold beside one, as it says."""
        parts = schema.get("allOf")
        return [*(parts if isinstance(parts, list) else ()), *pointed(schema.get("$ref"), self._root)]

    def _properties(self, schema: Any, depth: int) -> dict[str, Kinds]:
        """Look at each schema once: more would cost the square of what clients send."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH or id(schema) in self._visited:
            return {}
        self._visited.add(id(schema))
        named = schema.get("properties")
        found = {name: self.kinds(each) for name, each in named.items()} if isinstance(named, dict) else {}
        for part in self.all_of(schema):
            _intersect(found, self._properties(part, depth + 1))
        for parts in any_of(schema):
            either: dict[str, Kinds] = {}
            for part in parts:
                for name, kinds in self._properties(part, depth + 1).items():
                    either[name] = either.get(name, frozenset()) | kinds
            _intersect(found, either)
        return found


def pointed(reference: Any, root: dict[str, Any]) -> list[Any]:
    """Find what a pointer leads to in a schema; nothing if it leads nowhere, or out of it."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return [root] if reference == "#" else []
    found: Any = root
    for step in unquote(reference).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return []
    return [found]


def any_of(schema: dict[str, Any]) -> Iterable[list[Any]]:
    """Return lists of schemas of which one has to hold beside a schema, as it says."""
    return (parts for key in ("anyOf", "oneOf") if isinstance(parts := schema.get(key), list) and parts)


def _intersect(found: dict[str, Kinds], others: Mapping[str, Kinds]) -> None:
    for name, kinds in others.items():
        found[name] = found.get(name, KINDS) & kinds


def _own_kinds(schema: dict[str, Any]) -> Kinds:
    """Return what `type`, `enum` and `const` of a schema allow."""
    kinds, said = KINDS, schema.get("type")
    types = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    if known := {kind for kind in types if isinstance(kind, str)} & KINDS:
        kinds &= known | ({"integer"} if "number" in known else set())
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        kinds &= frozenset(map(_kind, values))
    return kinds


def _kind(value: Any) -> str:
    kinds = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")
