"""What the benchmark's requests ask of their tokens, constraint by constraint."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from llguidance import LLMatcher

from benchmarks.rig.service_load import submits
from benchmarks.rig.workloads import WorkloadRequest
from common import messages as m

Asked = Callable[[int, int], dict[str, Any]]
"""Fields of a request's SamplingParams, by the request's number and the size of the vocabulary."""

NONE = "none"
JSON_SCHEMA = "json_schema"
MOST_LOGPROBS = 20
LARGEST_BIAS = 10.0

TICKET = {
    "id": {"type": "integer", "minimum": 1, "maximum": 999_999},
    "title": {"type": "string", "maxLength": 60},
    "status": {"enum": ["open", "in progress", "blocked", "done"]},
    "hours": {"type": "number"},
    "author": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 40},
            "email": {"type": "string", "pattern": r"^[a-z]{2,12}@[a-z]{2,8}\.(com|org)$"},
            "active": {"type": "boolean"},
        },
        "required": ["name", "email", "active"],
        "additionalProperties": False,
    },
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 16}, "minItems": 1, "maxItems": 5},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}
SCHEMA = {
    "type": "array",
    "minItems": 100_000,
    "items": {"type": "object", "properties": TICKET, "required": list(TICKET), "additionalProperties": False},
}
"""A list of tickets that is longer than any answer: no document ends before `max_tokens`."""


def _nothing(_number: int, _vocab_size: int) -> dict[str, Any]:
    return {}


def _penalties(_number: int, _vocab_size: int) -> dict[str, Any]:
    return {"constraints": m.Constraints(presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1)}


def _logprobs(_number: int, _vocab_size: int) -> dict[str, Any]:
    return {"logprobs": 1 + MOST_LOGPROBS}


def _biases(number: int, vocab_size: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    ids = rng.choice(vocab_size, m.MAX_BIASES, replace=False).astype("<i4")
    biases = rng.uniform(-LARGEST_BIAS, LARGEST_BIAS, m.MAX_BIASES).astype("<f4")
    return {"constraints": m.Constraints(bias_token_ids=ids.tobytes(), biases=biases.tobytes())}


def _documents(_number: int, _vocab_size: int) -> dict[str, Any]:
    grammar = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
    return {"constraints": m.Constraints(grammar=grammar)}


CONSTRAINTS: Mapping[str, Asked] = {
    NONE: _nothing,
    "penalties": _penalties,
    f"logprobs_{MOST_LOGPROBS}": _logprobs,
    "logit_bias": _biases,
    JSON_SCHEMA: _documents,
}


def constrained_submits(
    requests: Sequence[WorkloadRequest], salt: str, constraint: str, vocab_size: int
) -> list[m.Submit]:
    """The requests as messages, at temperature 1; all ask for the constraint. None has a stop token.

    Args:
        salt: see `submits`.
    """
    asked = CONSTRAINTS[constraint]
    return [
        msgspec.structs.replace(
            submit, params=msgspec.structs.replace(submit.params, temperature=1.0, **asked(number, vocab_size))
        )
        for number, submit in enumerate(submits(requests, salt))
    ]
