"""Random schemas and instances: a grammar takes what jsonschema calls valid, and nothing else."""

import json
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings

from tests.support.effort import examples
from tests.support.json_grammars import (
    NO_UNICODE_ESCAPES,
    TOKENIZER,
    json_grammar,
    matcher,
    num_orders,
    refusal,
    spellings,
    takes,
)
from tests.support.json_schemas import Schema, errors, with_instances

MOST_ORDERS = 120  # of keys, that are tried


def test_a_grammar_takes_what_jsonschema_calls_valid() -> None:
    seen = Counter[bool]()

    @settings(
        max_examples=examples(1000, quick=100),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(with_instances())
    def each(drawn: tuple[Schema, list[Any]]) -> None:
        schema, instances = drawn
        grammar = json_grammar(schema, json_allowed_escapes=NO_UNICODE_ESCAPES)
        if refusal(grammar):
            return
        beginning = matcher(grammar)
        for value in instances:
            if num_orders(value) > MOST_ORDERS:
                continue
            valid = not errors(schema, json.dumps(value))
            taken = any(takes(beginning, TOKENIZER.tokenize_str(text)) for text in spellings(value))
            assert taken == valid, f"{json.dumps(value)} for {json.dumps(schema)}"
            seen[valid] += 1

    each()
    assert min(seen[True], seen[False]) > 0.1 * seen.total(), "both are tried"
