"""Grammars on the demo model: what is generated matches, and is the same across swaps, preemptions and neighbours."""

import json
import re
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from common import messages as m
from common.errors import WireError
from common.model_files import DEMO_MODEL_DIR
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import start
from tests.support.effort import examples
from tests.support.in_process import Answer, serve, submit

EOS = (2045, 2047)
TOKENIZER = tokenizers.Tokenizer.from_file(str(DEMO_MODEL_DIR / "tokenizer.json"))
PROMPT = TOKENIZER.encode("Enter the KING, and with him a list:").ids
OPTIONS = {"num_blocks": 64, "max_num_seqs": 6, "max_batch_tokens": 64, "max_model_len": 256}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["king", "fool"]},
        "lines": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "lines"],
    "additionalProperties": False,
}


def json_grammar(schema: dict[str, Any]) -> str:
    grammar: str = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    return grammar


def constrained(grammar: str, **others: Any) -> dict[str, Any]:
    return {"constraints": m.Constraints(grammar=grammar, **others), "stop_token_ids": EOS, "temperature": 1.0}


def text_of(answer: Answer) -> str:
    return TOKENIZER.decode([token for token in answer.tokens if token not in EOS])


def ended_by_itself(answer: Answer) -> bool:
    return answer.end is not None and answer.end.reason == "stop"


def test_documents_match_their_schema() -> None:
    requests = [submit(str(i), PROMPT, 120, seed=i, **constrained(json_grammar(SCHEMA))) for i in range(8)]
    answers = serve([start(None, **OPTIONS)], requests)
    assert all(map(ended_by_itself, answers.values()))
    documents = [json.loads(text_of(answer)) for answer in answers.values()]
    assert len({json.dumps(document) for document in documents}) > 1, "they are drawn"
    for document in documents:
        assert list(document) == ["name", "age", "kind", "lines"]
        assert len(document["name"]) <= 12
        assert 0 <= document["age"] <= 120
        assert document["kind"] in ("king", "fool")
        assert 1 <= len(document["lines"]) <= 3


@pytest.mark.parametrize("pattern", [r"[a-c]{3}-[0-9]{2}", r"(yes|no)( indeed){0,2}\."])
def test_text_matches_a_regex(pattern: str) -> None:
    asked = constrained(LLMatcher.grammar_from_regex(pattern))
    answers = serve([start(None, **OPTIONS)], [submit(str(i), PROMPT, 60, seed=i, **asked) for i in range(4)])
    for answer in answers.values():
        assert ended_by_itself(answer)
        assert re.fullmatch(pattern, text_of(answer))


def test_a_grammar_beside_penalties_and_allowed_tokens() -> None:
    """Both masks count: digits but 5, of a list that has 5."""
    digits = [TOKENIZER.token_to_id(digit) for digit in "0123456789"]
    allowed = m.Constraints(allowed_token_ids=b"", presence_penalty=2.0)
    ids = [*digits[:5], *digits[6:], *EOS]
    asked = constrained(
        LLMatcher.grammar_from_regex("[5-9]{6}"),
        presence_penalty=allowed.presence_penalty,
        allowed_token_ids=b"".join(token.to_bytes(4, "little") for token in ids),
    )
    answers = serve([start(None, **OPTIONS)], [submit("a", PROMPT, 30, **asked)])
    assert re.fullmatch("[6-9]{6}", text_of(answers["a", 0]))


def test_a_cut_document_is_a_prefix() -> None:
    requests = [submit(str(n), PROMPT, n, seed=3, **constrained(json_grammar(SCHEMA))) for n in (1, 5, 9, 40)]
    whole, *others = sorted((text_of(a) for a in serve([start(None, **OPTIONS)], requests).values()), reverse=True)
    assert all(whole.startswith(other) for other in others)


MIXED = [
    submit("documents", PROMPT, 90, n=2, seed=1, logprobs=3, **constrained(json_grammar(SCHEMA))),
    submit("same prompt", PROMPT, 40, seed=2, **constrained(LLMatcher.grammar_from_regex("[a-z ]{30,40}"))),
    submit("plain", PROMPT, 40, temperature=1.0, seed=5),
    submit("penalized", PROMPT[:5], 90, seed=4, **constrained(json_grammar(SCHEMA), frequency_penalty=1.0)),
]


@settings(max_examples=examples(8, quick=2))
@given(
    window=st.sampled_from([1, 2]),
    lost_at=st.sets(st.integers(1, 120), max_size=5),
    joins=st.lists(st.integers(0, 30), max_size=len(MIXED)),
    num_blocks=st.sampled_from([18, 64]),
)
def test_a_document_goes_on_to_the_same_document(
    window: int, lost_at: set[int], joins: list[int], num_blocks: int
) -> None:
    alone = _alone()
    options = OPTIONS | {"num_blocks": num_blocks, "block_size": 8, "max_model_len": 144}
    runners = [start(None, **options), start(None, **options | {"max_batch_tokens": 9})]
    answers = serve(runners, MIXED, window=window, lost_at=lost_at, joins=joins)
    assert answers.keys() == alone.keys()
    for key, answer in answers.items():
        assert text_of(answer) == text_of(alone[key])
        assert answer.tokens == alone[key].tokens
        assert answer.logprob_ids == alone[key].logprob_ids
        assert answer.logprobs == pytest.approx(alone[key].logprobs, abs=1e-4)


_undisturbed: dict[tuple[str, int], Answer] = {}


def _alone() -> dict[tuple[str, int], Answer]:
    if not _undisturbed:
        runner = start(None, **OPTIONS)
        for request in MIXED:
            _undisturbed.update(serve([runner], [request], window=1))
    return _undisturbed


def test_a_grammar_that_cannot_go_on_ends_with_an_error() -> None:
    """Its only next token is banned."""
    asked = constrained(
        LLMatcher.grammar_from_regex("x"), bad_words=(TOKENIZER.token_to_id("x").to_bytes(4, "little"),)
    )
    answer = serve([start(None, **OPTIONS)], [submit("a", PROMPT, 9, **asked)])["a", 0]
    assert answer.end is not None
    assert (answer.end.code, answer.tokens) == ("no_token", [])


def test_an_executor_without_a_tokenizer_refuses_grammars(checkpoint: Make) -> None:
    runner, limits = start(checkpoint(preset="tiny"), **OPTIONS)
    with pytest.raises(WireError, match="has no tokenizer"):
        serve([(runner, limits)], [submit("a", [1, 2], 9, **constrained(LLMatcher.grammar_from_regex("x")))])
