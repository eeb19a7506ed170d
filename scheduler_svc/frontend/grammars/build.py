"""From what a request says to a grammar in llguidance's own format. Nothing is checked here: llguidance does that."""

import json
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from scheduler_svc.frontend.grammars.spec import GrammarSpec

# Compact JSON, JSON with spaces and JSON with indents all match, but a model that draws whitespace cannot go on with it
# for ever: a newline at most, and then so many spaces, between two tokens of JSON.
JSON_WHITESPACE = r"(\r?\n)?[ \t]{0,32}"
SHORT_ESCAPES = 'nrbtf\\"'
TEXT_BETWEEN_TAGS = r"/(.|\n)*/"


def build_grammar(spec: GrammarSpec, tokenizer: LLTokenizer) -> str:
    """The grammar. Raises ValueError if there is none."""
    match spec.kind:
        case "json":
            return LLMatcher.grammar_from_json_schema(_dump(_with_options(json.loads(spec.text))))
        case "choice":
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(_literal, json.loads(spec.text))))
        case "regex":
            return LLMatcher.grammar_from_regex(spec.text)
        case "grammar":
            return LLMatcher.grammar_from_lark(any_to_lark(spec.text))
        case "structural_tag":
            return LLMatcher.grammar_from_lark(_tags(json.loads(spec.text), tokenizer))
        case "tools" | "any":
            raise ValueError("grammars of tools are not built yet")


def _with_options(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with our choice of llguidance's options, unless it says itself which it wants.

    A key that is written with escapes by number would pass for another key than the one that it is. So a schema that
    names keys does not allow these, unless it needs them: llguidance drops a control character that it cannot write.
    """
    said, text = schema.get("x-guidance", {}), _dump(schema)
    if not isinstance(said, dict):
        return schema  # llguidance says what is wrong
    options: dict[str, Any] = {}
    if not {"whitespace_pattern", "whitespace_flexible"} & said.keys():
        options["whitespace_pattern"] = JSON_WHITESPACE
    if ('"properties"' in text or '"patternProperties"' in text) and "\\u00" not in text:
        options["json_allowed_escapes"] = SHORT_ESCAPES
    return {**schema, "x-guidance": {**options, **said}}


def _tags(tags: dict[str, Any], tokenizer: LLTokenizer) -> str:
    """Free text in which each trigger is the beginning of a structure: what llguidance's own `StructTag` makes, which
    takes every trigger like <this> for a special token."""
    rules, names = [], []
    for number, structure in enumerate(tags["structures"]):
        begin: str = structure["begin"]
        trigger = next(trigger for trigger in tags["triggers"] if begin.startswith(trigger))
        name = f"tag_{number}"
        names.append(name)
        schema = _dump(_with_options(structure["schema"]))
        body = f"{_literal(begin.removeprefix(trigger))} %json {schema} {_term(structure['end'], tokenizer)}"
        if (special := _special_token(trigger, tokenizer)) is not None:
            rules.append(f"{name}: TEXT {special} {body}")
        else:
            rules.append(f"{name}_trigger[lazy]: TEXT {_literal(trigger)}")
            rules.append(f"{name}: {name}_trigger {body}")
    start = f"start: ({' | '.join(names)})* last"
    return "\n".join(["%llguidance {}", start, "last: TEXT", f"TEXT: {TEXT_BETWEEN_TAGS}", *rules])


def _term(text: str, tokenizer: LLTokenizer) -> str:
    return _special_token(text, tokenizer) or _literal(text)


def _special_token(text: str, tokenizer: LLTokenizer) -> str | None:
    """A special token of this name, as Lark has it: it is no text. None if there is none."""
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return f"<[{tokens[0]}]>" if len(tokens) == 1 and tokenizer.is_special_token(tokens[0]) else None


def _literal(text: str) -> str:
    """A string of Lark's: it has JSON's escapes. Not the characters themselves, as some may not stand in a grammar."""
    return json.dumps(text) if text else '""'


def _dump(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, allow_nan=False)
