"""Random JSON Schemas on the demo model: its documents are valid by another implementation, and outlive executors."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from common import messages as m
from executor_svc.runner.runner import Runner
from tests.executor_svc.harness import needs_cpp, start
from tests.support.effort import examples
from tests.support.in_process import Answer, serve, submit
from tests.support.json_grammars import NO_UNICODE_ESCAPES, TOKENIZER, json_grammar, matcher, refusal, takes
from tests.support.json_schemas import Schema, errors, schemas

BATCH = 40  # schemas that are served together; 16 batches have 500 that are taken
MAX_TOKENS = 64
EOS = (2045, 2047)
PROMPT = TOKENIZER.tokenize_str("Enter the KING, and with him a list:")
# The C++ kernels give a row the same numbers in every batch. Plain torch rounds float32 otherwise in a batch of another
# size, and a draw that falls on the edge between two tokens, one in some ten thousand, is then another token.
OPTIONS = {"dtype": "bfloat16", "num_blocks": 384, "max_num_seqs": BATCH, "max_batch_tokens": 256, "max_model_len": 128}
# A failure names its schema, and a batch that gets smaller and smaller would take minutes.
QUIETLY: dict[str, Any] = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
}

batches = st.lists(schemas(), min_size=BATCH, max_size=BATCH, unique_by=json.dumps)
seeds = st.integers(0, 2**32)


def taken(batch: list[Schema]) -> dict[str, tuple[Schema, str]]:
    """Those that llguidance takes, with their grammars, by a request id.

    Letters may not be escaped: where any key may stand, an escaped one passes for another than it is.
    """
    grammars = {
        str(i): (schema, json_grammar(schema, json_allowed_escapes=NO_UNICODE_ESCAPES))
        for i, schema in enumerate(batch)
    }
    return {key: (schema, grammar) for key, (schema, grammar) in grammars.items() if not refusal(grammar)}


def requests(grammars: dict[str, tuple[Schema, str]], seed: int) -> list[m.Submit]:
    return [
        submit(
            key,
            PROMPT,
            MAX_TOKENS,
            seed=seed + int(key),
            temperature=1.0,
            logprobs=1,
            stop_token_ids=EOS,
            constraints=m.Constraints(grammar=grammar),
        )
        for key, (_, grammar) in grammars.items()
    ]


def text_tokens(answer: Answer) -> list[int]:
    return [token for token in answer.tokens if token not in EOS]


@cache
def runner() -> tuple[Runner[Any], Any]:
    return start(None, **OPTIONS)


def test_documents_are_valid() -> None:
    num_drawn = num_taken = num_ended = 0

    @settings(max_examples=examples(16, quick=2), **QUIETLY)
    @given(batches, seeds)
    def each(batch: list[Schema], seed: int) -> None:
        nonlocal num_drawn, num_taken, num_ended
        grammars = taken(batch)
        answers = serve([runner()], requests(grammars, seed))
        for key, (schema, grammar) in grammars.items():
            answer = answers[key, 0]
            assert answer.end is not None
            tokens = text_tokens(answer)
            text = TOKENIZER.decode_str(tokens)
            if answer.end.reason == "stop":
                num_ended += 1
                assert errors(schema, text) == [], f"{text} for {json.dumps(schema)}"
            else:
                assert answer.end.reason == "length", f"{answer.end} after {text} for {json.dumps(schema)}"
                assert len(tokens) == MAX_TOKENS
            assert takes(matcher(grammar), tokens, whole=answer.end.reason == "stop")
        num_drawn += len(batch)
        num_taken += len(grammars)

    each()
    assert num_taken > 0.6 * num_drawn, "most schemas are taken"
    assert num_ended > 0.4 * num_taken, "many documents end by themselves"


@needs_cpp
@pytest.mark.slow
@settings(max_examples=examples(4, quick=2), **QUIETLY)
@given(
    batch=batches,
    seed=seeds,
    window=st.sampled_from([1, 2]),
    lost_at=st.sets(st.integers(1, 100), min_size=1, max_size=5),
    joins=st.lists(st.integers(0, 20), max_size=6),
    num_blocks=st.sampled_from([40, 384]),
)
def test_killed_executors_leave_the_same_documents(
    batch: list[Schema], seed: int, window: int, lost_at: set[int], joins: list[int], num_blocks: int
) -> None:
    """Under executors that vanish, and with a pool that makes sequences wait for one another and be preempted."""
    asked = requests(taken(batch), seed)
    assume(asked)
    small = start(None, **OPTIONS | {"num_blocks": num_blocks, "block_size": 8, "max_num_seqs": 9})
    answers = serve([small, runner()], asked, window=window, lost_at=lost_at, joins=joins[: len(asked)])
    alone = serve([runner()], asked)
    assert answers.keys() == alone.keys()
    for key, answer in answers.items():
        assert answer.tokens == alone[key].tokens, f"for {json.dumps(batch[int(key[0])])}"
        assert answer.logprobs == alone[key].logprobs
        assert answer.end is not None
        assert answer.end.reason == alone[key].end.reason
