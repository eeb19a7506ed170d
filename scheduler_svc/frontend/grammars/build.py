"""From what a request says to a grammar in llguidance's own format, which checks most of it."""

import json
from typing import Any

import msgspec
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from scheduler_svc.frontend.grammars.coder_tools import coder_tools
from scheduler_svc.frontend.grammars.json_tools import hermes_tools, plain_json_tools
from scheduler_svc.frontend.grammars.lark import (
    ANY_TOKENS,
    TEXT,
    dump,
    grammar_of,
    json_rule,
    literal,
    special_token,
    term,
    with_options,
)
from scheduler_svc.frontend.grammars.schemas import prepared
from scheduler_svc.frontend.grammars.spec import GrammarSpec, ToolGrammar, ToolSchema
from scheduler_svc.frontend.grammars.thought import any_behind_thought, behind_thought
from scheduler_svc.frontend.parsing.thought import ThoughtStart


def build_grammar(spec: GrammarSpec, tokenizer: LLTokenizer) -> str:
    """The grammar. Raises ValueError if there is none."""
    if spec.kind == "any" and spec.thought != "none":
        return any_behind_thought(spec, tokenizer)
    answer = _answer(spec, tokenizer)
    return answer if spec.thought == "none" else behind_thought(answer, spec, tokenizer)


def _answer(spec: GrammarSpec, tokenizer: LLTokenizer) -> str:
    grammar: str
    match spec.kind:
        case "json":
            grammar = LLMatcher.grammar_from_json_schema(dump(with_options(prepared(json.loads(spec.text), tokenizer))))
        case "choice":
            # One terminal: of as many rules the parser would have an item for each, and a limit of them.
            choices = " | ".join(map(literal, json.loads(spec.text)))
            grammar = LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {choices}")
        case "regex":
            grammar = LLMatcher.grammar_from_regex(spec.text)
        case "grammar":
            grammar = LLMatcher.grammar_from_lark(any_to_lark(spec.text))
        case "structural_tag":
            grammar = _tags(json.loads(spec.text), tokenizer)
        case "tools":
            grammar = _tools(msgspec.convert(json.loads(spec.text), ToolGrammar), spec.thought, tokenizer)
        case "any":
            grammar = grammar_of([f"start: {ANY_TOKENS}"])
    return grammar


def _tools(asked: ToolGrammar, thought: ThoughtStart, tokenizer: LLTokenizer) -> str:
    if not asked.tools:
        raise ValueError("there are no tools")
    tools = [ToolSchema(tool.name, tool.parameters and prepared(tool.parameters, tokenizer)) for tool in asked.tools]
    asked = msgspec.structs.replace(asked, tools=tools, content=asked.content and prepared(asked.content, tokenizer))
    match asked.format:
        case "hermes":
            return hermes_tools(asked, thought, tokenizer)
        case "qwen3_coder":
            return coder_tools(asked, thought, tokenizer)
        case "json":
            return plain_json_tools(asked, thought)
        case "none":
            raise ValueError("it is not known how the model writes calls")


def _tags(tags: dict[str, Any], tokenizer: LLTokenizer) -> str:
    """Free text in which each trigger is the beginning of a structure: what llguidance's own `StructTag` makes, which
    takes every trigger like <this> for a special token."""
    rules, names = [], []
    for number, structure in enumerate(tags["structures"]):
        begin: str = structure["begin"]
        trigger = next(trigger for trigger in tags["triggers"] if begin.startswith(trigger))
        name = f"tag_{number}"
        names.append(name)
        end = term(structure["end"], tokenizer)
        body = f"{literal(begin.removeprefix(trigger))} {json_rule(prepared(structure['schema'], tokenizer))} {end}"
        if (special := special_token(trigger, tokenizer)) is not None:
            rules.append(f"{name}: TEXT {special} {body}")
        else:
            rules.append(f"{name}_trigger[lazy]: TEXT {literal(trigger)}")
            rules.append(f"{name}: {name}_trigger {body}")
    return grammar_of([f"start: ({' | '.join(names)})* last", "last: TEXT", f"TEXT: {TEXT}", *rules])
