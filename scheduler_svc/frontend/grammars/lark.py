"""Pieces of grammars as llguidance's Lark writes them."""

import json
import re
from typing import Any

from llguidance import LLMatcher, LLTokenizer

# Compact JSON, JSON with spaces and JSON with indents all match, but a model that draws whitespace cannot go on with it
# for ever: a newline at most, and then so many spaces, between two tokens of JSON.
JSON_WHITESPACE = r"(\r?\n)?[ \t]{0,32}"
SHORT_ESCAPES = 'nrbtf\\"'
TEXT = "/(?s:.*)/"
ANY_TOKENS = "<[*]>*"
_ESCAPE_BY_NUMBER = re.compile(r"(?<!\\)(?:\\\\)*\\u00")  # of a control character, in JSON


def with_options(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with our choice of llguidance's options, unless it says itself which it wants.

    A key that is written with escapes by number would pass for another key than the one that it is. So a schema that
    names keys does not allow these, unless it needs them: llguidance drops a control character that it cannot write.
    """
    said, text = schema.get("x-guidance", {}), dump(schema)
    if not isinstance(said, dict):
        return schema  # llguidance says what is wrong
    options: dict[str, Any] = {}
    if not {"whitespace_pattern", "whitespace_flexible"} & said.keys():
        options["whitespace_pattern"] = JSON_WHITESPACE
    if ('"properties"' in text or '"patternProperties"' in text) and not _ESCAPE_BY_NUMBER.search(text):
        options["json_allowed_escapes"] = SHORT_ESCAPES
    return {**schema, "x-guidance": {**options, **said}}


def json_rule(schema: dict[str, Any]) -> str:
    """JSON by a schema."""
    return f"%json {dump(with_options(schema))}"


def text_without(*tags: str) -> str:
    """The body of a terminal: any text in which no tag is whole."""
    return " & ".join([TEXT, *(f"~/(?s:.*){pattern(tag)}(?s:.*)/" for tag in tags)])


def pattern(text: str) -> str:
    """A regular expression that matches this text, as it may stand between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\n", "n")  # re.escape leaves a backslash before a newline


def term(text: str, tokenizer: LLTokenizer) -> str:
    """A special token if there is one of this name, or else the text."""
    return special_token(text, tokenizer) or literal(text)


def special_token(text: str, tokenizer: LLTokenizer) -> str | None:
    """A special token of this name, as Lark has it: it is no text. None if there is none.

    The library counts tokens as special that are named like <this>, even if the tokenizer does not call them so.
    """
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return f"<[{tokens[0]}]>" if len(tokens) == 1 and tokenizer.is_special_token(tokens[0]) else None


def other_special_tokens(text: str, tokenizer: LLTokenizer) -> str:
    """All special tokens but the one of this name, as Lark has them; empty if there are no others."""
    left_out = special_token(text, tokenizer)
    every = [token for token in range(tokenizer.vocab_size) if tokenizer.is_special_token(token)]
    others = ",".join(str(token) for token in every if f"<[{token}]>" != left_out)
    return f"<[{others}]>" if others else ""


def literal(text: str) -> str:
    """A string of Lark's: it has JSON's escapes. Not the characters themselves, as some may not stand in a grammar."""
    return json.dumps(text) if text else '""'


def dump(schema: Any) -> str:
    """JSON with characters as they are."""
    return json.dumps(schema, ensure_ascii=False, allow_nan=False)


def grammar_of(rules: list[str]) -> str:
    """A grammar of these lines, in llguidance's own format."""
    grammar: str = LLMatcher.grammar_from_lark("\n".join(["%llguidance {}", *rules]))
    return grammar
