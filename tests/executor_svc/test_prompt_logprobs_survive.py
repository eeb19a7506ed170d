"""Log-probabilities of prompts on the whole road from the scheduler to the model and back: chunks, cached prefixes and
executors that vanish change nothing, and nothing is told twice.
"""

import random
from functools import cache
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import start
from tests.support.checkpoints import VOCAB_SIZE, reference_logits
from tests.support.effort import examples
from tests.support.in_process import Answers, serve, submit

MODEL = {"preset": "tiny", "num_layers": 2}
OPTIONS = {"block_size": 8, "max_num_seqs": 4, "max_batch_tokens": 16, "max_model_len": 80}
_RNG = random.Random(8)
_SHARED = _RNG.choices(range(VOCAB_SIZE), k=33)  # four blocks and a token
PROMPTS = {name: _SHARED + _RNG.choices(range(VOCAB_SIZE), k=size) for name, size in (("a", 20), ("b", 3), ("c", 7))}
SUBMITS = [
    submit("a", PROMPTS["a"], 6, n=2, temperature=1.0, seed=3, prompt_logprobs=3, logprobs=2),
    submit("plain", PROMPTS["a"][:40], 12),
    submit("b", PROMPTS["b"], 5, prompt_logprobs=21, constraints=m.Constraints(frequency_penalty=1.0)),
    submit("c", PROMPTS["c"], 1, prompt_logprobs=1),
    submit("cached", _SHARED[:32], 4, prompt_logprobs=6),
]


def assert_same(answers: Answers, expected: Answers) -> None:
    assert answers.keys() == expected.keys()
    for name, answer in answers.items():
        assert answer.tokens == expected[name].tokens, name
        assert answer.prompt_logprob_ids == expected[name].prompt_logprob_ids, name
        assert answer.prompt_logprobs == pytest.approx(expected[name].prompt_logprobs, abs=1e-4), name


@pytest.fixture(scope="module")
def undisturbed(checkpoint: Make) -> Answers:
    """One request after the other, alone and in one piece, with nothing cached."""

    @cache
    def alone(number: int) -> Answers:
        return serve([start(checkpoint(**MODEL), **OPTIONS | {"max_batch_tokens": 80})], [SUBMITS[number]])

    return {name: answer for number in range(len(SUBMITS)) for name, answer in alone(number).items()}


def test_they_are_those_of_transformers(checkpoint: Make, undisturbed: Answers) -> None:
    for request in SUBMITS:
        prompt, count = PROMPTS.get(request.request_id, _SHARED[:32]), request.params.prompt_logprobs
        answer = undisturbed[request.request_id, 0]
        if not count:
            assert answer.prompt_logprobs == []
            continue
        logprobs = reference_logits(checkpoint(**MODEL), prompt).log_softmax(-1)[:-1]
        ids = [answer.prompt_logprob_ids[i : i + count] for i in range(0, len(answer.prompt_logprob_ids), count)]
        ranks = [int((logprobs[i] >= logprobs[i][token]).sum()) for i, token in enumerate(prompt[1:])]
        assert [-row[0] for row in ids] == ranks
        ids = [[token, *row[1:]] for token, row in zip(prompt[1:], ids, strict=True)]
        expected = [logprobs[place][row].tolist() for place, row in enumerate(ids)]
        assert answer.prompt_logprobs == pytest.approx([*chain.from_iterable(expected)], abs=1e-4)
        top = [logprobs[place].topk(count - 1).indices.tolist() for place in range(len(ids))]
        assert [row[1:] for row in ids] == top
    assert undisturbed["a", 1].prompt_logprobs == [], "only the first sequence of a request has them"


@settings(max_examples=examples(60, quick=12))
@given(
    window=st.sampled_from([1, 2]),
    lost_at=st.sets(st.integers(1, 30), max_size=4),
    joins=st.lists(st.integers(0, 20), min_size=len(SUBMITS), max_size=len(SUBMITS)),
    num_blocks=st.integers(12, 40),
)
def test_chunks_hits_preemptions_and_lost_executors_change_nothing(
    checkpoint: Make, undisturbed: Answers, window: int, lost_at: set[int], joins: list[int], num_blocks: int
) -> None:
    runners = [start(checkpoint(**MODEL), **OPTIONS, num_blocks=num_blocks) for _ in range(2)]
    assert_same(serve(runners, SUBMITS, window=window, lost_at=lost_at, joins=joins), undisturbed)
