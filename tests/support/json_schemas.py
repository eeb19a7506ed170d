"""Random JSON Schemas (draft 2020-12) of what llguidance knows, and a little of what it does not.

hypothesis-jsonschema makes instances of schemas, not schemas, and needs an older hypothesis than ours.
"""

import decimal
import json
import string
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

# An empty key, characters that are escaped, a keyword, and keys that are no ASCII.
KEYS = ["a", "b", "name", "two words", "é", "王", 'quo"te', "line\nbreak", "", "$ref"]
KEY_PATTERNS = ["^x-", "^[0-9]+$"]  # disjoint, as llguidance wants them
PATTERNS = [
    "^[a-c]{2,4}$",
    "^\\d+(\\.\\d\\d)?$",
    "^(yes|no)$",
    "b+",
    "^\\w+@\\w+$",
    "^[^aeiou\\s]*$",
    "^.{1,3}$",
    "ing$",
]
FORMATS = ["ipv4", "uuid"]  # those that jsonschema checks, and llguidance has to the last case
REFUSED = [{"not": {"type": "null"}}, {"uniqueItems": True}, {"propertyNames": {"maxLength": 3}}]
TREE = {
    "type": "object",
    "properties": {"leaf": {"type": "boolean"}, "branches": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["leaf"],
    "additionalProperties": False,
}
LEAVES = ["null", "boolean", "integer", "number", "length", "pattern", "format", "const", "enum", "types", "tree"]
BRANCHES = ["object", "object", "object", "array", "array", "anyOf", "allOf", "oneOf", "beside"]

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1000, 1000),
    st.integers(-1000, 1000).map(lambda whole: whole + 0.25),
    st.text(string.ascii_letters + string.digits + ' _-\\"/\n\té王🐲', max_size=8),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=4,
)
_fractions = st.integers(-40, 40).map(
    lambda whole: (whole * 10 + 3) / 10
)  # jsonschema has no integer that is written 1.0


def errors(schema: Schema, text: str) -> list[str]:
    """What jsonschema has against a document. Fractions are compared as they are written, not as floats."""
    from jsonschema import Draft202012Validator, FormatChecker  # here: GPU machines collect tests without it

    exact = json.loads(json.dumps(schema), parse_float=decimal.Decimal)
    try:
        document = json.loads(text, parse_float=decimal.Decimal)
    except ValueError as error:
        return [str(error)]
    return [
        error.message
        for error in Draft202012Validator(exact, format_checker=FormatChecker(FORMATS)).iter_errors(document)
    ]


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """A schema, three levels deep at most; one in twenty has a keyword that llguidance does not know."""
    schema = _branch(draw, 2)
    if draw(st.integers(0, 19)) == 10:
        schema = schema | draw(st.sampled_from(REFUSED))
    return schema | {"$defs": {"tree": TREE}} if "#/$defs/tree" in str(schema) else schema


def _schema(draw: st.DrawFn, depth: int) -> Schema:
    return _branch(draw, depth) if depth and draw(st.booleans()) else _leaf(draw)


def _branch(draw: st.DrawFn, depth: int) -> Schema:
    """One with others in it."""
    match draw(st.sampled_from(BRANCHES)):
        case "object":
            return _object(draw, depth - 1)
        case "array":
            return _array(draw, depth - 1)
        case "beside":
            schema = _schema(draw, depth - 1)
            return schema | {"anyOf": [*_several(draw, depth - 1), schema]}
        case "allOf":
            kind = draw(st.sampled_from([_object, _array, _number]))
            return {"allOf": [kind(draw, depth - 1) for _ in range(2)]}
        case combination:
            return {combination: _several(draw, depth - 1)}


def _several(draw: st.DrawFn, depth: int) -> list[Schema]:
    return [_schema(draw, depth) for _ in range(draw(st.integers(1, 3)))]


def _leaf(draw: st.DrawFn) -> Schema:
    match draw(st.sampled_from(LEAVES)):
        case "integer":
            return {"type": "integer"} | _bounds(draw, st.integers(-60, 60), [2, 3, 7])
        case "number":
            return _number(draw)
        case "length":
            return {"type": "string"} | _range(draw, "minLength", "maxLength", st.integers(0, 12))
        case "pattern":
            return {"type": "string", "pattern": draw(st.sampled_from(PATTERNS))}
        case "format":
            return {"type": "string", "format": draw(st.sampled_from(FORMATS))}
        case "const":
            return {"const": draw(_values)}
        case "enum":
            return {"enum": draw(st.lists(_values, min_size=1, max_size=4))}
        case "types":
            kinds = ["null", "boolean", "integer", "string", "array"]
            return {"type": draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3, unique=True))}
        case "tree":
            return {"$ref": "#/$defs/tree"}
        case kind:
            return {"type": kind}


