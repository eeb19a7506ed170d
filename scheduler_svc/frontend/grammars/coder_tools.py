"""Grammars of calls as Qwen3-Coder writes them, with a tag around each parameter's value."""

from typing import Any

from llguidance import LLTokenizer

from scheduler_svc.frontend.grammars.json_tools import in_tags, object_schema
from scheduler_svc.frontend.grammars.lark import grammar_of, json_rule, literal, term, text_without
from scheduler_svc.frontend.grammars.spec import ToolGrammar, ToolSchema
from scheduler_svc.frontend.parsing.call_object import MAX_NAME_CHARS
from scheduler_svc.frontend.parsing.qwen3_coder import BEGIN, END, END_FUNCTION, END_PARAMETER, FUNCTION, PARAMETER
from scheduler_svc.frontend.parsing.text_parameters import is_text

# Of an object's schema, what says more than which parameters there are: parameters are written one by one.
_OF_THE_WHOLE = (
    *("$ref", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"),
    *("unevaluatedProperties",),
)
_NO_TEXT = ("format", "contentEncoding", "contentMediaType", "allOf", "anyOf", "oneOf", "not", "$ref", "if")
_SHARED = ("$defs", "definitions", "x-guidance")
_ANY_KEY = "/[A-Za-z_][A-Za-z0-9_.\\-]{0,63}/"
_END_VALUE = literal("\n" + END_PARAMETER)


def coder_tools(asked: ToolGrammar, tokenizer: LLTokenizer) -> str:
    """Calls in tags; each has the tool's parameters in the schema's order, without those that it need not have.

    A parameter that no schema names is not written, unless the tool names none at all.

    Raises:
        ValueError: a schema, or a name in it, cannot be written in this format.
    """
    rules = [rule for number, tool in enumerate(asked.tools) for rule in _tool(f"tool_{number}", tool)]
    functions = " | ".join(f"tool_{number}" for number in range(len(asked.tools)))
    return grammar_of(
        [
            *in_tags(asked, BEGIN, "body", tokenizer),
            f'body: "\\n" ({functions}) {literal(END_FUNCTION)} "\\n" {term(END, tokenizer)}',
            f"any_value[lazy]: ANY {_END_VALUE}",
            f"ANY: {text_without(END_PARAMETER)}",
            *rules,
        ]
    )


def _tool(rule: str, tool: ToolSchema) -> list[str]:
    _check_name(tool.name, "tool")
    schema = object_schema(tool)
    is_lenient = _is_lenient(schema)
    if not is_lenient and (said := [key for key in _OF_THE_WHOLE if key in schema]):
        raise ValueError(f"parameters of tool {tool.name!r}: calls in this format cannot follow {said[0]!r}")
    begin = literal(f"{FUNCTION}{tool.name}>\n")
    required: list[str] = schema.get("required", [])
    named: dict[str, Any] = schema.get("properties", {})
    parameters = {**named, **{key: True for key in required if key not in named}}
    if not parameters:
        return [f"{rule}: {begin}{_any_parameters(schema)}"]
    shared: dict[str, Any] = {key: schema[key] for key in _SHARED if key in schema}
    rules, parts = [], [begin]
    for number, (key, value) in enumerate(parameters.items()):
        _check_name(key, "parameter")
        name, tag = f"{rule}_{number}", literal(f"{PARAMETER}{key}>\n")
        parts.append(f'({tag} {name} "\\n")' + ("" if key in required else "?"))
        rules += _value(name, value, shared, is_lenient=is_lenient)
    return [f"{rule}: {' '.join(parts)}", *rules]


def _any_parameters(schema: dict[str, Any]) -> str:
    values = schema.get("additionalProperties", True)
    if values is False:
        return ""
    value = "any_value" if values in (True, {}) else f"{json_rule(values)} {_END_VALUE}"
    return f' ({literal(PARAMETER)} {_ANY_KEY} ">\\n" {value} "\\n")*'


def _value(rule: str, schema: Any, shared: dict[str, Any], *, is_lenient: bool) -> list[str]:
    """A value with its end tag."""
    if schema in (True, {}):
        return [f"{rule}: any_value"]
    if not isinstance(schema, dict):
        raise ValueError(f"{schema!r} is no schema that a parameter can follow")
    if not is_text(schema):
        return [f"{rule}: {json_rule({**shared, **schema})} {_END_VALUE}"]
    terminal = rule.upper()
    return [f"{rule}[lazy]: {terminal} {_END_VALUE}", f"{terminal}: {_text(schema, is_lenient=is_lenient)}"]


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
    return expression.replace(r"\/", "/").replace("/", r"\/").replace("\n", r"\n")


def _check_name(name: str, what: str) -> None:
    if not name or name != name.strip() or len(name) > MAX_NAME_CHARS or any(letter in name for letter in "<>\n"):
        raise ValueError(f"the name of {what} {name[:64]!r} cannot be written in this format")


def _is_lenient(schema: dict[str, Any]) -> bool:
    options = schema.get("x-guidance")
    return isinstance(options, dict) and bool(options.get("lenient"))
