"""Grammars of calls that are JSON objects: Hermes' and Qwen3's in tags, and Llama's without."""

import json
from typing import Any

from llguidance import LLTokenizer

from scheduler_svc.frontend.grammars.lark import (
    grammar_of,
    json_rule,
    literal,
    pattern,
    special_token,
    term,
    text_without,
)
from scheduler_svc.frontend.grammars.spec import ToolGrammar, ToolSchema
from scheduler_svc.frontend.parsing.call_object import ARGUMENTS, MAX_NAME_CHARS
from scheduler_svc.frontend.parsing.hermes import BEGIN, END


def hermes_tools(asked: ToolGrammar, tokenizer: LLTokenizer) -> str:
    """Calls in tags. The object is written as Qwen3's chat template writes it; only the arguments have a choice."""
    body = f'"\\n" object "\\n" {term(END, tokenizer)}'
    return grammar_of(
        [
            *in_tags(asked, BEGIN, "body", tokenizer),
            f"body: {body}",
            f"object: {' | '.join(_object(tool, literal(_key(ARGUMENTS[0]))) for tool in asked.tools)}",
        ]
    )


def plain_json_tools(asked: ToolGrammar) -> str:
    """One object, or a list of them. Where none is required, any text that does not begin as one of the two."""
    objects = [_object(tool, "key") for tool in asked.tools]
    calls = "object" if asked.is_one_call else 'object | "[" object (", " object)* "]"'
    keys = " | ".join(literal(_key(key)) for key in ARGUMENTS)
    rules = [f"calls: {calls}", f"object: {' | '.join(objects)}", f"key: {keys}"]
    if asked.is_required:
        return grammar_of(["start: calls", *rules])
    return grammar_of(["start: calls | text", "text: TEXT", r"TEXT: /[ \t\r\n]*([^ \t\r\n{\[](?s:.*))?/", *rules])


def in_tags(asked: ToolGrammar, begin: str, body: str, tokenizer: LLTokenizer) -> list[str]:
    """Rules from `start` on for calls that begin with a tag and go on with a rule: nothing but them, or text with them
    in it. Text does not have the tag's letters, also where the tag is a special token."""
    special = special_token(begin, tokenizer)
    if asked.is_required:
        more = "" if asked.is_one_call else ' ("\\n"? call)*'
        return [f"start: call{more}", f"call: {special or literal(begin)} {body}"]
    call = f"text {special}" if special else "text_and_tag"
    number = "?" if asked.is_one_call else "*"
    return [
        f"start: ({call} {body}){number} text",
        "text: TEXT",
        f"TEXT: {text_without(begin)}",
        f"text_and_tag[lazy]: /(?s:.*){pattern(begin)}/",
    ]


def object_schema(tool: ToolSchema) -> dict[str, Any]:
    """The schema of a tool's arguments, which are an object. Raises ValueError if it allows none."""
    schema = tool.parameters or {}
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ValueError(f"the parameters of tool {tool.name!r} are no object: their type is {kind!r}")
    return {**schema, "type": "object"}


def _object(tool: ToolSchema, key: str) -> str:
    name = json.dumps(tool.name, ensure_ascii=False)
    if not 2 < len(name) <= MAX_NAME_CHARS:
        raise ValueError(f"the name of tool {tool.name[:64]!r} has {len(name) - 2} characters in JSON, "
                         f"not 1 to {MAX_NAME_CHARS - 2}")  # fmt: skip
    begin = literal(f'{{"name": {name}, ')
    return f'{begin} {key} {json_rule(object_schema(tool))} "}}"'


def _key(name: str) -> str:
    return f'"{name}": '