def _number(draw: st.DrawFn, depth: int = 0) -> Schema:
    return {"type": "number"} | _bounds(draw, st.integers(-60, 60) | _fractions, [2, 0.25, 0.1])


def _bounds(draw: st.DrawFn, ends: st.SearchStrategy[float], multiples: list[float]) -> Schema:
    least = draw(st.sampled_from(["minimum", "exclusiveMinimum"]))
    most = draw(st.sampled_from(["maximum", "exclusiveMaximum"]))
    multiple = {"multipleOf": draw(st.sampled_from(multiples))} if draw(st.integers(0, 3)) == 3 else {}
    return _range(draw, least, most, ends) | multiple


def _range(draw: st.DrawFn, least: str, most: str, ends: st.SearchStrategy[Any]) -> Schema:
    """Two bounds at most, and the lower one is not the greater."""
    low, high = sorted([draw(ends), draw(ends)])
    drawn: Schema = draw(st.sampled_from([{}, {least: low}, {most: high}, {least: low, most: high}]))
    return drawn


def _array(draw: st.DrawFn, depth: int) -> Schema:
    schema = {"type": "array"} | _range(draw, "minItems", "maxItems", st.integers(0, 4))
    if draw(st.booleans()):
        schema["prefixItems"] = [_schema(draw, depth) for _ in range(draw(st.integers(1, 2)))]
    if draw(st.booleans()):
        schema["items"] = _schema(draw, depth) if draw(st.integers(0, 3)) else False
    return schema


def _object(draw: st.DrawFn, depth: int) -> Schema:
    """`minProperties` is 1 at most: two members with one key are two for a grammar, and one for its readers."""
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True))
    schema: Schema = {"type": "object", "properties": {key: _schema(draw, depth) for key in keys}}
    if draw(st.integers(0, 3)):
        schema["additionalProperties"] = _schema(draw, depth) if draw(st.integers(0, 3)) == 3 else False
    others = [] if schema.get("additionalProperties") is False else ["other"]
    schema["required"] = (
        draw(st.lists(st.sampled_from([*keys, *others]), max_size=3, unique=True)) if others or keys else []
    )
    if draw(st.integers(0, 3)) == 3:
        patterns = draw(st.lists(st.sampled_from(KEY_PATTERNS), min_size=1, max_size=2, unique=True))
        schema["patternProperties"] = {pattern: _schema(draw, depth) for pattern in patterns}
    if draw(st.integers(0, 7)) == 7:
        schema |= draw(st.sampled_from([{"minProperties": 1}, {"maxProperties": 3}]))
    return schema


@st.composite
def with_instances(draw: st.DrawFn) -> tuple[Schema, list[Any]]:
    """A schema, and values that are often valid for it, or almost."""
    schema = draw(schemas())
    return schema, [_instance(draw, schema) for _ in range(6)]


_TEXTS = [
    "aab",
    "7.25",
    "yes",
    "abbb",
    "me@home",
    "xyz",
    "sing",
    "10.0.0.255",
    "deadbeef-0000-4000-8000-00000000000f",
    "1",
]


def _instance(draw: st.DrawFn, schema: Schema) -> Any:
    if draw(st.integers(0, 11)) == 11:
        return draw(_values)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return _instance(draw, draw(st.sampled_from(schema[several])))
    if "$ref" in schema:
        return _instance(draw, TREE)
    if "const" in schema or "enum" in schema:
        return draw(st.sampled_from(schema.get("enum", [schema.get("const")])))
    kinds = schema.get("type", "object")
    match kinds if isinstance(kinds, str) else draw(st.sampled_from(kinds)):
        case "null":
            return None
        case "boolean":
            return draw(st.booleans())
        case "integer":
            return draw(st.integers(-61, 61))
        case "number":
            return draw(st.integers(-61, 61) | _fractions)
        case "string":
            return draw(st.sampled_from(_TEXTS) | st.text("ab é", max_size=13))
        case "array":
            items = schema.get("items", {"type": "null"}) or {"type": "null"}
            first = schema.get("prefixItems", [])
            num_items = draw(st.integers(0, 4))
            return [_instance(draw, each) for each in [*first, *[items] * 4][:num_items]]
        case _:
            properties = schema.get("properties", {})
            required = schema.get("required", [])
            left_out = draw(st.sampled_from([*properties, *required, None]))
            chosen = [key for key in {**properties, **dict.fromkeys(required)} if key != left_out]
            if draw(st.integers(0, 2)) == 2:
                chosen.append(draw(st.sampled_from(["x-1", "23", "more"])))
            others = schema.get("additionalProperties", {"type": "null"}) or {"type": "null"}
            return {key: _instance(draw, properties.get(key, others)) for key in chosen}
