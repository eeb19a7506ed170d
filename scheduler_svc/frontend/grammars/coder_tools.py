"""Grammars of calls as Qwen3-Coder writes them, with a tag around each parameter's value."""

from llguidance import LLTokenizer

from scheduler_svc.frontend.grammars.coder_values import Values
from scheduler_svc.frontend.grammars.json_tools import in_tags, object_schema
from scheduler_svc.frontend.grammars.lark import grammar_of, literal, term
from scheduler_svc.frontend.grammars.schema_parts import Root, is_lenient
from scheduler_svc.frontend.grammars.spec import ToolGrammar, ToolSchema
from scheduler_svc.frontend.parsing.call_object import MAX_NAME_CHARS
from scheduler_svc.frontend.parsing.qwen3_coder import BEGIN, END, END_FUNCTION, FUNCTION, PARAMETER
from scheduler_svc.frontend.parsing.thought import ThoughtStart

# Of an object's schema, what says more than which parameters there are: parameters are written one by one.
_OF_THE_WHOLE = (
    *("$ref", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"),
    *("unevaluatedProperties",),
)
_ANY_KEY = "/[A-Za-z_][A-Za-z0-9_.\\-]{0,63}/"


def coder_tools(asked: ToolGrammar, thought: ThoughtStart, tokenizer: LLTokenizer) -> str:
    """Calls in tags; each has the tool's parameters in the schema's order, without those that it need not have.

    A parameter that no schema names is not written, unless the tool names none at all.

    Raises:
        ValueError: a schema, or a name in it, cannot be written in this format.
    """
    values = Values(tokenizer)
    functions = " | ".join(_function(tool, values) for tool in asked.tools)
    return grammar_of(
        [
            *in_tags(asked, BEGIN, thought, tokenizer),
            f'body: "\\n" ({functions}) {literal(END_FUNCTION)} "\\n" {term(END, tokenizer)}',
            *values.rules(),
        ]
    )


def _function(tool: ToolSchema, values: Values) -> str:
    _check_name(tool.name, "tool")
    schema = object_schema(tool)
    if not is_lenient(schema) and (said := [key for key in _OF_THE_WHOLE if key in schema]):
        raise ValueError(f"parameters of tool {tool.name!r}: calls in this format cannot follow {said[0]!r}")
    required, named = schema.get("required", []), schema.get("properties", {})
    if not isinstance(required, list) or not isinstance(named, dict):
        raise ValueError(f"parameters of tool {tool.name!r}: 'required' is no list, or 'properties' no object")
    others = schema.get("additionalProperties", True)
    parameters = {**named, **{key: others for key in required if key not in named}}
    root = Root(schema)
    parts = [literal(f"{FUNCTION}{tool.name}>\n")]
    for key, value in parameters.items():
        if value is False and key not in required:
            continue
        _check_name(key, "parameter")
        tag = literal(f"{PARAMETER}{key}>\n")
        rule = values.rule_of(value, root, is_named=key in named)
        parts.append(f'({tag} {rule} "\\n")' + ("" if key in required else "?"))
    if not parameters and others is not False:
        rule = values.rule_of(others, root, is_named=False)
        parts.append(f'({literal(PARAMETER)} {_ANY_KEY} ">\\n" {rule} "\\n")*')
    return " ".join(parts)


def _check_name(name: str, what: str) -> None:
    if not name or name != name.strip() or len(name) > MAX_NAME_CHARS or any(letter in name for letter in "<>\n"):
        raise ValueError(f"the name of {what} {name[:64]!r} cannot be written in this format")
