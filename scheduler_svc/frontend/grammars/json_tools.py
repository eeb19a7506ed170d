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
from scheduler_svc.frontend.grammars.thought import not_as_thought
from scheduler_svc.frontend.parsing.call_object import ARGUMENTS, MAX_NAME_CHARS
from scheduler_svc.frontend.parsing.hermes import BEGIN, END
from scheduler_svc.frontend.parsing.thought import ThoughtStart


def hermes_tools(asked: ToolGrammar, thought: ThoughtStart, tokenizer: LLTokenizer) -> str:
    """Calls in tags. The object is written as Qwen3's chat template writes it; only the arguments have a choice."""
    body = f'"\\n" object "\\n" {term(END, tokenizer)}'
    return grammar_of(
        [
            *in_tags(asked, BEGIN, thought, tokenizer),
            f"body: {body}",
            f"object: {' | '.join(_object(tool, literal(_key(ARGUMENTS[0]))) for tool in asked.tools)}",
        ]
    )


def plain_json_tools(asked: ToolGrammar, thought: ThoughtStart) -> str:
    """One object, or a list of them. Where none is required, any text that does not begin as one of the two."""
    objects = [_object(tool, "key") for tool in asked.tools]
    calls = "object" if asked.is_one_call else 'object | "[" object (", " object)* "]"'
    keys = " | ".join(literal(_key(key)) for key in ARGUMENTS)
    rules = [f"calls: {calls}", f"object: {' | '.join(objects)}", f"key: {keys}"]
    if asked.is_required:
        return grammar_of([*_required("calls", asked), *rules])
    text = r"/[ \t\r\n]*([^ \t\r\n{\[](?s:.*))?/" + not_as_thought(thought)
    return grammar_of(["start: calls | text", "text: TEXT", f"TEXT: {text}", *rules])


def in_tags(asked: ToolGrammar, begin: str, thought: ThoughtStart, tokenizer: LLTokenizer) -> list[str]:
    """Rules from `start` on for calls that begin with a tag and go on with the rule `body`: nothing but them, or text
    with them in it. Text does not have the tag's letters, also where the tag is a special token."""
    special = special_token(begin, tokenizer)
    if asked.is_required:
        more = "" if asked.is_one_call else ' ("\\n"? call)*'
        return [*_required(f"call{more}", asked), f"call: {special or literal(begin)} body"]
    # Behind its only call an answer ends: a model that may not write a second one would have to write something else.
    more = "" if asked.is_one_call else "(call body)* text"
    rules = [
        f"start: first_call body {more} | first_text",
        "text: TEXT",
        "first_text: FIRST",
        f"TEXT: {text_without(begin)}",
        f"FIRST: TEXT{not_as_thought(thought)}",
    ]
    if special:
        return [*rules, f"call: text {special}", f"first_call: first_text {special}"]
    tag = f"/(?s:.*){pattern(begin)}/"
    return [*rules, "call[lazy]: TAG", "first_call[lazy]: FIRST_TAG", f"TAG: {tag}",
            f"FIRST_TAG: {tag}{not_as_thought(thought)}"]  # fmt: skip


def object_schema(tool: ToolSchema) -> dict[str, Any]:
    """The schema of a tool's arguments, which are an object. Raises ValueError if it allows none."""
    schema = tool.parameters or {}
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ValueError(f"the parameters of tool {tool.name!r} are no object: their type is {kind!r}")
    return {**schema, "type": "object"}


def _required(calls: str, asked: ToolGrammar) -> list[str]:
    """Nothing but calls, or the content that may stand in their place."""
    if asked.content is None:
        return [f"start: {calls}"]
    return [f"start: {calls} | content", f"content: {json_rule(asked.content)}"]


def _object(tool: ToolSchema, key: str) -> str:
    name = json.dumps(tool.name, ensure_ascii=False)
    if not 2 < len(name) <= MAX_NAME_CHARS:
        raise ValueError(f"the name of tool {tool.name[:64]!r} has {len(name) - 2} characters in JSON, "
                         f"not 1 to {MAX_NAME_CHARS - 2}")  # fmt: skip
    begin = literal(f'{{"name": {name}, ')
    return f'{begin} {key} {json_rule(object_schema(tool))} "}}"'


def _key(name: str) -> str:
    return f'"{name}": '
