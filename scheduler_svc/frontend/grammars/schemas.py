"""JSON schemas before llguidance reads them: what it would take for something else is said otherwise, or refused.

llguidance keeps numbers as doubles (`exact_numbers.py`), lets a text begin keys that it cannot end (here), and does not
see where a text can never end (`endless.py`). It refuses a schema for the first thing that it cannot hold; of a lenient
schema that is left out (`lenient.py`).
"""

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from common.grammars import parser_limits
from scheduler_svc.frontend.grammars.endless import without_endless
from scheduler_svc.frontend.grammars.exact_numbers import with_exact_numbers
from scheduler_svc.frontend.grammars.lark import dump, with_options
from scheduler_svc.frontend.grammars.lenient import without_unheld
from scheduler_svc.frontend.grammars.schema_parts import KEY_PATTERNS, Schema, changed, is_lenient

_NULL = {"type": "null"}


def prepared(schema: Schema, tokenizer: LLTokenizer) -> Schema:
    """Return the schema as llguidance is to read it.

    Raises:
        SchemaError: no text can follow it, or the library cannot hold it exactly. The message has the place in the
            schema, and the value there.
    """
    if is_lenient(schema):
        schema = without_unheld(schema)
    schema = changed(schema, with_exact_numbers)
    if f'"{KEY_PATTERNS}"' in dump(schema):
        keys = _Keys(with_options(schema).get("x-guidance"), tokenizer)
        schema = changed(schema, lambda part, place: _with_possible_keys(part, keys))
    return without_endless(schema)


class _Keys:
    """Ask the library which keys an object of a schema may have.

    Args:
        options: of the schema.
    """

    def __init__(self, options: Any, tokenizer: LLTokenizer) -> None:
        said = dict(options) if isinstance(options, dict) else {}
        said.pop("whitespace_pattern", None)
        self._options = {**said, "whitespace_flexible": False}
        self._tokenizer = tokenizer

    def may_begin(self, text: str, taken: Mapping[str, Any], patterns: Mapping[str, Any], others: Any) -> bool:
        """Return whether an object may begin so, that has none of the keys that are taken; true if the library refuses
        the patterns, for a reason that it is to give."""
        schema = {
            "type": "object",
            "properties": dict.fromkeys(taken, False),
            KEY_PATTERNS: patterns,
            "additionalProperties": others,
            "x-guidance": self._options,
        }
        grammar = LLMatcher.grammar_from_json_schema(dump(schema))
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
        tokens = self._tokenizer.tokenize_str(text)
        return bool(matcher.is_error() or matcher.validate_tokens(tokens) == len(tokens))


def _with_possible_keys(schema: Schema, keys: _Keys) -> Schema:
    """Return the schema without patterns of keys that match none but those of its properties, and without further keys
    if there can be none: where llguidance looks for one, a text could not go on."""
    patterns, named = schema.get(KEY_PATTERNS), schema.get("properties", {})
    if not isinstance(patterns, dict) or not isinstance(named, dict):
        return schema
    named, kept = dict(named), {}
    for pattern, said in patterns.items():
        if keys.may_begin('{"', named, {pattern: _NULL}, False):
            kept[pattern] = said
            continue
        for name, own in named.items():
            if keys.may_begin(f"{{{json.dumps(name, ensure_ascii=False)}:", {}, {pattern: _NULL}, False):
                named[name] = {"allOf": [own, said]}
    changed = {**schema, "properties": named, KEY_PATTERNS: kept}
    none = dict.fromkeys(patterns, False)
    if schema.get("additionalProperties") is not False and not keys.may_begin('{"', named, none, _NULL):
        changed["additionalProperties"] = False
    return changed
