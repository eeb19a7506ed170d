"""What lm-evaluation-harness asks of a server (its model `local-completions`), and how it reads the answers.

A loglikelihood request is a prompt of context and continuation as token ids. The client wants to know how likely the
continuation is, and whether the model would have written it: `lm_eval/models/openai_completions.py` of 0.4.13.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from common import messages as m
from tests.support.fake_core import FakeCore, Step, delta, int32, outputs, tokens_of
from tests.support.frontend_process import MODEL, Frontend

LOGPROB = float(np.float32(-0.123456789))
HALF, OTHER_HALF = 253, 99  # tokens that are no whole character, and so have one name
# Context, continuation, and of each of its tokens the place among the likeliest ones.
QUESTIONS = [
    ([300, 301, 302], [303, 304], [1, 1]),
    ([300, 301], [303, 304, 305], [1, 2, 1]),
    ([300], [306], [3]),
    ([300, 301, 302, 303, 304, 305], [HALF, 306], [2, 1]),
    ([7], [HALF], [1]),
]


def rank_of(prompt: list[int], place: int) -> int:
    """The place among the likeliest ones of a token of the prompt."""
    for context, continuation, ranks in QUESTIONS:
        if context + continuation == prompt:
            return ranks[place - len(context)] if place >= len(context) else 1
    raise AssertionError(prompt)


def told(submit: m.Submit, place: int) -> tuple[list[int], list[float]]:
    """A row of the core: minus the token's rank and its log-probability, then those of the likeliest one."""
    prompt = tokens_of(submit.prompt)
    token, rank = prompt[place], rank_of(prompt, place)
    other = OTHER_HALF if token == HALF else 400
    return [-rank, token if rank == 1 else other], [LOGPROB * place * rank, LOGPROB * place]


def model(submit: m.Submit) -> Iterator[Step]:
    rows = [told(submit, place) for place in range(1, len(submit.prompt) // 4)]
    for ids, values in rows:
        columns = {"prompt_logprob_ids": int32(ids), "prompt_logprobs": np.asarray(values, "<f4").tobytes()}
        yield outputs(delta(submit, [], **columns))
    yield outputs(delta(submit, [9], "length"))


def likelihoods(answer: dict, context_lengths: list[int]) -> Iterator[tuple[float, bool]]:
    """Of each continuation its log-probability, and whether it is the greedy one; as that client computes them."""
    for choice, length in zip(sorted(answer["choices"], key=lambda each: each["index"]), context_lengths, strict=True):
        # What was generated is the last entry, and no part of it.
        own = choice["logprobs"]["token_logprobs"][length:-1]
        top = choice["logprobs"]["top_logprobs"][length:-1]
        yield sum(own), all(value == max(likely.values()) for value, likely in zip(own, top, strict=True))


@pytest.mark.parametrize("size", [1, len(QUESTIONS)], ids=["one by one", "a batch"])
def test_loglikelihood(frontend: Frontend, core: FakeCore, size: int):
    core.script = model
    for start in range(0, len(QUESTIONS), size):
        batch = QUESTIONS[start : start + size]
        body = {"model": MODEL, "prompt": [context + continuation for context, continuation, _ in batch]}
        asked = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
        answer = frontend.post("/v1/completions", body | asked)
        assert answer.status_code == 200, answer.text
        found = list(likelihoods(answer.json(), [len(context) for context, _, _ in batch]))
        for (context, continuation, ranks), (total, is_greedy) in zip(batch, found, strict=True):
            places = range(len(context), len(context) + len(continuation))
            values = [float(np.float32(LOGPROB * place * rank)) for place, rank in zip(places, ranks, strict=True)]
            assert total == sum(values), "to the last bit"
            assert is_greedy == all(rank == 1 for rank in ranks)
    assert [(submit.params.prompt_logprobs, submit.params.logprobs) for submit in core.submits] == [(2, 2)] * 5
