"""Which parameters of a tool are texts: Qwen3-Coder writes their values without JSON."""

from typing import Any

_TEXT_TYPES = ("string", ["string"], ["string", "null"], ["null", "string"])


def text_parameters(parameters: dict[str, Any] | None) -> tuple[str, ...]:
    """The names of a tool's parameters that are texts.

    Args:
        parameters: JSON schema of the tool's arguments.
    """
    properties = (parameters or {}).get("properties")
    if not isinstance(properties, dict):
        return ()
    return tuple(name for name, schema in properties.items() if is_text(schema))


def is_text(schema: Any) -> bool:
    """Whether every value of a schema is a text, or may be given as one."""
    if not isinstance(schema, dict):
        return False
    kind, values = schema.get("type"), schema.get("enum", [schema.get("const")])
    if kind is not None:
        return kind in _TEXT_TYPES
    return isinstance(values, list) and bool(values) and all(isinstance(value, str) for value in values)
