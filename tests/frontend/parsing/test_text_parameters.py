"""Which parameters of a tool may be texts, by its schema."""

from typing import Any

import pytest

from scheduler_svc.frontend.parsing.text_parameters import named_parameters


@pytest.mark.parametrize(
    ("schema", "beside_text"),
    [
        ({"type": "string"}, ()),
        ({"type": ["string", "null"]}, ("null",)),
        ({"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]}, ("array", "null")),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "boolean"]}]}, ()),
        ({"$ref": "#/$defs/name"}, ()),
        ({"enum": ["a", "b"]}, ()),
        ({"const": "a"}, ()),
        ({"type": "integer"}, None),
        ({"type": ["object", "array"]}, None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ({"enum": [1, 2]}, None),
        ({}, None),
        ({"description": "a name"}, None),
        (True, None),
        ("no schema", None),
    ],
)
def test_what_a_parameter_may_be_beside_a_text(schema: Any, beside_text: tuple[str, ...] | None):
    tool = {"type": "object", "properties": {"asked": schema}, "$defs": {"name": {"type": "string"}}}
    assert named_parameters(tool) == {"asked": beside_text}


def test_a_tool_without_a_schema_names_none():
    assert named_parameters(None) == named_parameters({}) == {}
