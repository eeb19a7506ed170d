"""Constraints of all kinds, as requests ask for them."""

from array import array
from typing import Any

from common import messages as m
from tests.support.checkpoints import VOCAB_SIZE


def ints(*values: int) -> bytes:
    return array("i", values).tobytes()


def constraints(**asked: Any) -> m.Constraints:
    """With a `logit_bias` by token, as requests have it, and lists of token ids."""
    bias = asked.pop("logit_bias", {})
    words = tuple(ints(*word) for word in asked.pop("bad_words", []))
    allowed = ints(*asked.pop("allowed_token_ids", []))
    return m.Constraints(
        bias_token_ids=ints(*bias),
        biases=array("f", bias.values()).tobytes(),
        bad_words=words,
        allowed_token_ids=allowed,
        **asked,
    )


EVERYTHING = constraints(
    presence_penalty=1.25,
    frequency_penalty=0.5,
    repetition_penalty=1.3,
    logit_bias={5: 3.0, 17: -100.0, 100: 2.5},
    min_tokens=6,
    bad_words=[[5], [100, 5], [7, 8, 9]],
    allowed_token_ids=list(range(0, VOCAB_SIZE, 2)),
)

CASES = {
    "penalties": constraints(presence_penalty=1.5, frequency_penalty=-0.25, repetition_penalty=1.2),
    "repetition below 1": constraints(repetition_penalty=0.7),
    "biases": constraints(logit_bias={3: 50.0, 4: 49.9, 5: -100.0}, presence_penalty=1.0),
    "one token is allowed": constraints(allowed_token_ids=[77]),
    "everything": EVERYTHING,
}
