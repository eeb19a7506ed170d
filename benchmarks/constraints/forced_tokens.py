"""Which tokens of JSON documents their schema's grammar forces: known without the model, once those before are."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from benchmarks.constraints.asked import TICKET
from scheduler_svc.frontend.grammars.lark import JSON_WHITESPACE

STYLES: Mapping[str, tuple[Any, tuple[str, str]]] = {
    "compact": ({"whitespace_flexible": False}, (",", ":")),
    "spaced": ({"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}, (", ", ": ")),
    "free": ({"whitespace_pattern": JSON_WHITESPACE}, (", ", ": ")),
}
"""How a grammar treats whitespace, and the separators of documents that match it. `free` is what Baton compiles: the
model says where there is whitespace."""

_SCHEMA = {"type": "object", "properties": TICKET, "required": list(TICKET), "additionalProperties": False}
_TEXT = """
    the printer on second floor prints blank pages after an update customer cannot sign in with new password please
    check invoice total is wrong when discount applies search shows old results export to spreadsheet fails slowly
"""


def documents(count: int, separators: tuple[str, str]) -> list[str]:
    """Tickets as a model might write them."""
    rng, words = random.Random(17), _TEXT.split()

    def text(least: int, most: int) -> str:
        return " ".join(rng.choices(words, k=rng.randint(least, most)))

    tickets = [
        {
            "id": rng.randint(1, 999_999),
            "title": text(3, 8)[:60],
            "status": rng.choice(["open", "in progress", "blocked", "done"]),
            "hours": rng.randint(1, 400) / 10,
            "author": {
                "name": text(1, 2).title(),
                "email": f"{rng.choice(['anna', 'olaf', 'mira'])}@example.{rng.choice(['com', 'org'])}",
                "active": rng.random() < 0.5,
            },
            "tags": [rng.choice(words) for _ in range(rng.randint(1, 5))],
            "note": rng.choice([None, text(5, 25)]),
        }
        for _ in range(count)
    ]
    return [json.dumps(ticket, separators=separators) for ticket in tickets]


def grouped(document: str, overrides: Any, tokenizer: LLTokenizer) -> list[int]:
    """How many tokens each step would give, if a sampled one came with those that the grammar then forces.

    Raises:
        RuntimeError: the document does not match its grammar.
    """
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(_SCHEMA, overrides=overrides))
    tokens = tokenizer.tokenize_str(document)
    groups: list[int] = []
    position = 0
    while position < len(tokens):
        forced = matcher.compute_ff_tokens()
        if (size := _common(forced, tokens[position:])) and groups:
            groups[-1] += size
        else:  # forced ones at the very beginning are known before the first step
            size = max(1, size)
            groups.append(size)
        if not matcher.consume_tokens(tokens[position : position + size]):
            raise RuntimeError(f"the grammar refuses {document!r} at token {position}: {matcher.get_error()}")
        position += size
    return groups


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens at the start of both."""
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length
