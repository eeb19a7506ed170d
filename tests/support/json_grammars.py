"""JSON Schemas as grammars, and what a grammar says of a text: on the demo model's tokenizer, without torch."""

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from common.grammars import parser_limits
from common.model_files import DEMO_MODEL_DIR

TOKENIZER = LLTokenizer(str(DEMO_MODEL_DIR / "tokenizer.json"))
_COMPACT = {"whitespace_flexible": False}
_OF_BYTES = [TOKENIZER.tokenize_bytes(bytes([byte])) for byte in range(256)]


def json_grammar(schema: dict[str, Any], **options: Any) -> str:
    """The grammar of compact JSON that matches a schema.

    Args:
        options: of llguidance's `x-guidance`.
    """
    grammar: str = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_COMPACT | options)
    return grammar


def refusal(grammar: str) -> str:
    """Why llguidance does not take a grammar, in a line; empty if it does."""
    error: str = LLMatcher.validate_grammar(grammar, TOKENIZER, limits=parser_limits())
    return error.partition("\n")[0]


def matcher(grammar: str) -> LLMatcher:
    """At the grammar's beginning."""
    return LLMatcher(TOKENIZER, grammar, log_level=0, limits=parser_limits())


def takes(beginning: LLMatcher, tokens: Sequence[int], *, whole: bool = True) -> bool:
    """Whether every token may follow those before it and, unless it is a prefix that counts, the text may end there."""
    at = beginning.deep_copy()
    num_taken: int = at.try_consume_tokens(list(tokens))
    return num_taken == len(tokens) and (at.is_accepting() or not whole)


def byte_tokens(text: str) -> list[int]:
    """A text as the tokens of its single bytes: no tokenizer writes them, and a model may."""
    return [token for byte in text.encode() for token in _OF_BYTES[byte]]
