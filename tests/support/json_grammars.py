"""JSON Schemas as grammars, and what a grammar says of a text: on the demo model's tokenizer, without torch."""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from common.grammars import parser_limits
from common.model_files import DEMO_MODEL_DIR

TOKENIZER = LLTokenizer(str(DEMO_MODEL_DIR / "tokenizer.json"))
NO_UNICODE_ESCAPES = 'nrbtf\\"'  # for `json_allowed_escapes`
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


def orders(value: Any) -> Iterator[Any]:
    """The same instance with its objects' keys in every order, and its whole numbers with and without a fraction."""
    if isinstance(value, dict):
        for members in itertools.product(*([(key, each) for each in orders(member)] for key, member in value.items())):
            yield from map(dict, itertools.permutations(members))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*map(orders, value)))
    else:
        yield value
        if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
            yield int(value)


def num_orders(value: Any) -> int:
    """How many orders of its keys a value has."""
    match value:
        case dict():
            return math.factorial(len(value)) * math.prod(map(num_orders, value.values()))
        case list():
            return math.prod(map(num_orders, value))
        case _:
            return 1


def spellings(value: Any) -> set[str]:
    """Compact JSON in every order of keys, with other characters than ASCII as they are, and escaped."""
    return {
        json.dumps(each, separators=(",", ":"), ensure_ascii=ascii_only)
        for each in orders(value)
        for ascii_only in (False, True)
    }
